#!/usr/bin/env bash
# vet.sh: for `go vet -vettool`. This is Go's own vet, which checks each package of the project in full. About packages of
# other modules and of Go's library, Go's vet only collects facts, and needs half of its time for that. The facts are about
# functions that format or never return. Vet knows the common ones by name, so this script collects none.
# `make check-full` runs Go's vet without this script.
set -euo pipefail

file=${!#}
vet() { "$("${GO:-go}" env GOTOOLDIR)/vet" "$@"; }
case $* in
-V=full)
	# The go command keeps results by this line. A vet without this script must not use them.
	version=$(vet -V=full)
	echo "${version/ version / version own-packages-}"
	;;
*.cfg)
	config=$(<"$file") # JSON
	output='"VetxOutput": "([^"]*)"'
	if [[ $config == *'"VetxOnly": true'* && $config != *'"ImportPath": "pg_stat_backtrace'[/\"]* && $config =~ $output ]]; then
		: >"${BASH_REMATCH[1]}"
	else
		vet "$@"
	fi
	;;
*)
	vet "$@"
	;;
esac
