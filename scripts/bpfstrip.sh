#!/usr/bin/env bash
# bpfstrip.sh ARGUMENT...: the strip command for bpf2go (see generate.sh). It also removes the relocations of .BTF.ext, which are a third of
# an object: the section already has the offsets of instructions, and no loader of a linked object reads these relocations.

set -euo pipefail
exec "${CLANG/clang/llvm-strip}" --remove-section=.rel.BTF.ext "$@"
