#!/usr/bin/env bash
# tool.sh NAME [ARGUMENT...]: build tools/NAME, which is a program of a separate Go module, and run it in this folder
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
name=$1
shift
program=$top/bin/tools/$name
# Beside another call, which may run the program now: a new file takes the place of the old one.
"${GO:-go}" build -C "$top/tools" -o "$program.$$" "./$name"
mv -f "$program.$$" "$program"
exec "$program" "$@"
