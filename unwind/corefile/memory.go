package corefile

import (
	"errors"
	"io"
	"slices"
	"sort"
)

// ErrNoMemory means that an address is missing in the core and in the mapped files.
var ErrNoMemory = errors.New("memory not in the core")

// ReadAt reads memory from the core itself, not from mapped files. It returns the number of bytes read. The error is
// ErrNoMemory if these are fewer than requested.
func (c *Core) ReadAt(addr uint64, p []byte) (int, error) {
	done := 0
	for done < len(p) {
		at := addr + uint64(done)
		i := c.segmentAt(at)
		if i < 0 {
			return done, ErrNoMemory
		}
		s := &c.Segments[i]
		off := at - s.Vaddr
		if off >= s.Filesz {
			return done, ErrNoMemory
		}
		want := min(uint64(len(p)-done), s.Filesz-off)
		if s.Offset+off > 1<<62 {
			return done, ErrNoMemory
		}
		n, _ := c.reader.ReadAt(p[done:][:want], int64(s.Offset+off))
		done += n
		if uint64(n) < want {
			return done, ErrNoMemory
		}
	}
	return done, nil
}

// segmentAt returns the index of the memory range that contains addr, or -1.
func (c *Core) segmentAt(addr uint64) int {
	i := sort.Search(len(c.Segments), func(i int) bool { return c.Segments[i].Vaddr > addr }) - 1
	if i < 0 || addr-c.Segments[i].Vaddr >= c.Segments[i].Memsz {
		return -1
	}
	return i
}

// Backing is a range of the process's memory whose content is in a file.
type Backing struct {
	// Start and End are the limits of the range's addresses, End exclusive.
	Start, End uint64
	// Offset is the file offset of the byte at Start.
	Offset uint64
	File   io.ReaderAt
}

// Memory is the process's memory: from the core or, where the core has no content, from the mapped files. It implements
// cfi.Memory. It caches the page that was read last, so it is not safe for concurrent use.
type Memory struct {
	core    *Core
	backing []Backing
	page    [memoryPage]byte
	at      uint64
	valid   uint64 // number of bytes of the field page that are valid
}

// memoryPage is the number of bytes that Memory reads at once. Their address is a multiple of this number. No
// architecture has smaller pages.
const memoryPage = 4096

// NewMemory returns the memory of the core and the files.
func NewMemory(c *Core, files []Backing) *Memory {
	m := &Memory{core: c, backing: slices.Clone(files)}
	slices.SortFunc(m.backing, func(a, b Backing) int {
		switch {
		case a.Start < b.Start:
			return -1
		case a.Start > b.Start:
			return 1
		}
		return 0
	})
	return m
}

// Word implements cfi.Memory.
func (m *Memory) Word(addr uint64) (uint64, bool) { return m.Read(addr, m.core.Arch.AddrSize) }

// Read implements cfi.Memory.
func (m *Memory) Read(addr uint64, size int) (uint64, bool) {
	var p [8]byte
	if size <= 0 || size > len(p) || !m.Bytes(addr, p[:size]) {
		return 0, false
	}
	order := m.core.Arch.Order
	switch size {
	case 8:
		return order.Uint64(p[:]), true
	case 4:
		return uint64(order.Uint32(p[:])), true
	case 2:
		return uint64(order.Uint16(p[:])), true
	case 1:
		return uint64(p[0]), true
	}
	return 0, false
}

// Bytes fills p with the memory at addr. It returns false if a part is missing.
func (m *Memory) Bytes(addr uint64, p []byte) bool {
	for len(p) > 0 {
		at := addr &^ (memoryPage - 1)
		if m.valid == 0 || m.at != at {
			m.load(at)
		}
		off := addr - at
		if off >= m.valid {
			return false
		}
		n := copy(p, m.page[off:m.valid])
		p = p[n:]
		addr += uint64(n)
	}
	return true
}

// load reads the page at an address into m.page, from the core and, as far as the core lacks it, from the mapped files.
func (m *Memory) load(at uint64) {
	n, _ := m.core.ReadAt(at, m.page[:])
	m.at, m.valid = at, uint64(n)
	if n == len(m.page) {
		return
	}
	i := sort.Search(len(m.backing), func(i int) bool { return m.backing[i].Start > at+m.valid }) - 1
	if i < 0 || at+m.valid >= m.backing[i].End {
		return
	}
	b := &m.backing[i]
	want := min(memoryPage-m.valid, b.End-at-m.valid)
	off := b.Offset + (at + m.valid - b.Start)
	if off > 1<<62 {
		return
	}
	n, _ = b.File.ReadAt(m.page[m.valid:][:want], int64(off))
	m.valid += uint64(n)
}
