//go:build !amd64 && !arm64 && !ppc64le && !s390x && !riscv64

package ptrace

// stackPointers is empty for this architecture: captures contain registers and no stack.
var stackPointers [0]stackPointer

// floatingSize is 0, because no ABI function saves general registers in floating point registers.
const floatingSize = 0

// prStatusSize is 0, because no layout is known.
const prStatusSize = 0
