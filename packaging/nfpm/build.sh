#!/usr/bin/env bash
# build.sh [FOLDER]: the packages of every format below FOLDER (default dist/packages), and SHA256SUMS of them. The same
# source, version and SOURCE_DATE_EPOCH make the same bytes. SOURCE_DATE_EPOCH is the time of the last commit if it is
# not set. PACKAGE_ARCHS ("amd64 arm64", this machine's first), PACKAGE_MAJORS ("14 ... 18"), PACKAGE_FORMATS ("deb rpm apk") and
# PACKAGE_VERSION choose the packages and their version.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

FOLDER=${1:-$TOP/dist/packages}
# The packages of this machine come first, and are complete before the others are begun.
case $(uname -m) in
aarch64) DEFAULT_ARCHS="arm64 amd64" ;;
*) DEFAULT_ARCHS="amd64 arm64" ;;
esac
read -ra ARCHS <<<"${PACKAGE_ARCHS:-$DEFAULT_ARCHS}"
read -ra MAJORS <<<"${PACKAGE_MAJORS:-14 15 16 17 18}"
read -ra FORMATS <<<"${PACKAGE_FORMATS:-deb rpm apk}"
export PACKAGE_VERSION=${PACKAGE_VERSION:-$(sed -n 's/^VERSION *:= *//p' "$TOP/Makefile")}
export PACKAGE_MAINTAINER=${PACKAGE_MAINTAINER:-pg_stat_backtrace developers <pg-stat-backtrace@lists.invalid>}
export PACKAGE_HOMEPAGE=${PACKAGE_HOMEPAGE:-}
export LC_ALL=C TZ=UTC
unset GOFLAGS GOEXPERIMENT GOAMD64 GOARM64
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
	SOURCE_DATE_EPOCH=$(git -c safe.directory="$TOP" -C "$TOP" log -1 --format=%ct 2>/dev/null) ||
		die "no commit to take the packages' time from" "set SOURCE_DATE_EPOCH to seconds since 1970"
fi
export SOURCE_DATE_EPOCH
umask 022

make_workdir
export BUILD=$WORK/build
mkdir -p "$BUILD/doc" "$FOLDER"
FOLDER=$(cd "$FOLDER" && pwd)

# changelog NAME: the package's own changelog, which Debian wants.
changelog() {
	mkdir -p "$BUILD/doc/$1"
	printf '%s (%s-1) unstable; urgency=medium\n\n  * Package version %s: see changelog.gz.\n\n -- %s  %s\n' \
		"$1" "$PACKAGE_VERSION" "$PACKAGE_VERSION" "$PACKAGE_MAINTAINER" "$(date -R -d "@$SOURCE_DATE_EPOCH")" |
		gzip -9 --no-name >"$BUILD/doc/$1/changelog.Debian.gz"
}

# unit FORMAT DATA AFTER ETC: the unit for a distribution whose data directories are DATA, and whose servers' units are
# AFTER. Options are in ETC.
unit() {
	mkdir -p "$BUILD/$1"
	sed -e 's|/usr/local/bin/|/usr/bin/|' -e "s|/var/lib/postgresql/%I|$2|g" -e "s|^After=.*|After=$3|" -e "s|/etc/default/|$4/|" \
		"$TOP/packaging/nfpm/$1/unit.head" <(sed '1,/^$/d' "$TOP/systemd/pg_stat_backtrace@.service") >"$BUILD/$1/unit"
	sed -e 's|/usr/local/bin/|/usr/bin/|' -e "s|/etc/default/|$4/|" "$TOP/systemd/pg_stat_backtrace-all.service" >"$BUILD/$1/all"
}

# manual puts the manual, the dashboards and the alerts into BUILD.
manual() {
	mkdir -p "$BUILD/manual/images" "$BUILD/manual/internals" "$BUILD/grafana"
	cp "$TOP"/README.md "$TOP"/SECURITY.md "$TOP"/doc/*.md "$BUILD/manual/"
	cp "$TOP"/doc/images/* "$BUILD/manual/images/"
	cp "$TOP"/doc/internals/* "$BUILD/manual/internals/"
	cp -r "$TOP"/doc/schemas "$BUILD/manual/"
	sed -i 's#](doc/#](#g' "$BUILD/manual/README.md"
	sed -i 's#](\.\./\(README\|SECURITY\)\.md#](\1.md#g' "$BUILD"/manual/*.md
	sed -i 's#](\.\./\.\./\(README\|SECURITY\)\.md#](../\1.md#g' "$BUILD"/manual/internals/*.md
	cp "$TOP"/packaging/grafana/{fleet.json,server.json,alerts.yaml} "$BUILD/grafana/"
	find "$BUILD/manual" "$BUILD/grafana" -type f -exec chmod 644 {} +
}

# package CONFIG FORMAT: run nfpm in a copy of this folder.
package() {
	find "$WORK" -newer "$WORK/nfpm" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} + # apk packages hold the scripts' times
	(cd "$WORK/stage/packaging/nfpm" && "$WORK/nfpm" package --config "$1" --packager "$2" --target "$FOLDER/" >"$WORK/log" 2>&1) ||
		die "nfpm failed: $(cat "$WORK/log")"
}

# template FILE: a script with the major version in it, below BUILD.
template() {
	mkdir -p "$BUILD/scripts-$MAJOR"
	sed "s/@MAJOR@/$MAJOR/g" "$TOP/packaging/nfpm/$1" >"$BUILD/scripts-$MAJOR/${1##*/}"
}

say "Building the package tool, manual pages and completions"
(cd "$TOP/packaging/tools" && "$GO" build -o "$WORK/nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm)
(cd "$TOP" && scripts/tool.sh manpages -version "$PACKAGE_VERSION" \
	-date "$(date -d "@$SOURCE_DATE_EPOCH" +%F)" "$BUILD")
gzip -9 --no-name "$BUILD"/man1/*.1
gzip -9 --no-name <"$TOP/CHANGELOG.md" >"$BUILD/doc/changelog.gz"
{ cat "$TOP/packaging/nfpm/deb/copyright.head" && sed '1,2d; s/^$/./; s/^/ /' "$TOP/LICENSE"; } >"$BUILD/doc/copyright"
unit deb '/var/lib/postgresql/%I' 'postgresql@%i.service postgresql.service' /etc/default
unit rpm '/var/lib/pgsql/%i/data' 'postgresql-%i.service postgresql.service' /etc/sysconfig

mkdir -p "$WORK/stage/packaging"
cp -r "$TOP"/packaging/{nfpm,apparmor} "$WORK/stage/packaging/"
cp -r "$TOP"/{LICENSE,CHANGELOG.md,pg_stat_backtrace.control,sql} "$WORK/stage/"
manual

for ARCH in "${ARCHS[@]}"; do
	export ARCH
	say "Building the program and its packages for $ARCH: ${FORMATS[*]}"
	GOOS=linux GOARCH=$ARCH make -s -C "$TOP" build VERSION="$PACKAGE_VERSION" OUT="$BUILD/bin-$ARCH/pg_stat_backtrace"
	for FORMAT in "${FORMATS[@]}"; do
		export FORMAT ZSH_FUNCTIONS=/usr/share/zsh/site-functions
		[[ $FORMAT != deb ]] || ZSH_FUNCTIONS=/usr/share/zsh/vendor-completions
		changelog pg-stat-backtrace
		package worker.yaml "$FORMAT"
	done
done

say "Building the packages of the extension: ${FORMATS[*]}"
for FORMAT in "${FORMATS[@]}"; do
	export FORMAT
	for MAJOR in "${MAJORS[@]}"; do
		export MAJOR PACKAGE EXTENSIONS
		case $FORMAT in
		deb) PACKAGE=postgresql-$MAJOR-pg-stat-backtrace EXTENSIONS=/usr/share/postgresql/$MAJOR/extension ;;
		rpm) PACKAGE=pg_stat_backtrace_$MAJOR EXTENSIONS=/usr/pgsql-$MAJOR/share/extension ;;
		apk) PACKAGE=postgresql$MAJOR-pg_stat_backtrace EXTENSIONS=/usr/share/postgresql$MAJOR/extension ;;
		esac
		changelog "$PACKAGE"
		sed "s/@PACKAGE@/$PACKAGE/g" "$TOP/packaging/nfpm/deb/extension.lintian-overrides" \
			>"$BUILD/doc/$PACKAGE/lintian-overrides"
		template deb/extension.preinst
		template rpm/extension.pre
		template apk/extension.pre-install
		sed -E "s#: \"(deb|rpm|apk)/extension#: \"$BUILD/scripts-$MAJOR/extension#" \
			"$TOP/packaging/nfpm/extension.yaml" >"$WORK/extension.yaml"
		package "$WORK/extension.yaml" "$FORMAT"
	done
done
rm -f "$FOLDER/SHA256SUMS"
(cd "$FOLDER" && sha256sum -- * >"$WORK/sums" && mv "$WORK/sums" SHA256SUMS)
note "$(wc -l <"$FOLDER/SHA256SUMS") packages in $FOLDER"
