#!/usr/bin/env bash
# check-packages.sh: as root on Debian or a relative. Builds the packages twice and compares them, and runs lintian.
# Installs, upgrades, removes and purges the deb and rpm packages in a root directory with a real systemd, a real
# server and a worker under load. Repeats this without systemd. /tmp and /dev/shm of that root are noexec, and the
# unit makes everything except the data directory read-only. CHECK_SUITE: the distribution (bookworm).

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/booted.sh
source "$TOP/scripts/booted.sh"

SUITE=${CHECK_SUITE:-bookworm}
MAJOR=15
UNIT=pg_stat_backtrace@15-main

is_root || die "only root can make root directories and start systemd in them"
make_workdir

# build VERSION FOLDER [SOURCE]: packages of this version.
build() {
	PACKAGE_VERSION=$1 SOURCE_DATE_EPOCH=$EPOCH quietly "${3:-$TOP}/packaging/nfpm/build.sh" "$2"
}

EPOCH=$(git -c safe.directory="$TOP" -C "$TOP" log -1 --format=%ct)
VERSION=$(sed -n 's/^VERSION *:= *//p' "$TOP/Makefile")

say "Building the packages twice, the second time from a copy in another folder"
build "$VERSION" "$WORK/a"
mkdir "$WORK/source"
(cd "$TOP" && git -c safe.directory="$TOP" ls-files -z --cached --others --exclude-standard |
	tar --create --null --files-from=- | tar -x -C "$WORK/source")
build "$VERSION" "$WORK/b" "$WORK/source"
diff "$WORK/a/SHA256SUMS" "$WORK/b/SHA256SUMS" || die "two builds differ"
note "$(wc -l <"$WORK/a/SHA256SUMS") packages, each built twice, byte for byte the same"
PACKAGE_ARCHS=amd64 PACKAGE_MAJORS=$MAJOR build 1.9.9 "$WORK/next"

say "lintian"
if have lintian; then
	lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$WORK"/a/*.deb || die "lintian has complaints"
	note "no error and no warning beyond the overrides in packaging/nfpm/deb"
else
	note "lintian is not installed: not run"
fi

say "apk"
apk=$WORK/a/pg-stat-backtrace_${VERSION}-r1_x86_64.apk
tar -tzf "$apk" --ignore-zeros >"$WORK/apk.list" 2>/dev/null || die "the apk package is no archive of tar"
for file in .PKGINFO .post-install .post-upgrade .pre-deinstall usr/bin/pg_stat_backtrace etc/init.d/pg_stat_backtrace etc/conf.d/pg_stat_backtrace; do
	grep -qx "$file" "$WORK/apk.list" || die "the apk package lacks $file"
done
(cd "$TOP/packaging/tools" && "$GO" run ./apkheaders "$WORK"/a/*.apk) || die "apk would refuse a package"
note "contents complete, numbers of the headers octal"

# apk_root: an empty root with a shell, for the packages' scripts. Sets APK_ROOT.
apk_root() {
	local name
	deb_unpack busybox-static busybox-static
	APK_ROOT=$WORK/alpine
	mkdir -p "$APK_ROOT/bin"
	cp "$CACHE/debs/busybox-static/bin/busybox" "$APK_ROOT/bin/"
	for name in sh echo; do ln -s busybox "$APK_ROOT/bin/$name"; done
}

# apk_ COMMAND...: apk on that root, without Alpine's repositories.
apk_() { quietly "$APK" "$1" --root "$APK_ROOT" --arch x86_64 --no-network --allow-untrusted "${@:2}"; }

# apk_version prints the version of the worker that is installed there.
apk_version() { "$APK" list --root "$APK_ROOT" --installed pg-stat-backtrace 2>/dev/null | cut -d' ' -f1; }

# check_apk installs, upgrades and removes the packages with apk itself. A package that stands for the server satisfies
# the dependency of the SQL files.
check_apk() {
	local said sql=usr/share/postgresql$MAJOR/extension/pg_stat_backtrace.control
	apk_root
	apk_ add --initdb "$apk"
	[[ $(apk_version) == "pg-stat-backtrace-$VERSION-r1" ]] || die "apk has not installed the package"
	[[ $("$APK_ROOT/usr/bin/pg_stat_backtrace" --version) == *"$VERSION"* ]] || die "the installed program does not run"
	! "$APK" add --root "$APK_ROOT" --arch x86_64 --no-network --allow-untrusted "$WORK/a/postgresql$MAJOR-"*.apk \
		>/dev/null 2>&1 || die "the SQL files were installed without a server"
	printf 'name: postgresql%s\narch: x86_64\nversion: %s.0\ndescription: stands for the server\n' $MAJOR $MAJOR >"$WORK/server.yaml"
	(cd "$TOP/packaging/tools" && quietly "$GO" tool nfpm package -f "$WORK/server.yaml" -p apk -t "$WORK/server.apk")
	apk_ add "$WORK/server.apk" "$WORK/a/postgresql$MAJOR-"*.apk
	[[ -e $APK_ROOT/$sql ]] || die "the apk package has no extension files"
	said=$("$APK" add --root "$APK_ROOT" --arch x86_64 --no-network --allow-untrusted \
		"$WORK/next/pg-stat-backtrace_1.9.9-r1_x86_64.apk" 2>&1) || die "the upgrade failed: $said"
	[[ $(apk_version) == pg-stat-backtrace-1.9.9-r1 ]] || die "apk has not upgraded the package"
	[[ $said == *"no OpenRC here"* ]] || die "the upgrade does not mention running workers: $said"
	apk_ del pg-stat-backtrace "postgresql$MAJOR-pg_stat_backtrace"
	said=$(find "$APK_ROOT" -iname '*pg?stat?backtrace*')
	[[ -z $said ]] || die "left after the removal: $said"
	note "$("$APK" --version | cut -d, -f1): installed, upgraded and removed; nothing is left"
}

APK=${APK:-$(command -v apk || true)}
if [[ -n $APK ]]; then
	check_apk
else
	note "no apk here (Debian has no apk-tools; APK=PATH): not installed"
fi

say "AppArmor"
if have apparmor_parser; then
	apparmor_parser -Q -K "$TOP/packaging/apparmor/pg_stat_backtrace" 2>"$WORK/apparmor.log" || die "$(cat "$WORK/apparmor.log")"
	note "the profile compiles (it is not loaded)"
else
	note "apparmor_parser is not installed: the profile is not compiled"
fi

deb() { echo "/packages/$1/pg-stat-backtrace_$2-1_amd64.deb /packages/$1/postgresql-$MAJOR-pg-stat-backtrace_$2-1_all.deb"; }
sql() { as_postgres psql -XAtq -h /var/run/postgresql postgres -c "$1"; }
main_pid() { inside systemctl show -p MainPID --value "$1"; }
# until_answers UNIT: wait until its worker answers.
until_answers() {
	local deadline=$((SECONDS + 60))
	until answers; do
		((SECONDS < deadline)) || die "no answer: $(inside journalctl --no-pager -n 20 -u "$1")"
		sleep 0.1
	done
}
answers() { sql "SELECT pg_get_backtrace(pid) LIKE '#0%' FROM pg_stat_activity WHERE backend_type = 'checkpointer'" 2>/dev/null | grep -qx t; }
runs_version() { [[ $(sed -n 5p "$ROOT/var/lib/postgresql/15/main/pg_stat_backtrace.pid" 2>/dev/null) == "$1" ]]; }

debian_root "$SUITE" systemd dbus "postgresql-$MAJOR" rpm
mkdir "$ROOT/packages"
cp -r "$WORK/a" "$WORK/next" "$ROOT/packages/"

say "Debian $SUITE with systemd: install"
boot
inside pg_createcluster $MAJOR main >/dev/null
inside systemctl start postgresql@15-main
# shellcheck disable=SC2046 # two names
quietly inside dpkg -i $(deb a "$VERSION")
inside systemctl enable -q $UNIT
inside systemctl start --no-block $UNIT
sql "CREATE EXTENSION pg_stat_backtrace"
until_answers $UNIT
note "the unit runs, an extension of $(sql "SELECT extversion FROM pg_extension WHERE extname = 'pg_stat_backtrace'") answers"
inside man -w pg_stat_backtrace >/dev/null 2>&1 || [[ -e $ROOT/usr/share/man/man1/pg_stat_backtrace.1.gz || -e $ROOT/etc/dpkg/dpkg.cfg.d/docker ]] || die "no manual page"
for file in doc/pg-stat-backtrace/manual/{first-minute.md,schemas/top.schema.json} pg_stat_backtrace/grafana/alerts.yaml pg_stat_backtrace/apparmor/pg_stat_backtrace; do
	[[ -e $ROOT/usr/share/$file || ($file == doc/* && -e $ROOT/etc/dpkg/dpkg.cfg.d/docker) ]] || die "the package lacks /usr/share/$file"
done
inside bash -n /usr/share/bash-completion/completions/pg_stat_backtrace
! have zsh || zsh -n "$ROOT/usr/share/zsh/vendor-completions/_pg_stat_backtrace"
! have fish || fish --no-execute "$ROOT/usr/share/fish/vendor_completions.d/pg_stat_backtrace.fish"
doctor=$(as_postgres pg_stat_backtrace doctor -D /var/lib/postgresql/15/main 2>&1) || die "doctor failed: $doctor"

say "A second worker for the same cluster"
if second=$(as_postgres timeout 20 pg_stat_backtrace worker --log-format json -D /var/lib/postgresql/15/main 2>&1); then
	die "a second worker ran"
fi
[[ $second == *"another worker"* || $second == *"serves"* ]] || die "the second worker gives no reason: $second"
note "$(tail -n 1 <<<"$second")"

# load SECONDS: requests of both kinds, until a file disappears. Results: /tmp/waiting, /tmp/queued in the root.
start_load() {
	inside mkdir -p /var/tmp/load
	inside chown postgres: /var/tmp/load
	touch "$ROOT/var/tmp/load/on"
	# shellcheck disable=SC2016
	as_postgres bash -c 'cd /var/tmp/load; while [ -e on ]; do echo "SELECT pg_get_backtrace(pid) LIKE '"'#0%'"' FROM pg_stat_activity WHERE backend_type = '"'checkpointer'"';"; sleep 0.01; done |
		psql -XAtq -h /var/run/postgresql postgres >waiting 2>&1' &
	LOAD1=$!
	# shellcheck disable=SC2016
	as_postgres bash -c 'cd /var/tmp/load; while [ -e on ]; do echo "SELECT pg_request_backtrace(pid) FROM pg_stat_activity WHERE backend_type = '"'checkpointer'"';"; sleep 0.01; done |
		psql -XAtq -h /var/run/postgresql postgres >queued 2>&1' &
	LOAD2=$!
}

all_done() { [[ $(sql "SELECT count(*) FROM backtrace.request WHERE kind = 'queued' AND state = 'queued'") == 0 ]]; }

# end_load HOW: stop the load and judge it.
end_load() {
	local queued good bad other
	sleep 1
	rm "$ROOT/var/tmp/load/on"
	wait "$LOAD1" "$LOAD2"
	until_true 60 "the queue to be empty" all_done
	queued=$(grep -cE '^[0-9]+$' "$ROOT/var/tmp/load/queued")
	[[ $(sql "SELECT count(*) FROM backtrace.request WHERE kind = 'queued' AND state = 'done'") == "$queued" ]] ||
		die "of $queued queued requests, not all were answered"
	! grep -q '^ERROR' "$ROOT/var/tmp/load/queued" || die "a queued request was refused"
	good=$(grep -cx t "$ROOT/var/tmp/load/waiting")
	bad=$(grep -c '^ERROR' "$ROOT/var/tmp/load/waiting") || true
	other=$(grep '^ERROR' "$ROOT/var/tmp/load/waiting" | grep -cv 'worker') || true
	[[ $other -eq 0 && $good -gt 0 ]] || die "waiting calls failed: $(grep '^ERROR' "$ROOT/var/tmp/load/waiting" | sort | uniq -c)"
	note "$1: $queued queued requests, all answered; $good waiting calls answered, $bad refused at once because the worker did not run"
	sql "DELETE FROM backtrace.request"
}

say "Upgrade under load"
before=$(main_pid $UNIT)
start_load
sleep 1
# shellcheck disable=SC2046
quietly inside dpkg -i $(deb next 1.9.9)
until_true 60 "the new worker" runs_version 1.9.9
[[ $(main_pid $UNIT) != "$before" ]] || die "the upgrade restarted nothing"
end_load "deb, 1.2 to 1.9.9"

say "Upgrade, while no worker is active"
inside systemctl stop $UNIT
# shellcheck disable=SC2046
quietly inside dpkg -i $(deb a "$VERSION")
[[ $(inside systemctl is-active $UNIT) == inactive ]] || die "the upgrade started a worker that was stopped"
inside systemctl start $UNIT
until_answers $UNIT

say "Upgrade and restart, while the server is stopped"
inside systemctl stop postgresql@15-main
before=$(main_pid $UNIT)
# shellcheck disable=SC2046
quietly inside dpkg -i $(deb next 1.9.9) # it has a limit of two minutes
[[ $(main_pid $UNIT) != "$before" && $(inside systemctl is-active $UNIT) == active ]] ||
	die "without a server, the upgrade did not restart the worker"
quietly inside systemctl restart $UNIT
inside systemctl kill -s HUP $UNIT
inside systemctl start postgresql@15-main
until_answers $UNIT
# shellcheck disable=SC2046
quietly inside dpkg -i $(deb a "$VERSION")
until_answers $UNIT
note "the upgrade does not wait for the server; a worker outlives a hangup"

say "One service for every cluster"
inside systemctl disable -q --now $UNIT
inside pg_createcluster $MAJOR other >/dev/null
inside systemctl start postgresql@15-other
sql_other() { as_postgres psql -XAtq -h /var/run/postgresql -p 5433 postgres -c "$1"; }
sql_other "CREATE EXTENSION pg_stat_backtrace"
other_answers() { sql_other "SELECT pg_get_backtrace(pid) LIKE '#0%' FROM pg_stat_activity WHERE backend_type = 'checkpointer'" 2>/dev/null | grep -qx t; }
inside systemctl enable -q --now pg_stat_backtrace-all
until_answers pg_stat_backtrace-all
until_true 60 "an answer of the other cluster" other_answers
before=$(main_pid pg_stat_backtrace-all)
# shellcheck disable=SC2046
quietly inside dpkg -i $(deb next 1.9.9)
until_true 60 "the new worker" runs_version 1.9.9
until_true 60 "an answer of the other cluster" other_answers
[[ $(main_pid pg_stat_backtrace-all) != "$before" ]] || die "the upgrade did not restart pg_stat_backtrace-all"
inside systemctl disable -q --now pg_stat_backtrace-all
[[ ! -e $ROOT/var/lib/postgresql/15/main/pg_stat_backtrace.pid ]] || die "a worker is left"
inside pg_dropcluster --stop $MAJOR other
# shellcheck disable=SC2046
quietly inside dpkg -i $(deb a "$VERSION")
inside systemctl enable -q $UNIT
inside systemctl start --no-block $UNIT
until_answers $UNIT
note "both clusters have answers; an upgrade restarts the service"

say "Remove, and purge"
quietly inside dpkg --remove pg-stat-backtrace
[[ $(inside systemctl is-active $UNIT) != active ]] || die "the worker runs without its package"
[[ ! -e $ROOT/usr/bin/pg_stat_backtrace && ! -e $ROOT/var/lib/postgresql/15/main/pg_stat_backtrace.pid ]] ||
	die "files are left after the removal"
[[ -z $(inside find /dev/shm -name 'pg_stat_backtrace*') ]] || die "a spool is left after the removal"
quietly inside dpkg --purge pg-stat-backtrace "postgresql-$MAJOR-pg-stat-backtrace"
left=$(inside find / -xdev -iname '*pg?stat?backtrace*' ! -path '/packages/*' ! -path '/var/tmp/*' ! -path '/sys/*' ! -path '/proc/*' \
	! -path '/var/lib/pg_stat_backtrace*')
[[ -z $left ]] || die "left after purge: $left"
note "only the history is left"

say "The C extension's package has the same name"
c=$WORK/c-extension
mkdir -p "$c/DEBIAN" "$c/usr/lib/postgresql/$MAJOR/lib"
echo "stands for a module" >"$c/usr/lib/postgresql/$MAJOR/lib/pg_stat_backtrace.so"
printf 'Package: postgresql-%s-pg-stat-backtrace\nVersion: 1.0-1\nArchitecture: all\nMaintainer: another <a@b.invalid>\nDescription: C extension\n' $MAJOR >"$c/DEBIAN/control"
dpkg-deb -Zgzip -b "$c" "$ROOT/packages/c.deb" >/dev/null
quietly inside dpkg -i /packages/c.deb
if refused=$(inside dpkg -i "/packages/a/postgresql-$MAJOR-pg-stat-backtrace_$VERSION-1_all.deb" 2>&1); then
	die "the package replaced the C extension's"
fi
grep -q 'DROP EXTENSION' <<<"$refused" || die "no hint: $refused"
[[ -e $ROOT/usr/lib/postgresql/$MAJOR/lib/pg_stat_backtrace.so ]] || die "the C extension's module is gone"
quietly inside dpkg --purge "postgresql-$MAJOR-pg-stat-backtrace"
note "$(grep 'C extension' <<<"$refused" | head -n 1)"

say "rpm: install, upgrade under load, remove"
quietly inside dpkg -i "/packages/a/postgresql-$MAJOR-pg-stat-backtrace_$VERSION-1_all.deb" # SQL files where this server looks
inside ln -s /var/lib/postgresql/15/main /var/lib/pgsql-data
inside install -d -o postgres /var/lib/pgsql/15
inside ln -s /var/lib/postgresql/15/main /var/lib/pgsql/15/data
mkdir -p "$ROOT/etc/systemd/system/pg_stat_backtrace@15.service.d"
printf '[Service]\nReadWritePaths=/var/lib/postgresql/15/main\n' >"$ROOT/etc/systemd/system/pg_stat_backtrace@15.service.d/data.conf"
rpm_() { inside rpm --nodeps --nosignature "$@"; }
quietly rpm_ -i "/packages/a/pg-stat-backtrace-$VERSION-1.x86_64.rpm" "/packages/a/pg_stat_backtrace_$MAJOR-$VERSION-1.noarch.rpm"
[[ -e $ROOT/usr/pgsql-15/share/extension/pg_stat_backtrace.control ]] || die "the rpm has no extension files"
inside systemctl enable -q pg_stat_backtrace@15
inside systemctl start --no-block pg_stat_backtrace@15
until_answers $UNIT
start_load
sleep 1
quietly rpm_ -U "/packages/next/pg-stat-backtrace-1.9.9-1.x86_64.rpm"
until_true 60 "the new worker" runs_version 1.9.9
end_load "rpm, $VERSION to 1.9.9"
[[ -n $(inside find /etc/systemd/system -name 'pg_stat_backtrace@15.service' -type l) ]] || die "the old package's postun disabled the unit"
inside mkdir -p /usr/pgsql-15/lib
echo "stands for a module" >"$ROOT/usr/pgsql-15/lib/pg_stat_backtrace.so"
if rpm_ -U "/packages/next/pg_stat_backtrace_$MAJOR-1.9.9-1.noarch.rpm" >/dev/null 2>&1; then die "the rpm replaced the C extension"; fi
rm "$ROOT/usr/pgsql-15/lib/pg_stat_backtrace.so"
quietly rpm_ -e pg-stat-backtrace pg_stat_backtrace_$MAJOR
[[ $(inside systemctl is-active pg_stat_backtrace@15) != active && ! -e $ROOT/usr/bin/pg_stat_backtrace ]] || die "the rpm's worker is left"
rm -r "$ROOT/etc/systemd/system/pg_stat_backtrace@15.service.d"
left=$(inside find / -xdev -iname '*pg?stat?backtrace*' ! -path '/packages/*' ! -path '/var/tmp/*' ! -path '/sys/*' ! -path '/proc/*' \
	! -path '/usr/share/*' ! -path '/var/lib/dpkg/*' ! -path '/var/lib/pg_stat_backtrace*')
[[ -z $left ]] || die "left after the removal: $left"
note "only the history is left"

say "Without systemd: install, upgrade while a worker runs, purge"
inside systemctl start postgresql@15-main
inside mount -t tmpfs none /run/systemd # hides /run/systemd/system, by which scripts recognise systemd
# shellcheck disable=SC2046
quietly inside dpkg -i $(deb a "$VERSION")
as_postgres pg_stat_backtrace worker --log-format json -D /var/lib/postgresql/15/main >"$WORK/worker.log" 2>&1 &
until_answers $UNIT
# shellcheck disable=SC2046
said=$(inside dpkg -i $(deb next 1.9.9) 2>&1) || die "the upgrade failed: $said"
grep -q 'no systemd here: restart the workers' <<<"$said" || die "the upgrade does not mention the running worker: $said"
answers || die "the worker of the removed file does not answer"
quietly inside dpkg --purge pg-stat-backtrace "postgresql-$MAJOR-pg-stat-backtrace"
note "$(grep 'no systemd' <<<"$said")"
say "Packages: all checks passed"
