#!/usr/bin/env bash
# Runs every fuzz test of the module for FUZZTIME (default 30s), one after the other, and lists the failed ones at the
# end.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$TOP"
make_workdir
count=0
failed=()
while IFS=: read -r file name; do
	package=./$(dirname "$file")
	count=$((count + 1))
	say "$name in $package for ${FUZZTIME:-30s}"
	"$GO" test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-30s}" "$package" 2>&1 | tee "$WORK/fuzz.log" && continue
	# The go command may report the end of the time as the failure of the current input. A true failure contains an
	# input.
	if grep -q 'context deadline exceeded' "$WORK/fuzz.log" && ! grep -q 'Failing input written' "$WORK/fuzz.log"; then
		continue
	fi
	failed+=("$name")
done < <(grep -roE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's/^\.\///; s/func //' | sort)
[[ ${#failed[@]} -eq 0 ]] || die "of $count fuzz tests these failed: ${failed[*]}"
say "$count fuzz tests ran, none failed"
