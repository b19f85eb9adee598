# shellcheck shell=bash
# A Debian root directory, made by debootstrap, in which the real systemd runs in its own namespaces. To be sourced
# after packages.sh. The root of the machine is not touched.

# debian_root SUITE PACKAGES...: set ROOT to a private copy of a root directory with these packages. It starts no service.
debian_root() {
	local suite=$1 base tool=debootstrap
	shift
	base=$CACHE/root-$suite
	if [[ ! -e $base/.complete ]]; then
		if ! have debootstrap; then
			deb_unpack debootstrap debootstrap
			export DEBOOTSTRAP_DIR=$CACHE/debs/debootstrap/usr/share/debootstrap
			tool=$CACHE/debs/debootstrap/usr/sbin/debootstrap
		fi
		say "Making a Debian $suite with debootstrap (a minute): kept in $base"
		rm -rf "$base"
		mkdir -p "$base"
		debian_mirror >/dev/null # ends the script without one
		quietly "$tool" --variant=minbase "$suite" "$base" "$(debian_mirror)"
		mkdir -p "$base/etc/postgresql-common"
		echo 'create_main_cluster = false' >"$base/etc/postgresql-common/createcluster.conf"
		printf '#!/bin/sh\nexit 101\n' >"$base/usr/sbin/policy-rc.d" # start no services
		chmod 755 "$base/usr/sbin/policy-rc.d"
		DEBIAN_FRONTEND=noninteractive quietly chroot "$base" apt-get install -y -qq --no-install-recommends "$@" </dev/null
		rm "$base/usr/sbin/policy-rc.d"
		touch "$base/.complete"
	fi
	ROOT=$WORK/root
	cp -a "$base" "$ROOT"
	chmod 755 "$WORK"
}

# boot_script: what runs as the first process of the new namespaces. /tmp and /dev/shm refuse programs (noexec).
# shellcheck disable=SC2016 # expanded by the inner shell
BOOT_SCRIPT='
set -e
root=$1
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=1777,noexec,nosuid,nodev tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for d in null zero full random urandom tty; do touch "$root/dev/$d"; mount --bind "/dev/$d" "$root/dev/$d"; done
mkdir "$root/dev/shm" "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777,noexec,nosuid,nodev tmpfs "$root/dev/shm"
if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
	mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
	mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
	mkdir "$root/sys/fs/cgroup/systemd"
	mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
fi
cd "$root"
pivot_root . .
umount -l .
exec env -i container=pg_stat_backtrace PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /lib/systemd/systemd --system
'

# boot starts systemd in ROOT and waits until it runs; sets BOOTED to its process.
boot() {
	unshare --mount --pid --fork --kill-child=KILL --uts --ipc --net --cgroup bash -c "$BOOT_SCRIPT" boot "$ROOT" >"$WORK/boot.log" 2>&1 &
	BOOT_PARENT=$!
	trap end_boot EXIT
	until_true 30 "systemd (see $WORK/boot.log)" booted_child
	until_true 60 "systemd to be up" system_up
}

# end_boot ends systemd and all of its processes, with the namespace. SIGTERM would make systemd start anew.
end_boot() {
	local code=$?
	kill -KILL "$BOOTED" 2>/dev/null
	(exit "$code")
	cleanup
}

booted_child() {
	BOOTED=$(pgrep -P "$BOOT_PARENT" | head -n 1)
	[[ -n $BOOTED && $(cat "/proc/$BOOTED/comm" 2>/dev/null) == systemd ]]
}

system_up() { [[ $(inside systemctl is-system-running 2>/dev/null) =~ ^(running|degraded)$ ]]; }

# inside COMMAND...: run it in the booted root. as_postgres: as the server's user.
inside() { timeout 120 nsenter --target "$BOOTED" --mount --pid --net --ipc --uts --root --wd env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
as_postgres() { inside setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }
