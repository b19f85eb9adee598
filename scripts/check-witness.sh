#!/usr/bin/env bash
# check-witness.sh [PART...]: runs PostgreSQL's own tests on a server whose every process is captured 200 times a
# second. The tests must not notice. Parts (all of them by default):
#   tests        src/test/regress (its parallel schedule) and src/test/isolation, first without, then under the watch
#   replication  streaming and logical replication, pg_basebackup, crashes and VACUUM under the watch; the data must be
#                equal at the end
#   kills        a worker killed with -9 a thousand times while it is asked for stacks of busy backends: none of the
#                server's processes may be left stopped or traced
# The server and the tests come from scripts/build-postgresql.sh, from the same source (Debian's). The script prints
# figures. The exit status is 0 if all went well. WITNESS_RATE: captures a second (200). WITNESS_ENGINE: stop or
# nonstop (stop). WITNESS_ROUNDS: crashes of the replicated primary, two for each round (3). WITNESS_KILLS: kills of
# the worker (1000).

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

RATE=${WITNESS_RATE:-200} ENGINE=${WITNESS_ENGINE:-stop} ROUNDS=${WITNESS_ROUNDS:-3} KILLS=${WITNESS_KILLS:-1000}
FAILED=0

# problem reports a failed check; the script continues.
problem() {
	FAILED=1
	printf 'PROBLEM: %s\n' "$*"
}

# prepare copies server and tests to where the server's user can read them, and builds the witness.
prepare() {
	local bin source
	bin=$("$TOP/scripts/build-postgresql.sh")
	source=$(dirname "$(dirname "$bin")")/source
	[[ -e $source/src/test/regress/regress.so && -e $source/src/test/isolation/isolationtester ]] ||
		die "$source has not been built with its tests"
	make_workdir
	choose_server_user
	AS_TRACER=("${AS_SERVER[@]}")
	# The same capabilities as in systemd/: the witness may raise its priority while a process is stopped.
	if is_root && setpriv --inh-caps=+sys_nice --ambient-caps=+sys_nice true 2>/dev/null; then
		AS_TRACER=(setpriv "--inh-caps=+sys_nice,+sys_ptrace" "--ambient-caps=+sys_nice,+sys_ptrace" "${AS_SERVER[@]:1:3}" --)
	else
		note "the witness may not have a real-time priority: it is taken off its processor like everybody else"
	fi
	cp -a "$(dirname "$bin")" "$WORK/pg"
	mkdir "$WORK/suites"
	cp -a "$source/src/test/regress" "$source/src/test/isolation" "$WORK/suites/"
	(cd "$TOP" && CGO_ENABLED=0 "$GO" build -C "$TOP/tools" -o "$WORK/witness" ./bench/witness)
	! is_root || chown -R "$SERVER_USER:" "$WORK"
	PG_BIN=$WORK/pg/bin
	export LD_LIBRARY_PATH=$WORK/pg/lib PGHOST=$WORK PGUSER=postgres PGDATABASE=postgres
	note "$("$PG_BIN/postgres" --version), as user $SERVER_USER; $(nproc) processors"
}

# start_server NAME PORT SETTING...: starts a server with the data directory WORK/NAME, which is made if it is not there.
start_server() {
	local data=$WORK/$1 port=$2 setting
	shift 2
	[[ -e $data ]] || quietly as_server "$PG_BIN/initdb" -D "$data" -U postgres -A trust -N -E UTF8 --no-locale
	for setting in "listen_addresses = ''" "unix_socket_directories = '$WORK'" "port = $port" 'fsync = off' "$@"; do
		printf '%s\n' "$setting"
	done | as_server tee -a "$data/postgresql.conf" >/dev/null
	STOP_SERVERS+=("$data")
	start_again "$data"
}

stop_server() { quietly as_server "$PG_BIN/pg_ctl" -s -w -m "${2:-fast}" -D "$WORK/$1" stop; }

start_again() { quietly as_server "$PG_BIN/pg_ctl" -s -w -t 300 -D "$1" -l "$1.log" start; }

# sql PORT QUERY: bare output.
sql() { PGOPTIONS="-c client_min_messages=warning" as_server "$PG_BIN/psql" -XqAt -v ON_ERROR_STOP=1 -p "$1" -c "$2"; }
sql_is() { [[ $(sql "$1" "$2" 2>/dev/null) == "$3" ]]; }

# watch DIRECTORY... and stop_watch: the witness, and its figures.
watch() {
	# shellcheck disable=SC2086 # a list of options
	"${AS_TRACER[@]}" "$WORK/witness" -rate "$RATE" -engine "$ENGINE" ${WITNESS_OPTIONS:-} "$@" >"$WORK/figures" 2>&1 &
	WITNESS=$!
	stop_at_end "$WITNESS"
	until_true 10 "the witness" grep -q watching "$WORK/figures"
}

stop_watch() {
	local status=0
	kill "$WITNESS" 2>/dev/null || true # it may have ended: then its status says why
	wait "$WITNESS" || status=$?
	sed 1d "$WORK/figures"
	[[ $status -eq 0 ]] || problem "the witness ended with status $status"
}

# suite LABEL PROGRAM OPTION...: runs one of PostgreSQL's test programs; the names of failed tests go to WORK/failed.LABEL.
suite() {
	local label=$1 kind=${1%%.*} program=$2 began=$SECONDS status=0
	shift 2
	as_server mkdir "$WORK/out.$label"
	(cd "$WORK/suites/$kind" && as_server "$program" --inputdir=. --outputdir="$WORK/out.$label" --bindir="$PG_BIN" \
		--port=5432 --user=postgres "$@") >"$WORK/$label.log" 2>&1 || status=$?
	sed -nE 's/^(test|    ) +([^ ]+) +\.\.\. FAILED.*/\2/p' "$WORK/$label.log" | sort >"$WORK/failed.$label"
	note "$label: $(grep -cE '\.\.\. ok' "$WORK/$label.log") tests passed, $(wc -l <"$WORK/failed.$label") failed, $((SECONDS - began)) s"
	if [[ $status -ne 0 && ! -s $WORK/failed.$label ]]; then
		tail -n 20 "$WORK/$label.log"
		problem "$label did not run to its end"
	fi
}

suites() {
	suite "regress.$1" ./pg_regress --dlpath="$WORK/suites/regress" --max-concurrent-tests=20 \
		--schedule=parallel_schedule --dbname=regression
	suite "isolation.$1" ./pg_isolation_regress --schedule=isolation_schedule --dbname=isolation_regression
}

# compare KIND: a test that fails under the watch fails without it as well, or the watch is to blame.
compare() {
	local name
	while read -r name; do
		if grep -qx "$name" "$WORK/failed.$1.alone"; then
			note "$1: $name fails without the watch too"
		else
			problem "$1: $name fails under the watch only"
			sed -n '1,60p' "$WORK/out.$1.watched/results/$name.out.diff" 2>/dev/null || true
		fi
	done <"$WORK/failed.$1.watched"
	[[ ! -s $WORK/failed.$1.watched ]] || sed -n '1,200p' "$WORK/out.$1.watched"/*.diffs
}

part_tests() {
	say "PostgreSQL's tests, without a watch"
	start_server tests 5432 'wal_level = logical' 'max_prepared_transactions = 10' 'max_connections = 60'
	suites alone
	say "PostgreSQL's tests, every process captured $RATE times a second (engine $ENGINE)"
	watch "$WORK/tests"
	suites watched
	stop_watch
	compare regress
	compare isolation
	stop_server tests
	! grep -aE 'PANIC|terminated by signal' "$WORK/tests.log" || problem "the server's log has the lines above"
}

TABLES=(pgbench_accounts pgbench_branches pgbench_tellers pgbench_history)

# sums PORT: prints the number of rows and sums of the tables; the balances must add up.
sums() {
	local table
	for table in "${TABLES[@]}"; do
		sql "$1" "SELECT '$table', count(*), sum(hashtextextended(t::text, 0)::numeric) FROM $table t"
	done
	sql "$1" 'SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches),
		(SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(delta) FROM pgbench_history)'
}

# replicas makes the standby and the subscriber of the primary, which the witness watches already.
replicas() {
	note "pg_basebackup for the standby"
	quietly as_server "$PG_BIN/pg_basebackup" -p 5432 -D "$WORK/standby" -R -c fast -S standby -C
	start_server standby 5433 "primary_slot_name = 'standby'"
	start_server subscriber 5434
	quietly as_server "$PG_BIN/pgbench" -q -p 5434 -i -I dtp -s 5
	sql 5432 "CREATE PUBLICATION p FOR TABLE $(IFS=,; echo "${TABLES[*]}")"
	sql 5434 "CREATE SUBSCRIPTION s CONNECTION 'host=$WORK port=5432 user=postgres dbname=postgres application_name=s'
		PUBLICATION p"
	until_true 120 "the first copy of the tables" sql_is 5434 \
		"SELECT count(*) FILTER (WHERE srsubstate <> 'r') FROM pg_subscription_rel" 0
}

# load SECONDS: a client program's transactions, in the background; they end early when the server crashes.
load() {
	as_server "$PG_BIN/pgbench" -n -p 5432 -c 6 -j 2 -T "$1" >>"$WORK/pgbench.log" 2>&1 &
	LOAD=$!
	stop_at_end "$LOAD"
}

# quiet_round: VACUUM in its variants and another base backup, which is verified and read, under load.
quiet_round() {
	local table
	load 15
	for table in "${TABLES[@]}"; do sql 5432 "VACUUM (FREEZE, ANALYZE) $table"; done
	sql 5432 'VACUUM FULL pgbench_tellers'
	sql 5432 'VACUUM (PARALLEL 2) pgbench_accounts'
	quietly as_server "$PG_BIN/pg_basebackup" -p 5432 -D "$WORK/backup.$1" -c fast
	quietly as_server "$PG_BIN/pg_verifybackup" "$WORK/backup.$1"
	rm -rf "$WORK/backup.$1"
	wait "$LOAD" || problem "pgbench failed: $(tail -n 3 "$WORK/pgbench.log")"
}

# crash_round: kills a backend, then stops the whole server as in a power failure.
crash_round() {
	local backend
	load 60
	until_true 20 "load" sql_is 5432 "SELECT count(*) > 3 FROM pg_stat_activity WHERE application_name = 'pgbench'" t
	backend=$(sql 5432 "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench' LIMIT 1")
	kill -9 "$backend"
	wait "$LOAD" || true # its connections are lost
	until_true 120 "the end of crash recovery" sql_is 5432 'SELECT 1' 1
	load 60
	until_true 20 "load" sql_is 5432 "SELECT count(*) > 3 FROM pg_stat_activity WHERE application_name = 'pgbench'" t
	stop_server primary immediate
	wait "$LOAD" || true
	start_again "$WORK/primary"
}

part_replication() {
	local round lsn replica began=$SECONDS
	say "Replication, base backups, VACUUM and crashes, every process captured $RATE times a second (engine $ENGINE)"
	start_server primary 5432 'wal_level = logical' 'max_wal_size = 256MB' 'checkpoint_timeout = 30s' \
		'autovacuum_naptime = 1s' 'wal_keep_size = 256MB'
	quietly as_server "$PG_BIN/pgbench" -q -p 5432 -i -s 5
	watch "$WORK/primary" "$WORK/standby" "$WORK/subscriber"
	replicas
	for ((round = 1; round <= ROUNDS; round++)); do
		quiet_round "$round"
		crash_round
	done
	lsn=$(sql 5432 'SELECT pg_current_wal_flush_lsn()')
	until_true 300 "the standby to have all" sql_is 5433 "SELECT pg_last_wal_replay_lsn() >= '$lsn'" t
	until_true 300 "the subscriber to have all" sql_is 5432 \
		"SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = 's'" t
	stop_watch
	for replica in 5432 5433 5434; do sums "$replica" >"$WORK/sums.$replica"; done
	awk -F '|' 'END {exit !($1 == $2 && $2 == $3 && $3 == $4)}' "$WORK/sums.5432" || problem "the balances do not add up"
	for replica in 5433 5434; do
		cmp "$WORK/sums.5432" "$WORK/sums.$replica" || problem "the data on port $replica are others than the primary's"
	done
	stop_server subscriber
	stop_server standby
	stop_server primary
	sed 's/^/    primary, standby and subscriber: /' "$WORK/sums.5432"
	note "$((2 * ROUNDS)) crashes, $((ROUNDS + 1)) base backups, $((SECONDS - began)) s"
}

# left_behind PID...: prints the processes that are stopped or traced.
left_behind() {
	local pid
	for pid; do
		awk -v pid="$pid" '/^State:/ {state = $2} /^TracerPid:/ {tracer = $2}
			END {if (state == "T" || state == "t" || tracer) print pid, state, tracer}' "/proc/$pid/status" 2>/dev/null || true
	done
}

# start_killed starts a worker that is going to be killed.
start_killed() {
	"${AS_SERVER[@]}" "$PROGRAM" worker -D "$WORK/kills" "host=$WORK user=postgres dbname=postgres" \
		>"$WORK/worker.log" 2>&1 </dev/null &
	WORKER=$!
	until_true 20 "the worker" grep -q '"ready"' "$WORK/worker.log"
}

part_kills() {
	local i pids began=$SECONDS answered asked=$WORK/asked.sql
	say "A worker killed $KILLS times while it is asked for stacks"
	build_program
	install -m 0644 "$TOP/pg_stat_backtrace.control" "$TOP"/sql/*.sql "$("$PG_BIN/pg_config" --sharedir)/extension/"
	# A worker that has just started would spend its short life on reading debug information.
	quietly strip --strip-debug "$PG_BIN/postgres" "$WORK"/pg/lib/*.so
	start_server kills 5432 'max_connections = 60'
	sql 5432 'CREATE EXTENSION pg_stat_backtrace; CREATE SEQUENCE answered'
	quietly as_server "$PG_BIN/pgbench" -q -p 5432 -i -s 2
	cat >"$asked" <<-'SQL'
		DO $$ DECLARE stack text; BEGIN
			SELECT pg_get_backtrace(pid) INTO stack FROM pg_stat_activity WHERE query LIKE 'UPDATE%' ORDER BY random() LIMIT 1;
			IF stack LIKE '#0 %' THEN PERFORM nextval('answered'); END IF;
		EXCEPTION WHEN OTHERS THEN PERFORM pg_sleep(0.001);
		END $$
	SQL
	chmod 0644 "$asked"
	load 3600
	as_server "$PG_BIN/pgbench" -n -p 5432 -c 4 -f "$asked" -T 3600 >"$WORK/asking.log" 2>&1 &
	stop_at_end $!
	ASKING=$!
	for ((i = 1; i <= KILLS; i++)); do
		start_killed
		sleep "0.$(printf '%03d' $((RANDOM % 200 + 10)))"
		kill -9 "$WORKER"
		wait "$WORKER" 2>/dev/null || true
		mapfile -t pids < <(pgrep -P "$(head -n 1 "$WORK/kills/postmaster.pid")")
		left_behind "${pids[@]}" | sed "s/^/kill $i: /" >>"$WORK/left"
	done
	kill "$ASKING" "$LOAD"
	wait "$ASKING" "$LOAD" 2>/dev/null || true
	answered=$(sql 5432 'SELECT last_value FROM answered')
	stop_server kills
	note "$KILLS workers killed, $answered stacks answered meanwhile, $((SECONDS - began)) s; ${#pids[@]} processes looked at each time"
	[[ ! -s $WORK/left ]] || problem "left stopped or traced: $(head -n 20 "$WORK/left")"
	[[ $answered -gt $((KILLS / 10)) ]] || problem "hardly a stack was answered: $(tail -n 3 "$WORK/asking.log")"
}

main() {
	local part
	[[ $# -gt 0 ]] || set -- tests replication kills
	prepare
	for part; do
		[[ $(type -t "part_$part") == function ]] || die "no such part: $part"
		"part_$part"
	done
	[[ $FAILED -eq 0 ]] || die "the server noticed, or something else went wrong"
	say "All well ($SECONDS s)"
}

main "$@"
