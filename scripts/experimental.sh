# shellcheck shell=bash
# A release candidate of the next PostgreSQL from Debian's experimental suite, in a folder. Nothing is installed, and
# it runs with the suite's C library. To be sourced after packages.sh.

EXPERIMENTAL_MAJOR=19

# experimental_apt prints options with which apt sees only Debian's unstable and experimental suites, and no installed
# packages.
experimental_apt() {
	local dir=$CACHE/experimental mirror
	mirror=$(debian_mirror) || return
	mkdir -p "$dir/lists/partial" "$dir/archives/partial"
	printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
		"$mirror" sid "$mirror" experimental >"$dir/sources.list"
	printf '%s\n' -o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o "Dir::State::lists=$dir/lists" -o "Dir::Cache=$dir" -o Dir::State::status=/dev/null \
		-o Debug::NoLocking=1 -o APT::Sandbox::User=root
}

# experimental_packages prints the server's packages and the libraries that they need. (Their whole closure is often not
# installable: the suites are in flux.)
experimental_packages() {
	local name=postgresql-$EXPERIMENTAL_MAJOR
	printf '%s\n' "$name" "postgresql-client-$EXPERIMENTAL_MAJOR"
	apt-cache "$@" depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
		"$name" | grep -E '^lib[a-z0-9+.-]+$' | grep -vE 'perl|debconf|debian-installer|newt|slang|textwrap' | sort -u
}

fetch_experimental_locked() {
	local dest=$CACHE/experimental/root options packages new deb
	[[ ! -e $dest/.complete ]] || return 0
	say "Downloading PostgreSQL $EXPERIMENTAL_MAJOR from Debian's experimental suite (40 MB): kept in $CACHE/experimental"
	debian_mirror >/dev/null # ends the script without one
	mapfile -t options < <(experimental_apt)
	quietly apt-get "${options[@]}" update
	mapfile -t packages < <(experimental_packages "${options[@]}")
	new=$(mktemp -d "$CACHE/unpack.XXXXXX")
	(cd "$new" && quietly apt-get "${options[@]}" download "${packages[@]}")
	for deb in "$new"/*.deb; do
		dpkg-deb -x "$deb" "$new"
		rm "$deb"
	done
	touch "$new/.complete"
	rm -rf "$dest"
	mv "$new" "$dest"
}

# use_experimental_server puts the server below WORK and makes its programs use the libraries that came with them: the
# machine's may be older.
use_experimental_server() {
	local root=$WORK/experimental program libraries loader patchelf
	have apt-get || die "the packages of Debian's experimental suite need apt-get"
	locked experimental fetch_experimental_locked
	patchelf=$(command -v patchelf || true)
	if [[ -z $patchelf ]]; then
		deb_unpack patchelf patchelf
		patchelf=$CACHE/debs/patchelf/usr/bin/patchelf
	fi
	cp -r "$CACHE/experimental/root" "$root"
	chmod -R a+rX "$root"
	libraries=$root/usr/lib/$(uname -m)-linux-gnu
	loader=$(find "$libraries" -maxdepth 1 -name 'ld-linux*' | head -n 1)
	[[ -n $loader ]] || die "no loader in $libraries"
	for program in "$root/usr/lib/postgresql/$EXPERIMENTAL_MAJOR"/{bin/*,lib/pgxs/src/test/regress/pg_regress}; do
		[[ $(head -c 4 "$program") == $'\x7fELF' ]] || continue
		quietly "$patchelf" --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "$program"
	done
	use_server_bin "$root/usr/lib/postgresql/$EXPERIMENTAL_MAJOR/bin" "$root/usr/lib/postgresql/$EXPERIMENTAL_MAJOR/bin/pg_config"
}
