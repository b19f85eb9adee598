package ptrace

import "encoding/binary"

// maxRegisters is larger than the general registers of any architecture.
const maxRegisters = 512

// stackPointer tells where the stack pointer is in a register set of the given length, which identifies the layout:
// a 64-bit kernel gives the shorter set of its 32-bit sibling for a 32-bit process.
type stackPointer struct {
	length, offset, size int
}

// spOf takes the stack pointer out of NT_PRSTATUS registers; false if the layout is unknown.
//
//go:nosplit
//go:norace
func spOf(registers *[maxRegisters]byte, length int) (uint64, bool) {
	for i := range stackPointers {
		layout := &stackPointers[i]
		if layout.length != length {
			continue
		}
		if layout.size == 4 {
			return uint64(binary.NativeEndian.Uint32(registers[layout.offset:])), true
		}
		return binary.NativeEndian.Uint64(registers[layout.offset:]), true
	}
	return 0, false
}
