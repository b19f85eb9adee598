//go:build !amd64 && !arm64 && !ppc64le && !s390x && !riscv64

package snapshot

// stackPointers is empty for this architecture: captures contain registers and no stack.
var stackPointers [0]stackPointer

// FloatingSize is 0: on this architecture, functions do not save general registers in floating point registers.
const FloatingSize = 0

// PRStatusSize is 0, because the layout of the registers is unknown on this architecture.
const PRStatusSize = 0
