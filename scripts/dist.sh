#!/usr/bin/env bash
# dist.sh [FOLDER]: create the archive for the PostgreSQL Extension Network in FOLDER (default dist). It is a zip file
# of the files in git, in a folder with the name and the version of META.json. The same source gives the same bytes.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

FOLDER=${1:-$TOP/dist}
VERSION=$(sed -n 's/^VERSION *:= *//p' "$TOP/Makefile")
NAME=pg_stat_backtrace-$VERSION
EPOCH=${SOURCE_DATE_EPOCH:-$(git -c safe.directory="$TOP" -C "$TOP" log -1 --format=%ct 2>/dev/null)} ||
	die "no commit to take the archive's time from" "set SOURCE_DATE_EPOCH to seconds since 1970"
mkdir -p "$FOLDER"
FOLDER=$(cd "$FOLDER" && pwd)
(cd "$TOP" && git -c safe.directory="$TOP" ls-files --cached --others --exclude-standard) |
	(cd "$TOP" && scripts/tool.sh ziptree -prefix "$NAME" -epoch "$EPOCH" "$FOLDER/$NAME.zip")
note "$FOLDER/$NAME.zip"
