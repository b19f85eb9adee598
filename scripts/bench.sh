#!/usr/bin/env bash
# Runs the benchmark of tools/bench/ on a throw-away server; options go to it (`scripts/tool.sh bench -h` lists them).

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/postgresql.sh
source "$TOP/scripts/postgresql.sh"

make_workdir
need_postgresql
if ! have gcc || ! gcc -E -include libunwind-ptrace.h -x c /dev/null >/dev/null 2>&1; then
	if ! is_root || ! have apt-get; then die "the benchmark's C programs need gcc and libunwind's header files"; fi
	apt_install "the benchmark compares with C programs on libunwind" gcc libc6-dev libunwind-dev
fi
major=${PG_VERSION%%.*}
if [[ $PG_HOME_BIN == "/usr/lib/postgresql/$major/bin" && ! -e /usr/include/postgresql/$major/server/postgres.h ]] &&
	is_root && have apt-get; then
	apt_install "the benchmark compares with a C function in the server" "postgresql-server-dev-$major"
fi
say "Building, and preparing a private copy of PostgreSQL in $WORK"
build_program
prepare_postgresql # only now: what apt-get installs can bring a newer server, and half of the copy would be of that
say "Measuring: this takes some minutes, on a machine that has nothing else to do"
cd "$TOP"
scripts/tool.sh bench -binary "$PROGRAM" -bindir "$PG_BIN" "$@"
