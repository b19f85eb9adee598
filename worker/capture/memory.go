package capture

import (
	"encoding/binary"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/unwind/arch"
)

// memory is the copied part of a thread's memory. It implements cfi.Memory.
type memory struct {
	order  binary.ByteOrder
	word   int
	stacks [1 + maxRecaptures]ptrace.Stack
	n      int
	others []ptrace.Stack // of the thread's goroutines
}

func newMemory(th *ptrace.Thread, also []ptrace.Stack, a *arch.Arch) *memory {
	m := &memory{order: a.Order, word: a.AddrSize, others: th.Others}
	m.stacks[0] = th.Stack
	m.n = 1 + copy(m.stacks[1:], also)
	return m
}

// Word returns the address-sized word at addr.
func (m *memory) Word(addr uint64) (uint64, bool) { return m.Read(addr, m.word) }

// Read returns the unsigned integer of size bytes (1, 2, 4, 8) at addr.
func (m *memory) Read(addr uint64, size int) (uint64, bool) {
	for i := range m.stacks[:m.n] {
		if p := part(&m.stacks[i], addr, size); p != nil {
			return integer(m.order, p, size)
		}
	}
	for i := range m.others {
		if p := part(&m.others[i], addr, size); p != nil {
			return integer(m.order, p, size)
		}
	}
	return 0, false
}

// part returns the bytes from an address of a copy on, nil if it does not have size of them.
func part(s *ptrace.Stack, addr uint64, size int) []byte {
	off := addr - s.Start
	if addr < s.Start || off > uint64(len(s.Data)) || uint64(len(s.Data))-off < uint64(size) {
		return nil
	}
	return s.Data[off:]
}

// integer reads the unsigned integer of size bytes (1, 2, 4, 8) that p begins with.
func integer(order binary.ByteOrder, p []byte, size int) (uint64, bool) {
	switch size {
	case 8:
		return order.Uint64(p), true
	case 4:
		return uint64(order.Uint32(p)), true
	case 2:
		return uint64(order.Uint16(p)), true
	case 1:
		return uint64(p[0]), true
	}
	return 0, false
}
