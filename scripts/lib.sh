# shellcheck shell=bash
# Common parts of the scripts: messages, the cache, the user that runs the server, a private directory, and cleaning
# up. To be sourced; sets strict mode.

set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
# shellcheck disable=SC2034 # for packages.sh and others
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/pg_stat_backtrace
GO=${GO:-go}
export HOME
# libpq's variables of the caller would lead programs and tests to another server.
while read -r name; do unset "$name"; done < <(compgen -v | grep -E '^PG([A-Z]+|CONNECT_TIMEOUT)$')

# say announces a step and its purpose; note adds to it; die ends the script.
say() { printf '\n==> %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }
die() {
	printf 'error: %s\n' "$1" >&2
	shift
	local hint
	for hint in "$@"; do printf 'hint: %s\n' "$hint" >&2; done
	exit 1
}

is_root() { [[ $(id -u) -eq 0 ]]; }
have() { command -v "$1" >/dev/null 2>&1; }

# quietly runs a command and shows its output only when it fails.
quietly() {
	local output
	if ! output=$("$@" 2>&1); then
		printf '%s\n' "$output" >&2
		die "this command failed: $*"
	fi
}

# until_true SECONDS WHAT COMMAND...: repeat COMMAND until it succeeds; die when the time is over.
until_true() {
	local deadline=$((SECONDS + $1)) what=$2
	shift 2
	until "$@"; do
		((SECONDS < deadline)) || die "timed out waiting for $what"
		sleep 0.02
	done
}

# choose_server_user sets SERVER_USER and AS_SERVER, the words before a command that make it run as that user, and gives
# WORK to that user. PostgreSQL refuses to run as root. setpriv replaces itself by the command: its pid is the command's.
choose_server_user() {
	AS_SERVER=()
	SERVER_USER=${SERVER_USER:-$(id -un)}
	is_root || return 0
	if [[ $SERVER_USER == root ]]; then
		SERVER_USER=postgres
		id postgres >/dev/null 2>&1 || SERVER_USER=nobody
	fi
	local uid gid
	uid=$(id -u "$SERVER_USER")
	gid=$(id -g "$SERVER_USER")
	AS_SERVER=(setpriv "--reuid=$uid" "--regid=$gid" --init-groups)
	# Where yama guards ptrace, a worker needs the capability; root can hand it on.
	if [[ $(yama_scope) -ge 1 ]]; then
		AS_SERVER+=("--inh-caps=+sys_ptrace" "--ambient-caps=+sys_ptrace")
	fi
	AS_SERVER+=(--)
	chown "$SERVER_USER:" "$WORK"
}

# as_server COMMAND...: run it as the server's user.
as_server() { "${AS_SERVER[@]}" "$@"; }

# yama_scope prints kernel.yama.ptrace_scope, 0 where the kernel has no yama.
yama_scope() { cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo 0; }

# make_workdir makes WORK, a private directory, removed at the end. Its name is short: the path of a Unix socket must
# fit in 107 bytes.
make_workdir() {
	local base=${TMPDIR:-/tmp}
	((${#base} <= 60)) || base=/tmp
	WORK=$(mktemp -d "$base/psb.XXXXXX")
	chmod 0700 "$WORK"
	trap cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
}

STOP_PIDS=()
STOP_SERVERS=()

# stop_at_end PID: end that process (ours) when the script ends, or with -PID its group.
stop_at_end() { STOP_PIDS=("$1" "${STOP_PIDS[@]}"); }

# cleanup ends the started processes, newest first, each by its pid, and removes the private directory.
cleanup() {
	local status=$? pid data
	trap '' INT TERM
	set +e
	for pid in "${STOP_PIDS[@]}"; do
		kill -- "$pid" 2>/dev/null && wait "${pid#-}" 2>/dev/null
	done
	for data in "${STOP_SERVERS[@]}"; do
		[[ ! -e $data/postmaster.pid ]] || as_server "$PG_BIN/pg_ctl" -s -w -m immediate -D "$data" stop
	done
	if [[ $status -ne 0 && -n ${KEEP_ON_FAILURE:-} ]]; then
		printf '    kept for you to look at: %s\n' "$WORK" >&2
	else
		rm -rf "$WORK"
		[[ -z ${TESTS_MEMORY:-} ]] || { umount -l "$TESTS_MEMORY" && rmdir "$TESTS_MEMORY"; }
	fi
	exit "$status"
}

# build_program builds bin/pg_stat_backtrace and puts a copy where the server's user can run it (the checkout may be
# unreadable for that user); sets PROGRAM.
build_program() {
	have "$GO" || die "Go is not installed" "https://go.dev/dl/, or set GO=/path/to/go"
	# With the options of go test, the packages are compiled once for the program and for the tests.
	make -s -C "$TOP" build TRIMPATH=
	# shellcheck disable=SC2034 # for the callers
	PROGRAM=$WORK/pg_stat_backtrace
	install -m 0755 "$TOP/bin/pg_stat_backtrace" "$PROGRAM"
}
