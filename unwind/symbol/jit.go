package symbol

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// JITMemory copies memory from addr into p. It returns false if not all of the memory is readable.
type JITMemory func(addr uint64, p []byte) bool

// JITDescriptor is the name of the program's variable that contains the head of the list of JIT entries.
// JITDescriptorSize is the variable's size in bytes in programs with 64-bit addresses.
const (
	JITDescriptor     = "__jit_debug_descriptor"
	JITDescriptorSize = 24
)

const (
	version    = 1
	entrySize  = 32
	maxEntries = 512
	maxFile    = 16 << 20
)

// ErrMalformed means that memory does not contain the structures of GDB's JIT interface.
var ErrMalformed = errors.New("malformed JIT information")

// JITEntry is an entry of the program's list (struct jit_code_entry). It refers to an object file in memory.
type JITEntry struct {
	// File and Size are the object's address and its length in bytes.
	File, Size uint64
}

// JITEntries reads the list whose head is the variable at descriptor, in a program with 64-bit addresses. If it returns
// an error, it also returns the entries found before. A program without registered code has no entries, which is not an
// error.
func JITEntries(m JITMemory, order binary.ByteOrder, descriptor uint64) ([]JITEntry, error) {
	var head [JITDescriptorSize]byte
	if !m(descriptor, head[:]) {
		return nil, fmt.Errorf("%w: no descriptor at %#x", ErrMalformed, descriptor)
	}
	const action, lastAction, first = 4, 2, 16
	at := order.Uint64(head[first:])
	if at == 0 {
		return nil, nil // the program may not have set the version yet
	}
	if order.Uint32(head[:]) != version || order.Uint32(head[action:]) > lastAction {
		return nil, fmt.Errorf("%w: descriptor at %#x", ErrMalformed, descriptor)
	}
	entries := make([]JITEntry, 0, 8)
	for range maxEntries {
		var e [entrySize]byte
		if !m(at, e[:]) {
			return entries, fmt.Errorf("%w: no entry at %#x", ErrMalformed, at)
		}
		const file, size = 16, 24
		entries = append(entries, JITEntry{File: order.Uint64(e[file:]), Size: order.Uint64(e[size:])})
		if at = order.Uint64(e[:]); at == 0 {
			return entries, nil
		}
	}
	return entries, fmt.Errorf("%w: more than %d entries", ErrMalformed, maxEntries)
}
