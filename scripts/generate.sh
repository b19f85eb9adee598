#!/usr/bin/env bash
# generate.sh [--check]: compile the programs for the kernel (*.bpf.c below ptrace) and make the Go files that hold
# them. Both are committed, so that only a change of a program needs the compiler. --check works on a copy and
# fails if the committed files differ.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Another version of the compiler makes other instructions of the same source.
CLANG=${CLANG:-clang-19}

main() {
	local where=$TOP status=0 changed file
	command -v "$CLANG" >/dev/null || die "$CLANG is not installed" "apt-get install clang-19 llvm-19"
	export CLANG BPF2GO_CC=$CLANG BPF2GO_STRIP=$TOP/scripts/bpfstrip.sh
	if [[ ${1:-} == --check ]]; then
		make_workdir
		where=$WORK/tree
		mkdir -p "$where/internal"
		cp -r "$TOP/go.mod" "$TOP/go.sum" "$TOP/ptrace" "$where/"
		cp -r "$TOP/internal/nobrotli" "$where/internal/" # go.mod names it
	fi
	(cd "$where" && "$GO" generate ./ptrace/...)
	[[ ${1:-} == --check ]] || return 0
	while read -r file; do
		changed=${file#"$where"/}
		cmp "$file" "$TOP/$changed" || status=1
	done < <(find "$where/ptrace" -name '*_bpfe[lb].go' -o -name '*_bpfe[lb].o' | sort)
	[[ $status -eq 0 ]] || die "committed programs for the kernel differ from their source" "make generate"
}

main "$@"
