package capture

import (
	"encoding/binary"

	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind/arch"
)

// memory is the copied memory of a thread, from which its stack is unwound. It implements cfi.Memory.
type memory struct {
	order  binary.ByteOrder
	word   int
	stacks [1 + maxRecaptures]snapshot.Stack
	n      int
	others []snapshot.Stack // other stacks of the thread: those of its goroutines
}

func newMemory(th *snapshot.Thread, also []snapshot.Stack, a *arch.Arch) *memory {
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
		if p := m.stacks[i].At(addr, size); p != nil {
			return arch.Integer(m.order, p, size)
		}
	}
	for i := range m.others {
		if p := m.others[i].At(addr, size); p != nil {
			return arch.Integer(m.order, p, size)
		}
	}
	return 0, false
}
