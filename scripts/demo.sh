#!/usr/bin/env bash
# Records the command top in a terminal, beside a throw-away server with an incident, and writes doc/images/top.svg and the
# pictures of the README. Look at them before you commit them.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/postgresql.sh
source "$TOP/scripts/postgresql.sh"

make_shop() {
	sql <<-'SQL'
		CREATE TABLE stock (item text PRIMARY KEY, quantity int);
		INSERT INTO stock SELECT 'bolt ' || i, 100 FROM generate_series(1, 1000) i;
		CREATE TABLE invoices (id int PRIMARY KEY, paid bool);
		INSERT INTO invoices SELECT i, false FROM generate_series(1, 1000) i;
		CREATE TABLE prices AS SELECT i AS item, i % 100 AS price FROM generate_series(1, 20000) i;
		CREATE FUNCTION take_from_stock(what text) RETURNS void LANGUAGE plpgsql AS $$
		BEGIN
		    UPDATE stock SET quantity = quantity - 1 WHERE item = what;
		END $$;
		CREATE FUNCTION place_order(what text) RETURNS void LANGUAGE plpgsql AS $$
		BEGIN
		    PERFORM take_from_stock(what);
		END $$;
		CREATE FUNCTION recount() RETURNS void LANGUAGE plpgsql AS $$
		BEGIN
		    UPDATE stock SET quantity = quantity;
		    PERFORM pg_sleep(3600);
		END $$;
	SQL
}

# incident lets the sessions begin one after the other.
incident() {
	local i
	session pricing "SELECT count(*) FROM prices a, prices b, prices c WHERE a.price < b.price AND b.price < c.price;"
	sleep 5
	session warehouse-cron "BEGIN; SELECT recount();"
	until_true 60 "the lock of the cron job" sql_is_true \
		"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'warehouse-cron' AND wait_event = 'PgSleep')"
	for i in 1 2 3 4 5 6; do
		sleep 3
		session "web-$i" "SELECT place_order('bolt $i');"
	done
	session billing-ui "BEGIN;" "UPDATE invoices SET paid = true WHERE id = 7;"
	sleep 2
	session reminders "UPDATE invoices SET paid = false WHERE id = 7;"
}

main() {
	make_workdir
	build_program
	prepare_postgresql
	start_server server "jit = off" "max_parallel_workers_per_gather = 0"
	make_shop
	say "Recording: about a minute"
	"$TOP/scripts/tool.sh" demo -program "$PROGRAM" -D "$PGDATA" -o "$TOP/doc/images" &
	local recorder=$!
	stop_at_end "$recorder"
	incident
	wait "$recorder" || die "the recording failed"
	say "Look at doc/images/top.svg, top-load.svg and top-session.svg"
}

main "$@"
