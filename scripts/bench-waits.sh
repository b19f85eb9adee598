#!/usr/bin/env bash
# Measures the cost of timing wait events and of profiles on a throw-away server, as root; options go to tools/bench/waits
# (`scripts/tool.sh bench/waits -h` lists them).

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/postgresql.sh
source "$TOP/scripts/postgresql.sh"

make_workdir
say "Building, and preparing a private copy of PostgreSQL in $WORK"
build_program
(cd "$TOP" && "$GO" build -C "$TOP/tools" -o "$WORK/waits" ./bench/waits)
prepare_postgresql
start_server data "autovacuum = off" "compute_query_id = on"
say "PostgreSQL $PG_VERSION, without fsync; $(nproc) processors"
status=0
"$WORK/waits" -D "$PGDATA" -dsn "host=$PGHOST port=$PGPORT user=$PGUSER dbname=$PGDATABASE sslmode=disable" "$@" ||
	status=$?
exit "$status"
