#!/usr/bin/env bash
# Generates the core files of unwind/corefile/testdata. It runs a small program without a C library
# (testdata/src/stack.c), for each architecture and each way of unwinding, until it crashes. Beside each core it
# stores gdb-multiarch's output. For ARCH-SCENARIO, qemu's user mode writes the core, or for x86_64 this machine's
# kernel (whose core_pattern must be a file name). For ARCH-kernel-SCENARIO, and for riscv64, Debian's kernel of the
# architecture writes it in a virtual machine (see scripts/arch.sh). Needs the cross compilers
# gcc-{aarch64,s390x,powerpc64le,riscv64}-linux-gnu, qemu-user-static, gdb-multiarch, xz, and the programs of
# scripts/check-arch.sh.
#
#   scripts/cores.sh [DIR]      where they go (default: unwind/corefile/testdata)
#   MACHINES="riscv64" ...      only these

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/arch.sh
source "$TOP/scripts/arch.sh"
# shellcheck source=scripts/stacks.sh
source "$TOP/scripts/stacks.sh"

out=$(realpath "${1:-$TOP/unwind/corefile/testdata}")
read -ra machines <<<"${MACHINES:-x86_64 aarch64 ppc64le s390x riscv64}"

# run MACHINE PROGRAM: run it in the current directory until it crashes, and leave PROGRAM.core.
run() {
	local machine=$1 program=$2 cpu=()
	if [[ $machine == x86_64 ]]; then
		(ulimit -c unlimited && exec "./$program") >/dev/null 2>&1 || true
		find . -maxdepth 1 -name 'core*' -exec mv {} "$program.core" \;
	else
		[[ $machine != aarch64 ]] || cpu=(-cpu max)
		(ulimit -c unlimited && exec timeout 60 "qemu-$machine-static" "${cpu[@]}" "./$program") >/dev/null 2>&1 || true
		find . -maxdepth 1 -name 'qemu_*.core' -exec mv {} "$program.core" \;
	fi
	[[ -s $program.core ]]
}

# pack PROGRAM: get gdb's output for the program and its core in the current directory, and keep all three.
pack() {
	# gdb loops in the trampoline of some architectures, so it is stopped after ten seconds.
	timeout 10 gdb-multiarch -q -nx -batch -ex 'set print frame-arguments none' -ex 'set backtrace past-main on' \
		-ex bt "$1" "$1.core" </dev/null 2>/dev/null |
		awk '/^#/ { if (seen[$1]++ == 0 || $1 != "#0") print }' | awk '!($0 in seen) { seen[$0]; print }' >"$1.gdb" || true
	# Readers allocate the whole dictionary for each file, and the usual one has 64 MiB.
	xz --lzma2=preset=9e,dict=256KiB -k "$1" "$1.core"
	mv "$1.xz" "$1.core.xz" "$1.gdb" "$out/"
	note "$1: $(grep -c . "$out/$1.gdb") frames of gdb's"
}

# user_cores MACHINE: cores of qemu's user mode.
user_cores() {
	local scenario name flags
	for scenario in $(stack_scenarios "$1"); do
		name=$1-$scenario flags=()
		# qemu's s390x cores lack the floating point registers, where newer code saves the frame pointer.
		[[ $name != s390x-fp ]] || flags=(-march=z9-109)
		mkdir "$WORK/$name"
		cd "$WORK/$name"
		build_stack "$1" "$scenario" "$name" "${flags[@]}"
		run "$1" "$name" 2>/dev/null || die "$name: no core"
		pack "$name"
	done
}

# kernel_cores MACHINE PREFIX SCENARIO...: cores of a kernel in a virtual machine.
kernel_cores() {
	local machine=$1 prefix=$2 scenario dir=$WORK/kernel-$1 STACK_PAGE=65536
	shift 2
	mkdir "$dir"
	for scenario in "$@"; do
		build_stack "$machine" "$scenario" "$dir/$prefix$scenario"
	done
	arch_cores "${GOARCH_OF[$machine]}" "$dir"
	cd "$dir"
	for scenario in "$@"; do
		pack "$prefix$scenario"
	done
}

make_workdir
for machine in "${machines[@]}"; do
	say "$machine"
	need_cross "$machine"
	case $machine in
	riscv64) mapfile -t all < <(stack_scenarios riscv64) && kernel_cores riscv64 riscv64- "${all[@]}" ;;
	x86_64) user_cores x86_64 ;;
	aarch64) user_cores aarch64 && kernel_cores aarch64 aarch64-kernel- cfi fp chain altstack pac pacchain \
		bare barealtstack pacbare ;;
	*) user_cores "$machine" && kernel_cores "$machine" "$machine-kernel-" cfi fp chain altstack ;;
	esac
done
