#!/usr/bin/env bash
# Shows pg_stat_backtrace at work on a throw-away PostgreSQL server: a backend that waits for a lock inside nested
# PL/pgSQL functions, its stack, the stacks of the auxiliary processes, and the entry in the server's log.
# Everything runs in a private directory, which is removed at the end; downloads are kept in the cache.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/postgresql.sh
source "$TOP/scripts/postgresql.sh"

# refuse_if_hopeless ends the script at the start if the kernel would deny the capture at the end.
refuse_if_hopeless() {
	local scope
	scope=$(yama_scope)
	is_root || [[ $scope -eq 0 ]] || die "kernel.yama.ptrace_scope is $scope: an ordinary user may trace only children" \
		"run this as root, or: sudo sysctl kernel.yama.ptrace_scope=0"
}

make_example() {
	sql <<-'SQL'
		CREATE EXTENSION pg_stat_backtrace;
		CREATE TABLE stock (item text PRIMARY KEY, quantity int);
		INSERT INTO stock VALUES ('bolt', 100);
		CREATE FUNCTION take_from_stock(what text) RETURNS void LANGUAGE plpgsql AS $$
		BEGIN
		    UPDATE stock SET quantity = quantity - 1 WHERE item = what;
		END $$;
		CREATE FUNCTION place_order(what text) RETURNS void LANGUAGE plpgsql AS $$
		BEGIN
		    PERFORM take_from_stock(what);
		END $$;
	SQL
}

show_blocked_backend() {
	local pid
	session clerk "BEGIN; SELECT FROM stock WHERE item = 'bolt' FOR UPDATE; SELECT pg_advisory_lock(1);"
	until_true 60 "the first session to hold its row" sql_is_true \
		"SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted)"
	session customer "SELECT place_order('bolt');"
	until_true 60 "the second session to wait for the lock" sql_is_true \
		"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'customer' AND wait_event_type = 'Lock')"
	pid=$(sql -c "SELECT pid FROM pg_stat_activity WHERE application_name = 'customer'")
	say "The backend $pid waits for a row lock, two PL/pgSQL functions deep: SELECT pg_get_backtrace($pid)"
	sql -c "SELECT pg_get_backtrace($pid)"
	BLOCKED=$pid
}

show_auxiliary_processes() {
	local pid kind
	while IFS='|' read -r pid kind; do
		say "The $kind: SELECT pg_get_backtrace($pid)"
		sql -c "SELECT pg_get_backtrace($pid)"
	done < <(sql -c "SELECT pid, backend_type FROM pg_stat_activity
		WHERE backend_type <> 'client backend' ORDER BY backend_type, pid")
}

show_log_entry() {
	say "The same into the server's log: SELECT pg_log_backtrace($BLOCKED)"
	sql -c "SELECT pg_log_backtrace($BLOCKED)"
	note "which wrote:"
	# The continuation lines of an entry begin with a tab.
	awk '/(LOG|DETAIL): .*(backtrace|#0)/ {on = 1; print; next} /^\t/ {if (on) print; next} {on = 0}' "$WORK/server.log"
}

main() {
	refuse_if_hopeless
	make_workdir
	say "Building bin/pg_stat_backtrace"
	build_program
	say "Looking for a PostgreSQL, to copy into $WORK: the real one stays as it is"
	prepare_postgresql
	say "Making a throw-away server in $WORK (user $SERVER_USER, Unix socket only)"
	start_server server
	make_example
	say "Starting the worker: pg_stat_backtrace worker \"host=$PGHOST dbname=postgres\""
	start_worker
	note "ready, pid $WORKER_PID"
	show_blocked_backend
	show_auxiliary_processes
	show_log_entry
	say "Done in $SECONDS s; stopping what was started and removing $WORK"
}

main "$@"
