package snapshot

import "unsafe"

// MaxRegisters is a number of bytes with room for the general registers of any architecture.
const MaxRegisters = 512

// stackPointer is the position of the stack pointer in a register set of the given length. The length identifies the
// layout: for a 32-bit process, a 64-bit kernel returns the shorter register set of the 32-bit architecture.
type stackPointer struct {
	length, offset, size int
}

// StackPointer returns the stack pointer in NT_PRSTATUS registers; false if registers of this length are unknown.
//
//go:nosplit
//go:norace
func StackPointer(registers *[MaxRegisters]byte, length int) (uint64, bool) {
	for i := range stackPointers {
		layout := &stackPointers[i]
		if layout.length != length {
			continue
		}
		// The offsets come from the tables, and are aligned and inside. Package binary would check this again, which
		// needs stack. Functions that may not grow their stack have little of it.
		at := unsafe.Add(unsafe.Pointer(registers), layout.offset)
		if layout.size == 4 {
			return uint64(*(*uint32)(at)), true
		}
		return *(*uint64)(at), true
	}
	return 0, false
}
