#!/usr/bin/env bash
# debug-postgresql.sh: builds PostgreSQL with debug information (-g -O2) from Debian's source package, once, and prints the
# folder of its programs. No server that a package manager installs has debug information in it, and tests of lines and
# inlined calls need one. Takes some minutes; the result is kept in the cache. Needs gcc, make and apt-get, and no root.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"

DEST=$CACHE/debug-postgresql

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

# download_source DIR PACKAGE: the newest version that is to be had; an archive may list one that it has not got.
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
	say "Building it with -g -O2 (some minutes): $DEST" >&2
	quietly nice ./configure --prefix="$DEST/install" --without-readline --without-zlib --without-icu CFLAGS='-g -O2'
	quietly nice make -s -j2
	quietly nice make -s install DESTDIR="$dir/root"
	mv "$dir/root$DEST/install" "$dir/install"
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

for tool in gcc make apt-get; do have "$tool" || die "$tool is missing, and PostgreSQL cannot be built without it"; done
[[ -e $DEST/.complete ]] || locked debug-postgresql build_locked
echo "$DEST/install/bin"
