#!/usr/bin/env bash
# release.sh [FOLDER]: create one archive for each architecture below FOLDER (default dist), a list of the modules in
# its program (SBOM, CycloneDX JSON), and SHA256SUMS of them. RELEASE_KEY names the gpg key that signs SHA256SUMS. The
# same source and the same Go give the same bytes for every builder, place and time. `release.sh --check` builds
# everything twice, the second time from a copy in another folder and with an empty build cache. It compares the
# results, checks each program, and signs with a throw-away key. RELEASE_ARCHS="amd64 arm64" restricts both to some. SOURCE_DATE_EPOCH is the time
# of the files in the archives; the default is the time of the last commit.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

read -ra ARCHS <<<"${RELEASE_ARCHS:-amd64 arm64 ppc64le s390x riscv64}"
VERSION=$(sed -n 's/^VERSION *:= *//p' "$TOP/Makefile")

# Go's settings in the environment would change the result.
unset GOFLAGS GOEXPERIMENT GOAMD64 GOARM64 GOPPC64 GORISCV64
export LC_ALL=C GOOS=linux CGO_ENABLED=0

if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
	SOURCE_DATE_EPOCH=$(git -c safe.directory="$TOP" -C "$TOP" log -1 --format=%ct 2>/dev/null) ||
		die "no commit to take the archives' time from" "set SOURCE_DATE_EPOCH to seconds since 1970"
fi

name() { echo "pg_stat_backtrace-$VERSION-linux-$1"; }

# files prints the names of the released files, without SHA256SUMS.
files() {
	local arch
	for arch in "${ARCHS[@]}"; do printf '%s\n' "$(name "$arch").tar.gz" "$(name "$arch").cdx.json"; done
}

# sbom PROGRAM FILE: write the modules of PROGRAM to FILE. Serial number and time would differ between two builds.
sbom() {
	quietly "$WORK/cyclonedx-gomod" bin -json -std -noserial -notimestamp -version "v$VERSION" -output "$2" "$1"
}

# sign FOLDER KEY: sign SHA256SUMS, which has the checksums of all other files.
sign() {
	gpg --batch --yes --armor --local-user "$2" --output "$1/SHA256SUMS.asc" --detach-sign "$1/SHA256SUMS"
}

# release SOURCE FOLDER: build the archives of SOURCE.
release() {
	local source=$1 folder=$2 arch name tree
	mkdir -p "$folder"
	for arch in "${ARCHS[@]}"; do
		name=$(name "$arch")
		tree=$WORK/tree/$name
		rm -rf "$WORK/tree"
		mkdir -p "$tree/sql" "$tree/systemd" "$tree/doc/images" "$tree/doc/internals" "$tree/doc/schemas"
		GOARCH=$arch make -s -C "$source" build OUT="$WORK/program"
		install -m 0755 "$WORK/program" "$tree/pg_stat_backtrace"
		install -m 0644 "$source"/sql/*.sql "$tree/sql/"
		install -m 0644 "$source"/systemd/*.service "$tree/systemd/"
		install -m 0644 "$source"/doc/*.md "$tree/doc/"
		install -m 0644 "$source"/doc/internals/* "$tree/doc/internals/"
		install -m 0644 "$source"/doc/schemas/*.json "$tree/doc/schemas/"
		install -m 0644 "$source"/doc/images/* "$tree/doc/images/"
		install -m 0644 "$source"/{pg_stat_backtrace.control,LICENSE,{README,ARCHITECTURE,CHANGELOG,CONTRIBUTING,SECURITY}.md} "$tree/"
		chmod 0755 "$tree" "$tree/sql" "$tree/systemd" "$tree/doc" "$tree/doc/images" "$tree/doc/internals" "$tree/doc/schemas"
		tar --create --directory="$WORK/tree" --format=ustar --sort=name --mtime="@$SOURCE_DATE_EPOCH" \
			--owner=0 --group=0 --numeric-owner "$name" | gzip -9 --no-name >"$folder/$name.tar.gz"
		sbom "$WORK/program" "$folder/$name.cdx.json"
		note "$name.tar.gz, $name.cdx.json"
	done
	(cd "$folder" && files | xargs sha256sum >SHA256SUMS)
}

# machine ARCH: its name in readelf, and the name of qemu's emulator.
machine() {
	case $1 in
	amd64) echo "X86-64 x86_64" ;;
	arm64) echo "AArch64 aarch64" ;;
	ppc64le) echo "PowerPC64 ppc64le" ;;
	s390x) echo "S/390 s390x" ;;
	riscv64) echo "RISC-V riscv64" ;;
	*) die "unknown architecture: $1" ;;
	esac
}

# examine ARCH ARCHIVE: the program in it is of its architecture, static, and runs, where it can be run here.
examine() {
	local arch=$1 program elf cpu runner=() settings dynamic
	rm -rf "$WORK/unpacked"
	mkdir "$WORK/unpacked"
	tar -xzf "$2" -C "$WORK/unpacked"
	program=$WORK/unpacked/$(name "$arch")/pg_stat_backtrace
	read -r elf cpu <<<"$(machine "$arch")"
	[[ $(readelf -hW "$program") == *Machine:*"$elf"* ]] || die "$program is not of $elf"
	dynamic=$(readelf -lW "$program" | grep -E 'INTERP|DYNAMIC') || true
	[[ -z $dynamic ]] || die "the program of $arch is not static: $dynamic"
	settings=$("$GO" version -m "$program")
	grep -q "GOARCH=$arch\$" <<<"$settings" || die "the program of $arch was built for another architecture"
	grep -q 'CGO_ENABLED=0$' <<<"$settings" || die "the program of $arch was built with cgo"
	if [[ $(uname -m) != "$cpu" ]]; then
		if ! have "qemu-$cpu-static"; then
			note "$arch: $elf, static; not run: no qemu-$cpu-static (package qemu-user-static)"
			return 0
		fi
		runner=("qemu-$cpu-static")
	fi
	[[ $("${runner[@]}" "$program" --version) == *"$VERSION"* ]] || die "the program of $arch does not say its version"
	if [[ ${#runner[@]} -eq 0 ]]; then
		# Some checks may fail on this host; the report has to be there.
		"$program" doctor >"$WORK/doctor" 2>&1 || true
		grep -q 'platform: *Linux' "$WORK/doctor" || die "doctor has no report: $(cat "$WORK/doctor")"
	fi
	note "$arch: $elf, static, says its version"
}

# dependencies reads the output of `go version -m`, and prints each module with its version, except modules that others replace.
dependencies() {
	awk '$1 == "=>" { module = "" } $1 == "dep" { if (module) print module; module = $2 "@" $3 } END { if (module) print module }'
}

# examine_sbom ARCH FILE: the list is of this version, and has each module that the program of examine has.
examine_sbom() {
	local module
	grep -q "\"purl\": \"pkg:golang/pg_stat_backtrace@v$VERSION" "$2" || die "the SBOM of $1 is not of version $VERSION"
	while read -r module; do
		grep -qF "pkg:golang/$module" "$2" || die "the SBOM of $1 lacks $module"
	done < <("$GO" version -m "$WORK/unpacked/$(name "$1")/pg_stat_backtrace" | dependencies)
}

# check_signature FOLDER: sign with a throw-away key, and verify as a user does. A changed list must fail.
check_signature() {
	local keys=$WORK/keys
	mkdir -m 0700 "$keys"
	export GNUPGHOME=$keys
	quietly gpg --batch --passphrase '' --quick-generate-key 'throw-away key <test@example.invalid>' ed25519 sign never
	sign "$1" test@example.invalid
	gpg --batch --export --output "$keys/public.gpg"
	(cd "$1" && quietly sha256sum --check --strict SHA256SUMS && quietly gpgv --keyring "$keys/public.gpg" SHA256SUMS.asc SHA256SUMS)
	sed 's/^./x/' "$1/SHA256SUMS" >"$WORK/changed"
	gpgconf --homedir "$keys" --kill all
	! gpgv --keyring "$keys/public.gpg" "$1/SHA256SUMS.asc" "$WORK/changed" 2>/dev/null || die "the signature fits a changed list"
	note "SHA256SUMS signed with a throw-away key and verified"
}

# check builds twice and compares.
check() {
	local arch archive
	have readelf || die "readelf is not installed" "package binutils"
	say "Building ${ARCHS[*]}"
	release "$TOP" "$WORK/a"
	say "Building again, from a copy in another folder, with an empty build cache"
	mkdir "$WORK/source"
	(cd "$TOP" && git -c safe.directory="$TOP" ls-files -z --cached --others --exclude-standard |
		tar --create --null --files-from=- | tar -x -C "$WORK/source")
	GOCACHE=$WORK/cache release "$WORK/source" "$WORK/b"
	say "Comparing"
	diff "$WORK/a/SHA256SUMS" "$WORK/b/SHA256SUMS" || die "two builds differ"
	for arch in "${ARCHS[@]}"; do
		archive=$(name "$arch").tar.gz
		cmp "$WORK/a/$archive" "$WORK/b/$archive" || die "two builds of $archive differ"
		examine "$arch" "$WORK/a/$archive"
		examine_sbom "$arch" "$WORK/a/$(name "$arch").cdx.json"
	done
	check_signature "$WORK/a"
	say "${#ARCHS[@]} archives, each built twice, byte for byte the same"
}

make_workdir
(cd "$TOP/packaging/tools" && "$GO" build -o "$WORK/cyclonedx-gomod" github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod)
if [[ ${1:-} == --check ]]; then
	check
else
	FOLDER=${1:-$TOP/dist}
	say "Building ${ARCHS[*]} into $FOLDER"
	release "$TOP" "$FOLDER"
	if [[ -n ${RELEASE_KEY:-} ]]; then
		sign "$FOLDER" "$RELEASE_KEY"
		note "SHA256SUMS.asc"
	else
		note "not signed: RELEASE_KEY names no key"
	fi
	cat "$FOLDER/SHA256SUMS"
fi
