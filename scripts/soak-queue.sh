#!/usr/bin/env bash
# Tries the queue under load on a throw-away server; options go to tools/bench/soak (`scripts/tool.sh bench/soak -h` lists them).

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/postgresql.sh
source "$TOP/scripts/postgresql.sh"

make_workdir
say "Building, and preparing a private copy of PostgreSQL in $WORK"
build_program
(cd "$TOP" && "$GO" build -C "$TOP/tools" -o "$WORK/soak" ./bench/soak)
prepare_postgresql
start_server data "max_connections = 250"
quietly sql -c 'CREATE EXTENSION pg_stat_backtrace'
say "PostgreSQL $PG_VERSION, without fsync; $(nproc) processors"
status=0
"$WORK/soak" -binary "$PROGRAM" -dsn "host=$PGHOST port=$PGPORT user=$PGUSER dbname=$PGDATABASE sslmode=disable" "$@" ||
	status=$?
exit "$status"
