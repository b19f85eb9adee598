// Package jit reads the data that a program with a JIT compiler provides for debuggers: the list of GDB's JIT
// interface ("Debugging with GDB", section "JIT Compilation Interface"). LLVM maintains the list on request (in
// PostgreSQL: jit_debugging_support = on). Each entry has an ELF object. The object gives the addresses of the code,
// the names of its functions, and the address of its call frame information in memory.
//
// The package reads everything through a function and within limits, because the memory of another process may
// contain anything.
//
// The package must not know how that memory was copied or how callers use names and frames.
package jit

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Memory copies memory from addr into p; false if not all of it is readable.
type Memory func(addr uint64, p []byte) bool

// Descriptor is the name of the variable that the list begins with, DescriptorSize its size in bytes where addresses
// have 64 bits.
const (
	Descriptor     = "__jit_debug_descriptor"
	DescriptorSize = 24
)

const (
	version    = 1
	entrySize  = 32
	maxEntries = 512
	maxFile    = 16 << 20
)

// ErrMalformed means that the memory does not contain the structures of the interface.
var ErrMalformed = errors.New("malformed JIT information")

// Entry is a jit_code_entry: an object file in memory.
type Entry struct {
	// File and Size are the object's address and its length in bytes.
	File, Size uint64
}

// Entries reads the list from the descriptor at an address, in a program with 64-bit addresses. With an error it
// returns the entries found before. A program without registered code has no entries, which is not an error.
func Entries(m Memory, order binary.ByteOrder, descriptor uint64) ([]Entry, error) {
	var head [DescriptorSize]byte
	if !m(descriptor, head[:]) {
		return nil, fmt.Errorf("%w: no descriptor at %#x", ErrMalformed, descriptor)
	}
	const action, lastAction, first = 4, 2, 16
	at := order.Uint64(head[first:])
	if at == 0 {
		return nil, nil // its version may not have been set yet
	}
	if order.Uint32(head[:]) != version || order.Uint32(head[action:]) > lastAction {
		return nil, fmt.Errorf("%w: descriptor at %#x", ErrMalformed, descriptor)
	}
	entries := make([]Entry, 0, 8)
	for range maxEntries {
		var e [entrySize]byte
		if !m(at, e[:]) {
			return entries, fmt.Errorf("%w: no entry at %#x", ErrMalformed, at)
		}
		const file, size = 16, 24
		entries = append(entries, Entry{File: order.Uint64(e[file:]), Size: order.Uint64(e[size:])})
		if at = order.Uint64(e[:]); at == 0 {
			return entries, nil
		}
	}
	return entries, fmt.Errorf("%w: more than %d entries", ErrMalformed, maxEntries)
}
