#!/usr/bin/env bash
# pgxs.sh TARGET [VARIABLE=value...]: run a PGXS target (install, uninstall) for the extension's files.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
pg_config=${PG_CONFIG:-pg_config}

if ! command -v "$pg_config" >/dev/null; then
	echo "error: $pg_config not found; set PG_CONFIG to the pg_config of the PostgreSQL to install for" >&2
	exit 1
fi
pgxs=$("$pg_config" --pgxs)
if [[ ! -f $pgxs ]]; then
	major=$("$pg_config" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
	echo "error: $pg_config says that PGXS is $pgxs, which does not exist" >&2
	echo "hint: install PostgreSQL's development files (Debian: postgresql-server-dev-$major)," >&2
	echo "hint: or copy pg_stat_backtrace.control and sql/pg_stat_backtrace--*.sql" \
		"to $("$pg_config" --sharedir)/extension by hand" >&2
	exit 1
fi
# PGXS would look for the files beside the makefile.
exec make --no-print-directory -f scripts/pgxs.mk srcdir=. VPATH= PG_CONFIG="$pg_config" "$@"
