#!/usr/bin/env bash
# bench-wakeups.sh [SERVERS [SECONDS]]: print how often an idle worker wakes up, and `worker --all` with SERVERS idle servers
# (20), as root. A wake-up is a moment at which a process runs after a pause of all its threads (see tools/wakeups). It makes
# several context switches: the thread whose wait ends wakes up others, and one of them looks after Go's scheduler.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/postgresql.sh
source "$TOP/scripts/postgresql.sh"

# family PID: print the PID and those of its children.
family() {
	echo "$1"
	cat "/proc/$1/task/"*/children 2>/dev/null | tr ' ' '\n'
}

# measure PID NAME: print the wake-ups of a process and its children. The first seconds belong to the start.
measure() {
	sleep 15
	note "$2 (process $1 and its children):"
	# shellcheck disable=SC2046 # a process each
	"$TOP/scripts/tool.sh" wakeups -duration "${SECONDS_MEASURED}s" $(family "$1")
}

main() {
	local number servers=${1:-20}
	SECONDS_MEASURED=${2:-60}
	is_root || die "worker --all needs root"
	make_workdir
	say "Building, and preparing a private copy of PostgreSQL in $WORK"
	build_program
	"$TOP/scripts/tool.sh" wakeups -h >/dev/null 2>&1 || true # builds it
	prepare_postgresql
	say "Idle workers on PostgreSQL $PG_VERSION, $SECONDS_MEASURED s each"
	start_server first
	"${SQL[@]}" -c 'CREATE EXTENSION pg_stat_backtrace'
	start_worker
	measure "$WORKER_PID" "one worker"
	kill "$WORKER_PID"
	until_true 20 "the end of the worker" ended "$WORKER_PID"
	for ((number = 1; number < servers; number++)); do
		start_server "server$number" "port = $((5432 + number))" "shared_buffers = 1MB" "max_connections = 10"
	done
	"$PROGRAM" worker --all --below "$WORK" >"$WORK/all.log" 2>&1 </dev/null &
	stop_at_end $!
	until_true 60 "a worker for each server" workers_started $! "$servers"
	measure $! "worker --all with $servers servers"
}

ended() { ! kill -0 "$1" 2>/dev/null; }

workers_started() { (($(family "$1" | wc -w) > $2)); }

main "$@"
