//go:build !amd64 && !arm64 && !ppc64le && !s390x && !riscv64

package snapshot

// stackPointers is empty for this architecture: captures contain registers and no stack.
var stackPointers [0]stackPointer

// FloatingSize is 0, because no ABI function saves general registers in floating point registers.
const FloatingSize = 0

// PRStatusSize is 0, because no layout is known.
const PRStatusSize = 0
