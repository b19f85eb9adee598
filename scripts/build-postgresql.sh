#!/usr/bin/env bash
# build-postgresql.sh [debug|musl|musl-arm64]: builds PostgreSQL from Debian's source package, once, and prints the
# folder of its programs. debug: with debug information (-g -O2), for tests of lines and inlined calls; packaged
# servers do not contain it. musl: with musl, Alpine's C library, which no Debian package uses. musl-arm64: for
# aarch64, with that library beside it as lib/ld-musl-aarch64.so.1. Takes some minutes; the result is kept in the
# cache. Needs gcc (musl-gcc, aarch64-linux-gnu-gcc), make and apt-get, and no root.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/arch.sh
source "$TOP/scripts/arch.sh"

VARIANT=${1:-debug}
case $VARIANT in
	debug) COMPILER=(CFLAGS='-g -O2') TOOLS=(gcc make apt-get) ;;
	musl) COMPILER=(CC=musl-gcc CFLAGS=-O2) TOOLS=(gcc musl-gcc make apt-get) ;;
	musl-arm64) COMPILER=() TOOLS=(aarch64-linux-gnu-gcc make apt-get) ;;
	*) die "usage: $0 [debug|musl|musl-arm64]" ;;
esac
DEST=$CACHE/$VARIANT-postgresql

# compile: build with make(1) and install below the folder $1. pg_upgrade needs the kernel's headers, which musl-gcc
# does not have. It is not built, and not needed.
compile() {
	if [[ $VARIANT = musl* ]]; then
		sed -i 's/^\tpg_upgrade \\$/\t\\/' src/bin/Makefile
	fi
	# The programs find their libraries after the folder was copied. The system's library paths do not contain musl's.
	local options=(-s "LDFLAGS_EX=-Wl,-rpath,'\$\$ORIGIN/../lib'")
	# If another make(1) calls PostgreSQL's make, that believes it is part of a larger build, and leaves files out.
	quietly nice env -u MAKELEVEL -u MAKEFLAGS make "${options[@]}" -j2
	quietly nice env -u MAKELEVEL -u MAKEFLAGS make "${options[@]}" install DESTDIR="$1"
}

# source_options prints the options that let apt-get download source packages: a private list of the places that the
# machine's own list names, as sources.
source_options() {
	local dir=$CACHE/apt-source file
	mkdir -p "$dir/lists/partial" "$dir/archives/partial" "$dir/sources"
	for file in /etc/apt/sources.list.d/*.sources; do
		[[ ! -e $file ]] || sed 's/^Types:.*/Types: deb-src/' "$file" >"$dir/sources/${file##*/}"
	done
	if [[ -s /etc/apt/sources.list ]]; then
		sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$dir/sources/main.list"
	fi
	printf '%s\n' -o "Dir::State::lists=$dir/lists" -o "Dir::Cache=$dir" -o Dir::Etc::sourcelist=/dev/null \
		-o "Dir::Etc::sourceparts=$dir/sources" -o Debug::NoLocking=1 -o APT::Sandbox::User=root
}

# download_source DIR PACKAGE: the newest available version; an archive may list a version that it does not have.
download_source() {
	local dir=$1 package=$2 version options
	mapfile -t options < <(source_options)
	cd "$dir"
	while read -r version; do
		if apt-get "${options[@]}" source --download-only "$package=$version" >"$dir/apt.log" 2>&1; then return 0; fi
	done < <(apt-cache "${options[@]}" showsrc "$package" | sed -n 's/^Version: //p' | sort -rVu)
	cat "$dir/apt.log" >&2
	return 1
}

# cross_musl DIR: musl of aarch64 below DIR/musl, and a compiler for it, which COMPILER gets.
cross_musl() {
	local dir=$1 options deb lib=usr/lib/aarch64-linux-musl include=usr/include/aarch64-linux-musl
	arch_facts arm64
	debian_mirror >/dev/null # ends the script without one
	mapfile -t options < <(arch_apt)
	quietly apt-get "${options[@]}" update
	mkdir "$dir/musl"
	(cd "$dir/musl" && quietly apt-get "${options[@]}" download musl musl-dev)
	for deb in "$dir"/musl/*.deb; do
		dpkg-deb -x "$deb" "$dir/musl"
		rm "$deb"
	done
	# The library that is linked with is a link to another package's, or is missing.
	ln -sf "$dir/musl/lib/aarch64-linux-musl/libc.so" "$dir/musl/$lib/libc.so"
	sed "s#/$lib#$dir/musl/$lib#g; s#/$include#$dir/musl/$include#g" "$dir/musl/$lib/musl-gcc.specs" >"$dir/musl/specs"
	printf '#!/bin/sh\nexec aarch64-linux-gnu-gcc "$@" -specs "%s"\n' "$dir/musl/specs" >"$dir/musl/cc"
	chmod +x "$dir/musl/cc"
	# The atomic functions of gcc's library support the GNU C library only.
	COMPILER+=('CFLAGS=-O2 -mno-outline-atomics')
	# PostgreSQL's time zone compiler would have to run on this machine.
	COMPILER+=("CC=$dir/musl/cc" --host=aarch64-linux-musl --with-system-tzdata=/usr/share/zoneinfo)
}

# build DIR: download, configure and build below DIR, and install into DIR/install.
build() {
	local dir=$1 options major
	mapfile -t options < <(source_options)
	major=$(debian_major) || true
	[[ -n $major ]] || die "apt-get knows no PostgreSQL here"
	say "Downloading the source of postgresql-$major" >&2
	quietly apt-get "${options[@]}" update
	download_source "$dir" "postgresql-$major" || die "apt-get cannot download the source of postgresql-$major"
	mkdir "$dir/source"
	tar -C "$dir/source" --strip-components=1 -xf "$dir"/postgresql-*.orig.tar.*
	cd "$dir/source"
	[[ $VARIANT != musl-arm64 ]] || cross_musl "$dir"
	say "Building it with ${COMPILER[*]} (some minutes): $DEST" >&2
	quietly nice ./configure --prefix="$DEST/install" --without-readline --without-zlib --without-icu "${COMPILER[@]}"
	compile "$dir/root"
	mv "$dir/root$DEST/install" "$dir/install"
	[[ $VARIANT != musl-arm64 ]] || cp "$dir/musl/lib/aarch64-linux-musl/libc.so" "$dir/install/lib/ld-musl-aarch64.so.1"
	rm -rf "$dir/root" "$dir"/*.tar.*
	find "$dir/source" -name '*.o' -delete
	touch "$dir/.complete"
}

build_locked() {
	[[ ! -e $DEST/.complete ]] || return 0
	# Debug information names the sources by their path, so they are built where they stay.
	rm -rf "$DEST"
	mkdir -p "$DEST"
	chmod 0755 "$DEST"
	build "$DEST"
}

for tool in "${TOOLS[@]}"; do have "$tool" || die "$tool is missing, and PostgreSQL cannot be built without it"; done
[[ -e $DEST/.complete ]] || locked "$VARIANT-postgresql" build_locked
echo "$DEST/install/bin"
