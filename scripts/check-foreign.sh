#!/usr/bin/env bash
# Tests another distribution's PostgreSQL in a folder made by debootstrap(8). The worker stays outside of the chroot,
# and the stacks in SQL must have the names of that distribution's build. Runs as root, on Debian or a relative, with
# a network. It takes some minutes to create the folder, which is kept in the cache directory.
#
# FOREIGN_SUITE: the distribution's name (trixie). FOREIGN_VERSION: its PostgreSQL (17). FOREIGN_ROOT: an existing
# folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
# shellcheck source=scripts/packages.sh
source scripts/packages.sh

# bootstrap SUITE FOLDER: runs debootstrap, which is unpacked into the cache if the machine has none.
bootstrap() {
	local unpacked=$CACHE/debs/debootstrap
	if ! have debootstrap; then
		deb_unpack debootstrap debootstrap
		export DEBOOTSTRAP_DIR=$unpacked/usr/share/debootstrap PATH=$unpacked/usr/sbin:$PATH
	fi
	say "Making $2 with debootstrap (some minutes): kept for the next run"
	debian_mirror >/dev/null # ends the script without one
	debootstrap --variant=minbase "$1" "$2" "$(debian_mirror)"
}

suite=${FOREIGN_SUITE:-trixie} version=${FOREIGN_VERSION:-17}
root=${FOREIGN_ROOT:-$CACHE/$suite}
[ "$(id -u)" = 0 ] || { echo "check-foreign: only root can make a folder to chroot into" >&2; exit 1; }

if [ ! -x "$root/usr/lib/postgresql/$version/bin/postgres" ]; then
	mkdir -p "$root"
	[ -x "$root/usr/bin/apt-get" ] || bootstrap "$suite" "$root"
	printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # start no services
	chmod 755 "$root/usr/sbin/policy-rc.d"
	mkdir -p "$root/etc/postgresql-common"
	echo 'create_main_cluster = false' >"$root/etc/postgresql-common/createcluster.conf"
	DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install -y -qq --no-install-recommends "postgresql-$version" </dev/null
fi
echo "==> $(sed -n 's/^PRETTY_NAME=//p' "$root/etc/os-release"), $(chroot "$root" "/usr/lib/postgresql/$version/bin/postgres" --version)"
PGSB_FOREIGN_ROOT=$root PGSB_FOREIGN_BINDIR=/usr/lib/postgresql/$version/bin \
	go test -count=1 -v -run '^TestForeign$' ./internal/places
