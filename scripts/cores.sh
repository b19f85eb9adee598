#!/usr/bin/env bash
# Makes the core files of unwind/corefile/testdata anew: a small program without a C library (testdata/src/stack.c), for
# each architecture and each way of keeping a stack, run under qemu's user mode until it crashes; beside each core what
# gdb-multiarch says of it. Needs the cross compilers gcc-{aarch64,s390x,powerpc64le,riscv64}-linux-gnu, qemu-user-static,
# gdb-multiarch and xz, and for x86_64 a kernel whose core_pattern is a file's name.
#
#   scripts/cores.sh [DIR]      where they go (default: unwind/corefile/testdata)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$(realpath "${1:-unwind/corefile/testdata}")
source=$PWD/unwind/corefile/testdata/src/stack.c
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${GO:-go}" build -o "$work/rspcore" ./internal/rspcore

declare -A triple=([x86_64]=x86_64-linux-gnu [aarch64]=aarch64-linux-gnu [ppc64le]=powerpc64le-linux-gnu
	[s390x]=s390x-linux-gnu [riscv64]=riscv64-linux-gnu)
declare -A scenario=(
	[cfi]="-O2 -fasynchronous-unwind-tables"
	[omit]="-O2 -fasynchronous-unwind-tables -fomit-frame-pointer -DSIGINFO=0"
	[fp]="-O1 -fasynchronous-unwind-tables -fno-omit-frame-pointer"
	[dynamic]="-O2 -fasynchronous-unwind-tables -DDYNAMIC"
	[altstack]="-O2 -fasynchronous-unwind-tables -DALTSTACK"
	[pie]="-O2 -fasynchronous-unwind-tables -fPIE -fvisibility=hidden -static-pie"
	[chain]="-O2 -fno-asynchronous-unwind-tables -fno-unwind-tables -fno-omit-frame-pointer"
)
# Of one architecture only: return addresses that are signed.
declare -A only_aarch64=(
	[pac]="-O2 -fasynchronous-unwind-tables -mbranch-protection=standard"
	[pacleaf]="-O2 -fasynchronous-unwind-tables -mbranch-protection=pac-ret+leaf"
	[pacchain]="${scenario[chain]} -mbranch-protection=standard"
)

# run ARCH PROGRAM: run it in the current directory until it crashes, and leave PROGRAM.core.
run() {
	local arch=$1 program=$2 port
	case $arch in
	x86_64)
		(ulimit -c unlimited && exec "./$program") >/dev/null 2>&1 || true
		find . -maxdepth 1 -name 'core*' -exec mv {} "$program.core" \;
		;;
	riscv64) # qemu writes no cores for it
		port=$((20000 + RANDOM % 20000))
		qemu-riscv64-static -g "$port" "./$program" >/dev/null 2>&1 &
		"$work/rspcore" -connect "127.0.0.1:$port" -exe "$program" -stop 2 -out "$program.core"
		wait $! || true
		;;
	*)
		local cpu=()
		[[ $arch != aarch64 ]] || cpu=(-cpu max)
		(ulimit -c unlimited && exec timeout 60 "qemu-$arch-static" "${cpu[@]}" "./$program") >/dev/null 2>&1 || true
		find . -maxdepth 1 -name "qemu_*.core" -exec mv {} "$program.core" \;
		;;
	esac
	[[ -s $program.core ]]
}

# make ARCH NAME FLAGS...: build, run, ask gdb, and pack.
make_core() {
	local arch=$1 name=$1-$2
	shift 2
	[[ $arch != s390x || $name != *chain ]] || set -- "$@" -mbackchain
	# qemu's s390x cores lack the floating point registers, where newer code saves the frame pointer.
	[[ $name != s390x-fp ]] || set -- "$@" -march=z9-109
	[[ $arch != riscv64 || $name != *pie ]] || return 0 # rspcore reads no addresses of a moved program
	mkdir "$work/$name"
	cd "$work/$name"
	"${triple[$arch]}-gcc" -nostdlib -static -ffreestanding -fno-stack-protector -Wl,--build-id -Wl,-z,noexecstack \
		-Wl,-z,max-page-size=4096 "$@" -o "$name" "$source"
	run "$arch" "$name" 2>/dev/null || { echo "$name: no core" >&2; return 1; }
	# gdb goes round in circles in the trampoline of some architectures: it is given ten seconds.
	timeout 10 gdb-multiarch -q -nx -batch -ex 'set print frame-arguments none' -ex 'set backtrace past-main on' \
		-ex bt "$name" "$name.core" </dev/null 2>/dev/null |
		awk '/^#/ { if (seen[$1]++ == 0 || $1 != "#0") print }' | awk '!($0 in seen) { seen[$0]; print }' >"$name.gdb" || true
	xz -9e -k "$name" "$name.core"
	mv "$name.xz" "$name.core.xz" "$name.gdb" "$out/"
	cd - >/dev/null
	echo "$name"
}

for arch in x86_64 aarch64 ppc64le s390x riscv64; do
	for s in "${!scenario[@]}"; do
		read -ra flags <<<"${scenario[$s]}"
		make_core "$arch" "$s" "${flags[@]}"
	done
done
for s in "${!only_aarch64[@]}"; do
	read -ra flags <<<"${only_aarch64[$s]}"
	make_core aarch64 "$s" "${flags[@]}"
done
