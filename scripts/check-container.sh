#!/usr/bin/env bash
# check-container.sh: as root, with buildah. Builds the worker's image and simulates a pod with namespaces of this
# machine. Both containers share one PID and one IPC namespace and the server's user id, and have separate root
# directories. The worker has no capabilities and no_new_privs. Its read-only root is the image, and it sees only the
# server's data volume besides. Then the script requests stacks through SQL.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/experimental.sh
source "$TOP/scripts/experimental.sh"
# shellcheck source=scripts/postgresql.sh
source "$TOP/scripts/postgresql.sh"

is_root || die "only root can make the namespaces of a pod"
make_workdir
have buildah || ! have apt-get || apt_install "the images are built with buildah" buildah
have buildah || die "buildah is not installed"
prepare_postgresql
chmod 755 "$WORK"
[[ $SERVER_USER != root ]] || die "the server needs a user"

say "Building the image"
make -s -C "$TOP" build
STORE=(--storage-driver vfs --root "$WORK/storage" --runroot "$WORK/run")
quietly buildah "${STORE[@]}" bud --isolation chroot --target prebuilt -t pg-stat-backtrace \
	-f "$TOP/packaging/container/Containerfile" "$TOP"
quietly buildah "${STORE[@]}" bud --isolation chroot --target extension -t pg-stat-backtrace-sql \
	-f "$TOP/packaging/container/Containerfile" "$TOP"
# image NAME FOLDER: the image's files as a folder.
image() {
	local container mounted
	container=$(buildah "${STORE[@]}" from --pull=never "localhost/$1")
	mounted=$(buildah "${STORE[@]}" mount "$container")
	cp -a "$mounted" "$2"
	quietly buildah "${STORE[@]}" rm "$container"
}
image pg-stat-backtrace "$WORK/image"
image pg-stat-backtrace-sql "$WORK/sql"
[[ $(cd "$WORK/image" && find . -type f) == ./usr/bin/pg_stat_backtrace ]] || die "the image has other files: $(cd "$WORK/image" && find . -type f)"
[[ -e $WORK/sql/share/extension/pg_stat_backtrace.control ]] || die "the image of the extension lacks its control file"
note "one file in the worker's image, $(find "$WORK/sql" -type f | wc -l) in the extension's"

say "A pod: server and worker"
uid=$(id -u "$SERVER_USER") gid=$(id -g "$SERVER_USER")
DATA=$WORK/data
install -d -o "$uid" -g "$gid" -m 0700 "$DATA"
as_server "$PG_BIN/initdb" -D "$DATA" -A trust -N -U postgres >/dev/null
mkdir -p "$WORK/socket" && chown "$uid" "$WORK/socket"
# The pause container: it holds the namespaces, and a tmpfs that both containers see as /dev/shm.
# shellcheck disable=SC2016
unshare --pid --fork --ipc --mount --kill-child=KILL bash -c 'mount -t proc proc /proc; mount -t tmpfs -o mode=1777 tmpfs /dev/shm; echo ok; exec sleep 3600' >"$WORK/pause" 2>/dev/null &
PAUSE_PARENT=$!
pause_up() { PAUSE=$(pgrep -P "$PAUSE_PARENT" | head -n 1) && [[ -n $PAUSE && $(cat "$WORK/pause") == ok ]]; }
until_true 20 "the pod" pause_up
end_pod() {
	local code=$?
	kill -KILL "$PAUSE" 2>/dev/null
	(exit "$code")
	cleanup
}
trap end_pod EXIT
pod() { nsenter --target "$PAUSE" --pid --ipc --mount "$@"; }
pod setpriv --reuid="$uid" --regid="$gid" --clear-groups --inh-caps=-all --bounding-set=-all \
	"$PG_BIN/postgres" -D "$DATA" -k "$WORK/socket" -h '' >"$WORK/server.log" 2>&1 &
server_up() { psql -XAtq -h "$WORK/socket" -U postgres postgres -c 'SELECT 1' >/dev/null 2>&1; }
until_true 30 "the server: $(tail -n 3 "$WORK/server.log")" server_up

# The worker's root directory: the image, read-only, with /proc, the pod's /dev/shm and the volumes. chroot drops every
# capability with the user id.
mkdir -p "$WORK/image"{/proc,/dev/shm,"$DATA","$WORK/socket"}
# shellcheck disable=SC2016
pod unshare --mount bash -c 'set -e
root=$1 data=$2 socket=$3 uid=$4 gid=$5
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev/shm "$root/dev/shm"
mount --bind "$data" "$root$data"
mount --bind "$socket" "$root$socket"
mount -o remount,bind,ro "$root"
exec setpriv --no-new-privs chroot --userspec="$uid:$gid" --groups= "$root" \
	/usr/bin/pg_stat_backtrace worker --log-format json -D "$data" "host=$socket user=postgres"
' worker "$WORK/image" "$DATA" "$WORK/socket" "$uid" "$gid" >"$WORK/worker.log" 2>&1 &
ready() { grep -q '"connected"' "$WORK/worker.log"; }
until_true 60 "the worker" ready
grep -q '"cap_sys_ptrace":false' "$WORK/worker.log" || die "the worker has a capability: $(cat "$WORK/worker.log")"
sql() { psql -XAtq -h "$WORK/socket" -U postgres postgres -c "$1"; }
sql "CREATE EXTENSION pg_stat_backtrace; CREATE ROLE oncall LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace(int) TO oncall"
stacks=$(sql "SELECT backend_type, pg_get_backtrace(pid) LIKE '#0%' FROM pg_stat_activity
	WHERE pid <> pg_backend_pid() ORDER BY 1")
[[ $stacks == *"checkpointer|t"* && $stacks != *"|f"* ]] || die "no stacks: $stacks"
checkpointer=$(sql "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
refused=$(psql -XAtq -h "$WORK/socket" -U oncall postgres -c "SELECT pg_get_backtrace($checkpointer)" 2>&1) && die "a plain role got a stack of the checkpointer"
[[ $refused == *denied* || $refused == *permission* ]] || die "another refusal: $refused"
# doctor, as `kubectl exec` runs it.
worker=$(pgrep -f "^/usr/bin/pg_stat_backtrace worker .*$DATA" | head -n 1)
doctor=$(nsenter --target "$worker" --mount --pid --ipc --root --wd --setuid "$uid" \
	--setgid "$gid" /usr/bin/pg_stat_backtrace doctor -D "$DATA" "host=$WORK/socket user=postgres" 2>&1) ||
	die "doctor reports a failure: $doctor"
for line in yama apparmor seccomp "user namespace" capability capture; do
	grep -q "$line:" <<<"$doctor" || die "doctor has no line $line: $doctor"
done
note "doctor, inside: $(grep -E '^ok +capture' <<<"$doctor" | head -n 1)"
note "$(wc -l <<<"$stacks") processes have stacks; without a capability, with a read-only root"
say "Container: all checks passed"
