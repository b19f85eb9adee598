package golang

import (
	"fmt"
	"sort"
)

// Function is a function of the table.
type Function struct {
	// Name is the name as Go's stack traces have it.
	Name string
	// Entry is the first address of the function. End is the first address after the function and the padding that may
	// follow it.
	Entry, End uint64
	// Flags are properties of the function.
	Flags Flags

	table                        *Table
	pcsp, pcfile, pcline, inline uint32 // offsets of tables; 0: none
	unit                         uint32
	tree                         uint64 // address of the inline tree; 0: none or unknown
}

// Flags are a function's abi.FuncFlag (internal/abi/symtab.go). Go 1.16 has no flags, and Go 1.17 lacks Assembly.
type Flags uint8

// The flags.
const (
	// TopFrame is set if the function is the outermost function of a stack.
	TopFrame Flags = 1 << iota
	// SPWrite is set if the function changes the stack pointer in a way that SPDelta does not describe.
	SPWrite
	// Assembly is set if the function is written in assembly language.
	Assembly
)

// Indices of tables: internal/abi/symtab.go.
const (
	pcdataInlined = 2
	funcdataTree  = 3
)

// Function returns a function by its number. Numbers are in the order of addresses, from 0 on.
func (t *Table) Function(i int) (*Function, error) {
	if i < 0 || uint64(i) >= t.functions {
		return nil, fmt.Errorf("%w: function %d of %d", ErrMalformed, i, t.functions)
	}
	size := t.field()
	p, err := t.bytes(t.funcs+uint64(i)*2*size, 3*size)
	if err != nil {
		return nil, err
	}
	if size == 8 {
		return t.function(t.order.Uint64(p), t.order.Uint64(p[8:]), t.order.Uint64(p[16:]))
	}
	entry, off, end := t.order.Uint32(p), t.order.Uint32(p[4:]), t.order.Uint32(p[8:])
	return t.function(t.text+uint64(entry), uint64(off), t.text+uint64(end))
}

// function reads the table's data of a function, at offset off from the list of functions.
func (t *Table) function(entry, off, end uint64) (*Function, error) {
	if t.format >= go118 && t.ptr == 4 {
		entry, end = uint64(uint32(entry)), uint64(uint32(end))
	}
	if off > t.size || end < entry {
		return nil, fmt.Errorf("%w: function at %#x, to %#x", ErrMalformed, entry, end)
	}
	f := &Function{table: t, Entry: entry, End: end}
	at := t.funcs + off + t.field() // the entry is known, so its field is skipped
	size := uint64(36)
	if t.format == go120 {
		size = 40
	}
	p, err := t.bytes(at, size)
	if err != nil {
		return nil, err
	}
	u32 := func(i uint64) uint32 { return t.order.Uint32(p[i:]) }
	f.pcsp, f.pcfile, f.pcline, f.unit = u32(12), u32(16), u32(20), u32(28)
	tables, data := uint64(u32(24)), uint64(p[size-1])
	f.Flags = Flags(p[size-3])
	if f.Name, err = t.str(t.names + uint64(u32(0))); err != nil {
		return nil, err
	}
	if tables > pcdataInlined {
		if p, err = t.bytes(at+size+4*pcdataInlined, 4); err != nil {
			return nil, err
		}
		f.inline = t.order.Uint32(p)
	}
	if f.inline != 0 && data > funcdataTree {
		f.tree, err = t.treeOf(at + size + 4*tables)
	}
	return f, err
}

// treeOf returns the address of a function's inline tree; 0 if it is unknown. off is the offset, from the table's
// header, of the list with the places of the function's data.
func (t *Table) treeOf(off uint64) (uint64, error) {
	if t.format == go116 {
		return t.oldTree(off)
	}
	if t.base == 0 {
		return 0, nil
	}
	p, err := t.bytes(off+funcdataTree*4, 4)
	if err != nil {
		return 0, err
	}
	if v := t.order.Uint32(p); v != ^uint32(0) {
		return t.base + uint64(v), nil
	}
	return 0, nil
}

// oldTree is like treeOf, but for Go 1.16 and 1.17, whose list has aligned absolute addresses. In position-independent
// programs the dynamic linker writes these addresses, so they are not in the file.
func (t *Table) oldTree(off uint64) (uint64, error) {
	if at := (t.addr + off) % t.ptr; at != 0 {
		off += t.ptr - at
	}
	p, err := t.bytes(off+funcdataTree*t.ptr, t.ptr)
	if err != nil {
		return 0, err
	}
	return t.word(p), nil
}

// entry returns the address of a function by its number. For the number after the last function, it returns the end of
// the last function.
func (t *Table) entry(i uint64) (uint64, error) {
	size := t.field()
	p, err := t.bytes(t.funcs+i*2*size, size)
	if err != nil {
		return 0, err
	}
	switch {
	case t.format == go116:
		return t.word(p), nil
	case t.ptr == 4:
		return uint64(uint32(t.text + uint64(t.order.Uint32(p)))), nil
	}
	return t.text + uint64(t.order.Uint32(p)), nil
}

// Find returns the function that contains an address. The address must belong to the function's own code, not to
// padding or C code after it. The error is ErrNotCovered or ErrMalformed.
func (t *Table) Find(addr uint64) (*Function, error) {
	var failed error
	n := sort.Search(int(t.functions)+1, func(i int) bool {
		entry, err := t.entry(uint64(i))
		if err != nil {
			failed = err
		}
		return entry > addr
	})
	if failed != nil {
		return nil, failed
	}
	if n == 0 || uint64(n) > t.functions {
		return nil, fmt.Errorf("%w: %#x", ErrNotCovered, addr)
	}
	f, err := t.Function(n - 1)
	if err != nil {
		return nil, err
	}
	if _, err := f.value(f.pcline, addr); err != nil {
		return nil, err
	}
	return f, nil
}

// SPDelta returns by how many bytes the function has lowered the stack pointer before the instruction at an address,
// compared to the function's first instruction.
func (f *Function) SPDelta(addr uint64) (int, error) {
	v, err := f.value(f.pcsp, addr)
	return int(v.value), err
}
