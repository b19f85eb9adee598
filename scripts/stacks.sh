# shellcheck shell=bash
# The programs of unwind/corefile/testdata/src/stack.c: the same stack, compiled in every supported way, for each
# architecture. To be sourced after lib.sh.

STACK_SOURCE=$TOP/unwind/corefile/testdata/src/stack.c

declare -A TRIPLE=([x86_64]=x86_64-linux-gnu [aarch64]=aarch64-linux-gnu [ppc64le]=powerpc64le-linux-gnu
	[s390x]=s390x-linux-gnu [riscv64]=riscv64-linux-gnu)
# shellcheck disable=SC2034 # for the scripts that use this one
declare -A GOARCH_OF=([x86_64]=amd64 [aarch64]=arm64 [ppc64le]=ppc64le [s390x]=s390x [riscv64]=riscv64)
declare -A SCENARIO=(
	[cfi]="-O2 -fasynchronous-unwind-tables"
	[omit]="-O2 -fasynchronous-unwind-tables -fomit-frame-pointer -DSIGINFO=0"
	[fp]="-O1 -fasynchronous-unwind-tables -fno-omit-frame-pointer"
	[dynamic]="-O2 -fasynchronous-unwind-tables -DDYNAMIC"
	[altstack]="-O2 -fasynchronous-unwind-tables -DALTSTACK"
	[pie]="-O2 -fasynchronous-unwind-tables -fPIE -fvisibility=hidden -static-pie"
	[chain]="-O2 -fno-asynchronous-unwind-tables -fno-unwind-tables -fno-omit-frame-pointer"
)
# Without call frame information and frame pointers. The two last are for architectures whose instructions are followed.
BARE="-O2 -fno-asynchronous-unwind-tables -fno-unwind-tables -fomit-frame-pointer"
declare -A FOLLOWED=([bare]="$BARE" [baredynamic]="$BARE -DDYNAMIC" [barealtstack]="$BARE -DALTSTACK")
# For one architecture only: signed return addresses.
declare -A ONLY_AARCH64=(
	[pac]="-O2 -fasynchronous-unwind-tables -mbranch-protection=standard"
	[pacleaf]="-O2 -fasynchronous-unwind-tables -mbranch-protection=pac-ret+leaf"
	[pacchain]="${SCENARIO[chain]} -mbranch-protection=standard"
	[pacbare]="$BARE -mbranch-protection=pac-ret+leaf"
)

# stack_scenarios MACHINE prints the names.
stack_scenarios() {
	printf '%s\n' "${!SCENARIO[@]}"
	case $1 in
	aarch64 | x86_64) printf '%s\n' "${!FOLLOWED[@]}" ;;
	riscv64 | s390x) echo bare ;;
	esac
	[[ $1 != aarch64 ]] || printf '%s\n' "${!ONLY_AARCH64[@]}"
}

# need_cross MACHINE finds the compiler, or installs it.
need_cross() {
	local triple=${TRIPLE[$1]}
	have "$triple-gcc" && return 0
	{ is_root && have apt-get; } || die "$triple-gcc is missing" "package gcc-${triple//_/-}"
	apt_install "no $triple-gcc here" "gcc-${triple//_/-}"
}

# Pages of the kernel that the program is for: 4096 for qemu's user mode, 65536 for Debian's kernel of ppc64le.
STACK_PAGE=4096

# build_stack MACHINE SCENARIO FILE FLAG...: build one program.
build_stack() {
	local machine=$1 scenario=$2 file=$3 flags
	shift 3
	read -ra flags <<<"${SCENARIO[$scenario]:-}${FOLLOWED[$scenario]:-}${ONLY_AARCH64[$scenario]:-}"
	[[ $machine != s390x || $scenario != chain ]] || flags+=(-mbackchain)
	"${TRIPLE[$machine]}-gcc" -nostdlib -static -ffreestanding -fno-stack-protector -Wl,--build-id -Wl,-z,noexecstack \
		-Wl,-z,"max-page-size=$STACK_PAGE" "${flags[@]}" "$@" -o "$file" "$STACK_SOURCE"
}
