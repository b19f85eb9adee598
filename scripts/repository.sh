#!/usr/bin/env bash
# repository.sh apt|dnf [PACKAGES [FOLDER]]: make a signed repository for apt or dnf in FOLDER (default dist/apt, dist/dnf) of the
# packages in PACKAGES (default dist/packages, see `make packages`). APT_KEY and DNF_KEY name the gpg key that signs.
# `repository.sh --check`, on Debian or a relative: both kinds with a throw-away key. apt downloads a package from the first
# one. It refuses a changed package, a changed list, and another key.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"

# tool NAME PACKAGE sets TOOL to the words that run a program, of a Debian package that is only unpacked if it is missing.
tool() {
	local list dir=$CACHE/debs/$2
	TOOL=("$1")
	! have "$1" || return 0
	mapfile -t list < <(deb_closure "$2")
	deb_unpack "$2" "${list[@]}"
	TOOL=(env "LD_LIBRARY_PATH=$(find "$dir/usr/lib" -maxdepth 1 -name '*-linux-*')" "$dir/usr/bin/$1")
}

# copy PACKAGES PATTERN FOLDER: a new folder with the packages.
copy() {
	local found
	mapfile -t found < <(find "$1" -maxdepth 1 -name "$2" | sort)
	[[ ${#found[@]} -gt 0 ]] || die "there are no packages $1/$2" "make packages"
	rm -rf "$3"
	mkdir -p "$3"
	cp "${found[@]}" "$3"
}

# public_key KEY FILE: what users need to verify the signatures.
public_key() { gpg --batch --yes --armor --output "$2" --export "$1"; }

# apt_repository PACKAGES FOLDER KEY
apt_repository() {
	local arch folder=$2/dists/stable lists
	copy "$1" '*.deb' "$2/pool"
	tool apt-ftparchive apt-utils
	for arch in amd64 arm64; do
		lists=$folder/main/binary-$arch
		rm -rf "$lists"
		mkdir -p "$lists"
		(cd "$2" && "${TOOL[@]}" --arch "$arch" packages pool) >"$lists/Packages"
		gzip -9 --no-name --keep "$lists/Packages"
	done
	rm -f "$folder"/*Release*
	"${TOOL[@]}" -o APT::FTPArchive::Release::Origin=pg_stat_backtrace -o APT::FTPArchive::Release::Suite=stable \
		-o APT::FTPArchive::Release::Codename=stable -o APT::FTPArchive::Release::Components=main \
		-o 'APT::FTPArchive::Release::Architectures=amd64 arm64' release "$folder" >"$WORK/Release"
	mv "$WORK/Release" "$folder/Release"
	gpg --batch --yes --local-user "$3" --output "$folder/InRelease" --clear-sign "$folder/Release"
	public_key "$3" "$2/key.asc"
}

# dnf_repository PACKAGES FOLDER KEY
dnf_repository() {
	copy "$1" '*.rpm' "$2"
	tool createrepo_c createrepo-c
	quietly "${TOOL[@]}" --quiet "$2"
	gpg --batch --yes --armor --local-user "$3" --output "$2/repodata/repomd.xml.asc" --detach-sign "$2/repodata/repomd.xml"
	public_key "$3" "$2/key.asc"
}

# new_key NAME: a throw-away key.
new_key() { quietly gpg --batch --passphrase '' --quick-generate-key "$1 <$1@example.invalid>" ed25519 sign never; }

# apt_ FOLDER COMMAND...: apt-get that knows only the repository in FOLDER and its key, and nothing of this machine.
apt_() {
	local folder=$1 root=$WORK/root
	shift
	mkdir -p "$root/lists/partial" "$root/cache/archives/partial" "$root/etc"
	touch "$root/status"
	echo "deb [arch=amd64 signed-by=$WORK/key.asc] file:$folder stable main" >"$root/etc/sources.list"
	(cd "$root" && apt-get -qq -o "Dir::State=$root" -o "Dir::State::status=$root/status" -o "Dir::State::lists=$root/lists" \
		-o "Dir::Cache=$root/cache" -o "Dir::Etc::sourcelist=$root/etc/sources.list" -o Dir::Etc::sourceparts=- \
		-o APT::Architecture=amd64 -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 "$@")
}

# refused WHAT COMMAND...: the command must fail.
refused() {
	! "${@:2}" >"$WORK/log" 2>&1 || die "$1 is not refused"
	rm -rf "$WORK/root/lists"
	note "refused: $1"
}

check() {
	local apt=$WORK/apt dnf=$WORK/dnf deb
	have apt-get || die "apt-get is not installed" "this check needs Debian or a relative"
	export GNUPGHOME=$WORK/keys
	mkdir -m 0700 "$GNUPGHOME"
	new_key release
	new_key other
	say "Building packages"
	PACKAGE_ARCHS=amd64 PACKAGE_MAJORS=15 PACKAGE_FORMATS="deb rpm" quietly "$TOP/packaging/nfpm/build.sh" "$WORK/packages"
	say "apt"
	apt_repository "$WORK/packages" "$apt" release@example.invalid
	cp "$apt/key.asc" "$WORK/key.asc"
	quietly apt_ "$apt" update
	quietly apt_ "$apt" download pg-stat-backtrace postgresql-15-pg-stat-backtrace
	deb=$(basename "$apt"/pool/pg-stat-backtrace_*.deb)
	cmp "$apt/pool/$deb" "$WORK/root/$deb" || die "apt has another package"
	note "apt updates, and downloads $deb"
	rm "$WORK/root/$deb"
	printf x >>"$apt/pool/$deb"
	refused "a changed package" apt_ "$apt" download pg-stat-backtrace
	public_key other@example.invalid "$WORK/key.asc"
	refused "another key" apt_ "$apt" update
	cp "$apt/key.asc" "$WORK/key.asc"
	sed -i 's/^Suite: .*/Suite: other/' "$apt/dists/stable/InRelease"
	refused "a changed list" apt_ "$apt" update
	say "dnf"
	dnf_repository "$WORK/packages" "$dnf" release@example.invalid
	gpg --batch --yes --dearmor --output "$WORK/key.gpg" "$dnf/key.asc"
	quietly gpgv --keyring "$WORK/key.gpg" "$dnf/repodata/repomd.xml.asc" "$dnf/repodata/repomd.xml"
	zcat -f "$dnf"/repodata/*primary.xml.gz >"$WORK/primary.xml"
	for package in "$dnf"/*.rpm; do
		grep -q "$(sha256sum "$package" | cut -d' ' -f1)" "$WORK/primary.xml" || die "the repository lacks $package"
	done
	note "lists every package with its checksum, signed"
	gpgconf --homedir "$GNUPGHOME" --kill all
}

make_workdir
case ${1:-} in
--check) check ;;
apt) apt_repository "${2:-$TOP/dist/packages}" "${3:-$TOP/dist/apt}" "${APT_KEY:?names the gpg key that signs the repository}" ;;
dnf) dnf_repository "${2:-$TOP/dist/packages}" "${3:-$TOP/dist/dnf}" "${DNF_KEY:?names the gpg key that signs the repository}" ;;
*) die "usage: repository.sh apt|dnf [PACKAGES [FOLDER]], or repository.sh --check" ;;
esac
