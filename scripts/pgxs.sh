#!/usr/bin/env bash
# pgxs.sh install|uninstall [DESTDIR=dir]: copy the extension's files to the folders of PG_CONFIG's PostgreSQL, or
# remove them. PGXS does this if it is installed (Debian has it in postgresql-server-dev-NN, with a compiler).
# Otherwise the script copies the files, because there is nothing to build.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
pg_config=${PG_CONFIG:-pg_config}

if ! command -v "$pg_config" >/dev/null || ! "$pg_config" --version >/dev/null 2>&1; then
	echo "error: $pg_config does not work" >&2
	echo "hint: set PG_CONFIG to the pg_config of the PostgreSQL to install for, such as" \
		"/usr/lib/postgresql/15/bin/pg_config" >&2
	exit 1
fi
if [[ -f $("$pg_config" --pgxs) ]]; then
	# Without srcdir, PGXS would search the files beside the makefile.
	exec make --no-print-directory -f scripts/pgxs.mk srcdir=. VPATH= PG_CONFIG="$pg_config" "$@"
fi

action=$1
destdir=
for word in "${@:2}"; do
	case $word in DESTDIR=*) destdir=${word#DESTDIR=} ;; esac
done
dir=$destdir$("$pg_config" --sharedir)/extension
echo "no PGXS here: ${action}ing the extension's files, in $dir"
case $action in
install)
	install -d "$dir"
	install -m 0644 pg_stat_backtrace.control sql/pg_stat_backtrace--*.sql "$dir/"
	;;
uninstall) rm -f "$dir"/pg_stat_backtrace.control "$dir"/pg_stat_backtrace--*.sql ;;
*)
	echo "error: $action: not without PGXS" >&2
	exit 1
	;;
esac
