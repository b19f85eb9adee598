package naming

import (
	"encoding/binary"
	"sort"

	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
)

// memory is the copied memory for the walk of one goroutine: first its stack, then the other copies. It implements
// cfi.Memory.
type memory struct {
	*GoCopies

	stack snapshot.Stack
}

// GoCopies has all the memory that a stop has copied, or the memory of a core file.
type GoCopies struct {
	Order binary.ByteOrder
	Snap  *snapshot.Snapshot
	Core  cfi.Memory // nil: use the snapshot
	// sorted has the snapshot's blocks by address. It is nil until the first search.
	sorted []snapshot.Stack
}

// Word returns the word at addr.
func (m *memory) Word(addr uint64) (uint64, bool) { return m.Read(addr, 8) }

// Read returns the unsigned integer of size bytes (1, 2, 4, 8) at addr.
func (m *memory) Read(addr uint64, size int) (uint64, bool) {
	if m.Core != nil {
		return m.Core.Read(addr, size)
	}
	p := m.stack.At(addr, size)
	for i := 0; p == nil && i < len(m.Snap.Threads); i++ {
		p = m.Snap.Threads[i].Stack.At(addr, size)
	}
	if p == nil {
		p = m.block(addr, size)
	}
	if p == nil {
		return 0, false
	}
	return arch.Integer(m.Order, p, size)
}

// block returns size bytes at addr from the copied structures and stacks of the other goroutines, or nil.
func (m *GoCopies) block(addr uint64, size int) []byte {
	if m.sorted == nil {
		m.sorted = make([]snapshot.Stack, 0, len(m.Snap.Blocks))
		for _, b := range m.Snap.Blocks {
			if b.Data != nil {
				m.sorted = append(m.sorted, b)
			}
		}
		sort.Slice(m.sorted, func(i, j int) bool { return m.sorted[i].Start < m.sorted[j].Start })
	}
	i := sort.Search(len(m.sorted), func(i int) bool { return m.sorted[i].Start > addr })
	for j := i - 1; j >= 0 && j >= i-2; j-- { // two blocks may begin at one address: see GoPlan.Add
		if p := m.sorted[j].At(addr, size); p != nil {
			return p
		}
	}
	return nil
}
