#!/usr/bin/env bash
# Compares `capture --core` with gdb-multiarch on cores that are too large to keep: C with threads and shared
# libraries, C++ and Go, stripped or not, and C without call frame information. qemu's user mode writes the cores
# where it can. Debian's kernel in a virtual machine writes them for riscv64, or for all with KERNEL=1. Our stacks
# must contain every address that gdb finds in a thread, in the same order, up to gdb's first frame in no known file.
# Needs the programs of scripts/cores.sh, and the cross g++.
#
#   MACHINES="s390x riscv64"  only these

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/arch.sh
source "$TOP/scripts/arch.sh"
# shellcheck source=scripts/stacks.sh
source "$TOP/scripts/stacks.sh"

source=$TOP/unwind/corefile/testdata/src
programs=(threads deep nounwind recurse stripped)
read -ra machines <<<"${MACHINES:-aarch64 ppc64le s390x riscv64}"

# build MACHINE PROGRAM, in the current directory.
build() {
	local triple=${TRIPLE[$1]} goarch=${GOARCH_OF[$1]} chain=-fno-omit-frame-pointer static=(-static)
	# riscv64's static C library has no call frame information: gdb guesses there.
	[[ $1 != riscv64 ]] || static=()
	case $2 in
	# riscv64's compiler creates no tables by default.
	threads) "$triple-gcc" -O2 -pthread -no-pie -fasynchronous-unwind-tables -o "$2" "$source/threads.c" ;;
	deep) "$triple-g++" -O2 "${static[@]}" -fasynchronous-unwind-tables -o "$2" "$source/deep.cc" ;;
	nounwind)
		[[ $1 != s390x ]] || chain=-mbackchain
		"$triple-gcc" -O2 "${static[@]}" -pthread "$chain" -fno-asynchronous-unwind-tables -o "$2" "$source/threads.c"
		;;
	recurse) (cd "$TOP" && CGO_ENABLED=0 GOARCH=$goarch "$GO" build -o "$OLDPWD/$2" "$source/recurse/main.go") ;;
	stripped) (cd "$TOP" && CGO_ENABLED=0 GOARCH=$goarch "$GO" build -ldflags '-s -w' -o "$OLDPWD/$2" "$source/recurse/main.go") ;;
	esac
}

# compare OURS GDB: prints threads, our frames, gdb's addresses, and the number of addresses not found in order.
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
		if ($4 == "??" && !/ from / || $2 ~ /^0x0+$/) { lost = 1; next }
		theirs++
		for (i = at + 1; i <= n[t] && ours[t, i] != $2; i++);
		if (i > n[t]) { missed++; printf "  thread %s: %s\n", t, $0 > "/dev/stderr" } else at = i
	}
	END { printf "%d threads, %d frames, %d addresses of gdb, %d missed\n", threads, frames, theirs, missed; exit missed > 0 }
	' "$1" "$2"
}

# user_core MACHINE PROGRAM: qemu's user mode.
user_core() {
	(ulimit -c unlimited && exec timeout 60 "qemu-$1-static" -L "/usr/${TRIPLE[$1]}" "./$2") >/dev/null 2>&1 || true
	find . -maxdepth 1 -name 'qemu_*.core' -exec mv {} "$2.core" \;
}

# merge SYSROOT: unpacked packages of Debian 13 lack /lib, where gdb looks for libraries.
merge() {
	rm -rf "$WORK/merged"
	mkdir "$WORK/merged"
	find "$1" -mindepth 1 -maxdepth 1 -exec ln -s -t "$WORK/merged" {} +
	[[ -e $WORK/merged/lib ]] || ln -s usr/lib "$WORK/merged/lib"
}

# judge MACHINE SYSROOT PROGRAM: ours and gdb's.
judge() {
	"$PROGRAM" capture --core "$3.core" --exe "$3" --sysroot "$2" >ours 2>errors || cat errors
	timeout 60 gdb-multiarch -q -nx -batch -ex 'set print frame-arguments none' -ex "set sysroot $WORK/merged" \
		-ex 'set backtrace past-main on' -ex 'thread apply all bt 64' "$3" "$3.core" </dev/null >gdb 2>/dev/null || true
	printf '    %s %s: ' "$1" "$3"
	compare ours gdb || failed=1
}

make_workdir
build_program
failed=0
for machine in "${machines[@]}"; do
	mkdir "$WORK/$machine"
	cd "$WORK/$machine"
	for program in "${programs[@]}"; do
		build "$machine" "$program"
	done
	if [[ $machine == riscv64 || -n ${KERNEL:-} ]]; then
		say "$machine: cores of Debian's kernel"
		arch_cores "${GOARCH_OF[$machine]}" "$PWD"
		sysroot=$ARCH_DIR/root
	else
		say "$machine: cores of qemu's user mode"
		for program in "${programs[@]}"; do
			user_core "$machine" "$program"
		done
		sysroot=/usr/${TRIPLE[$machine]}
	fi
	merge "$sysroot"
	for program in "${programs[@]}"; do
		judge "$machine" "$sysroot" "$program"
	done
done
exit $failed
