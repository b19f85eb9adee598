#!/usr/bin/env bash
# Compares `capture --core` with gdb-multiarch on cores that are too large to keep: C with threads and shared libraries,
# C++ and Go, for the architectures whose cores qemu's user mode writes. Every address that gdb finds in a thread, up to
# where it loses itself, has to be found too, in that order. Needs what scripts/cores.sh needs, and the cross g++.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source=$PWD/unwind/corefile/testdata/src
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
GO=${GO:-go}
CGO_ENABLED=0 "$GO" build -o "$work/psb" .

# build ARCH TRIPLE GOARCH PROGRAM
build() {
	case $4 in
	threads) "$2-gcc" -O2 -pthread -no-pie -o "$4" "$source/threads.c" ;;
	deep) "$2-g++" -O2 -static -o "$4" "$source/deep.cc" ;;
	nounwind)
		local chain=-fno-omit-frame-pointer
		[[ $1 != s390x ]] || chain=-mbackchain
		"$2-gcc" -O2 -static -pthread "$chain" -fno-asynchronous-unwind-tables -o "$4" "$source/threads.c"
		;;
	recurse) CGO_ENABLED=0 GOARCH=$3 "$GO" build -o "$4" "$source/recurse/main.go" ;;
	stripped) CGO_ENABLED=0 GOARCH=$3 "$GO" build -ldflags '-s -w' -o "$4" "$source/recurse/main.go" ;;
	esac
}

# compare OURS GDB: prints threads, frames of ours, addresses of gdb's, and those of them that are not found in order.
compare() {
	awk '
	FNR == NR {
		if ($1 == "Thread") t = $2
		if (/^core of process/) { t = $4 }
		if (/^#/) { ours[t, ++n[t]] = $2; frames++ }
		next
	}
	FNR == 1 { t = "" }
	/^Thread / { gsub(/.*\(LWP /, ""); sub(/\).*/, ""); t = $0; at = 0; lost = 0; threads++; next }
	t != "" && /^#/ && $2 ~ /^0x/ && !lost {
		if ($4 == "??" || $2 ~ /^0x0+$/) { lost = 1; next }
		theirs++
		for (i = at + 1; i <= n[t] && ours[t, i] != $2; i++);
		if (i > n[t]) { missed++; printf "  thread %s: %s\n", t, $0 > "/dev/stderr" } else at = i
	}
	END { printf "%d threads, %d frames, %d addresses of gdb, %d missed\n", threads, frames, theirs, missed; exit missed > 0 }
	' "$1" "$2"
}

failed=0
while read -r arch triple goarch; do
	for program in threads deep nounwind recurse stripped; do
		mkdir "$work/$arch-$program"
		cd "$work/$arch-$program"
		build "$arch" "$triple" "$goarch" "$program"
		(ulimit -c unlimited && exec timeout 60 "qemu-$arch-static" -L "/usr/$triple" "./$program") >/dev/null 2>&1 || true
		find . -maxdepth 1 -name 'qemu_*.core' -exec mv {} the.core \;
		"$work/psb" capture --core the.core --exe "$program" --sysroot "/usr/$triple" >ours 2>errors || cat errors
		timeout 60 gdb-multiarch -q -nx -batch -ex 'set print frame-arguments none' -ex "set sysroot /usr/$triple" \
			-ex 'set backtrace past-main on' -ex 'thread apply all bt 64' "$program" the.core </dev/null >gdb 2>/dev/null || true
		printf '%s %s: ' "$arch" "$program"
		compare ours gdb || failed=1
	done
done <<'LIST'
aarch64 aarch64-linux-gnu arm64
ppc64le powerpc64le-linux-gnu ppc64le
s390x s390x-linux-gnu s390x
LIST
exit $failed
