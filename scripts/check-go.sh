#!/usr/bin/env bash
# Runs the tests of Go programs with programs that other versions of Go have made: tool chains from 1.21 on, which the go
# command downloads through the module proxy, and for older versions programs from npm packages.
#
#   GO_TOOLCHAINS="go1.21.13 …" scripts/check-go.sh

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"

GO_TOOLCHAINS=${GO_TOOLCHAINS:-go1.21.13 go1.22.12 go1.23.12 go1.24.9 go1.25.3}

# fetch_go_program DEST PACKAGE SUM: unpack an npm package's bin/esbuild as DEST.
fetch_go_program() {
	local new
	[[ ! -e $1 ]] || return 0
	have npm || die "there is no npm to download $2 with"
	new=$(mktemp -d "$CACHE/unpack.XXXXXX")
	(cd "$new" && quietly npm pack --silent "$2" && echo "$3  $(echo ./*.tgz)" | sha512sum --check --quiet &&
		tar xzf ./*.tgz)
	mv "$new/package/bin/esbuild" "$1"
	rm -rf "$new"
}

[[ $(uname -m) == x86_64 ]] || die "the programs of older versions are for x86_64"
mkdir -p "$CACHE/go-programs"
programs=()
while read -r sum package version; do
	program=$CACHE/go-programs/$version
	say "A program of $version: npm $package"
	locked go-programs fetch_go_program "$program" "$package" "$sum"
	programs+=("$program")
done < <(grep -v '^#' "$TOP/scripts/npm-go.sha512")
cd "$TOP"
for version in $GO_TOOLCHAINS; do
	say "$version"
	GOTOOLCHAIN=$version "$GO" version # downloads it
done
PGSB_GO_TOOLCHAINS=$GO_TOOLCHAINS PGSB_GO_PROGRAMS="${programs[*]}" \
	"$GO" test -count=1 -v -timeout 30m -run 'TestGoVersions|TestCgo|TestGoroutines|TestGoLibrary' ./worker/capture
