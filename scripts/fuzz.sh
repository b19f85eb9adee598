#!/usr/bin/env bash
# Runs every fuzz test of the module for FUZZTIME (default 30s), one after the other.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$TOP"
count=0
while IFS=: read -r file name; do
	say "$name in $(dirname "$file") for ${FUZZTIME:-30s}"
	"$GO" test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-30s}" "./$(dirname "$file")"
	count=$((count + 1))
done < <(grep -roE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's/^\.\///; s/func //' | sort)
say "$count fuzz tests ran, none failed"
