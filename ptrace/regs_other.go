//go:build !amd64 && !arm64 && !ppc64le && !s390x && !riscv64

package ptrace

// stackPointers knows nothing of this architecture: captures hold registers and no stack.
var stackPointers [0]stackPointer

// floatingSize: no ABI keeps general registers in floating point ones.
const floatingSize = 0
