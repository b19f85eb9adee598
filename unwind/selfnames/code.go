package selfnames

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"

	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/symbol"
)

// Bounds of the analysis of an image's code. PostgreSQL has 6 MB of code, 17,000 functions and 200,000 pointers in code
// and data.
const (
	maxCode      = 64 << 20
	maxData      = 64 << 20
	maxFunctions = 1 << 18
	maxRefs      = 1 << 21
	maxSites     = 1 << 18
	// maxIdentifier bounds the names of functions in bytes, maxFile the names of source files.
	maxIdentifier = 63
	maxFile       = 200
)

// function is the address range of one entry of the call frame information: a whole function, or a part of a function.
type function struct {
	start, end uint64
	// name is the name of the exported symbol at the function's start; empty: there is none.
	name string
	kind reporter
	// called is set if other code calls the function, or if code or data contains its address.
	called bool
	// opaque is set if the function's code could not be decoded completely, or if it reports an error and the name
	// (__func__) that it passes to the report could not be determined.
	opaque bool
}

// reference is a pointer that the code of function fn contains or computes, to an address of the image.
type reference struct {
	fn int32
	// base is set if the function adds a number to the pointer and so computes another pointer.
	base bool
	to   uint64
}

// jump is a jump from function fn to an address outside the function.
type jump struct {
	fn          int32
	conditional bool
	to          uint64
}

// site is a call of a reporter in function fn: the addresses of the names of the function and of the file that it
// reports.
type site struct {
	fn         int32
	name, file uint64
}

// reporter says how a function, such as errfinish, gets the names of its caller's file and function as arguments.
type reporter uint8

const (
	noReporter reporter = iota
	// thirdIsName: the arguments are file, line and name of the function.
	thirdIsName
	// fourthIsName: one other argument precedes file, line and name.
	fourthIsName
)

// reporters are the functions of PostgreSQL 14 to 19 that get their caller's file and function name.
var reporters = map[string]reporter{
	"errfinish": thirdIsName, "errsave_finish": fourthIsName, "s_lock": fourthIsName,
}

// piece is a segment's content.
type piece struct {
	addr uint64
	data []byte
	code bool
}

// code has the data of an image during the analysis of its code.
type code struct {
	image   *elfimage.Image
	frames  *cfi.Table
	machine *machine
	pieces  []piece // read-only segments
	fns     []function
	first   []int32 // see method at
	base    uint64

	refs  []reference
	sites []site
	jumps []jump
	// The field data lists the functions to which the image's data points.
	data []int32
	// callees caches how the functions at called addresses report errors. It has the addresses of the reporters that
	// the image defines, and called addresses at which no function of fns starts.
	callees map[uint64]reporter
	entries []uint8 // see method plain
}

// openCode reads the image's functions and pointers, before its code is decoded. The error is ErrForeign if the image
// reports no errors as PostgreSQL does, and ErrTooLarge if it exceeds a bound.
func openCode(m *elfimage.Image, frames *cfi.Table, exported *symbol.Table) (*code, error) {
	c := &code{
		image: m, frames: frames, machine: machines[m.Machine()],
		callees: make(map[uint64]reporter),
	}
	relocations := c.relocations()
	if !c.reports(relocations) {
		return nil, ErrForeign
	}
	total := uint64(0)
	for _, s := range m.Segments() {
		if s.Flags&elf.PF_W != 0 || s.Filesz == 0 {
			continue
		}
		if total += s.Filesz; total > maxCode+maxData {
			return nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, total)
		}
		data, err := m.Bytes(s.Vaddr, s.Filesz)
		if err != nil {
			return nil, err
		}
		c.pieces = append(c.pieces, piece{s.Vaddr, data, s.Flags&elf.PF_X != 0})
	}
	if err := c.functions(exported); err != nil {
		return nil, err
	}
	c.pointers(relocations)
	return c, nil
}

// reports returns whether the image defines or imports a reporter. It stores the addresses of defined reporters in
// callees.
func (c *code) reports(relocations [][]byte) bool {
	names := make([]string, 0, len(reporters))
	for name := range reporters {
		names = append(names, name)
	}
	defined, err := c.image.Defined(names...)
	if err != nil {
		return false
	}
	for name, addr := range defined {
		if addr != 0 {
			c.callees[addr] = reporters[name]
		}
	}
	if len(c.callees) > 0 {
		return true
	}
	for _, p := range relocations {
		for ; len(p) >= relocation; p = p[relocation:] {
			if reporters[c.image.Imported(binary.LittleEndian.Uint64(p))] != noReporter {
				return true
			}
		}
	}
	return false
}

// relocation is the size in bytes of a relocation with an addend.
const relocation = 24

// relocations reads the relocations that the dynamic linker applies to the image's data.
func (c *code) relocations() (found [][]byte) {
	for _, name := range []string{".rela.dyn", ".rela.plt"} {
		if p, _, err := c.image.Section(name); err == nil && len(p) <= relocation*maxRefs {
			found = append(found, p)
		}
	}
	return found
}

// functions lists the ranges that the call frame information covers.
func (c *code) functions(exported *symbol.Table) error {
	const typical = 1 << 14
	c.fns = make([]function, 0, typical)
	for fde := range c.frames.FDEs {
		if len(c.fns) >= maxFunctions {
			return fmt.Errorf("%w: more than %d functions", ErrTooLarge, maxFunctions)
		}
		if c.image.Executable(fde.Start) && c.bytes(fde.Start, fde.End-fde.Start) != nil {
			c.fns = append(c.fns, function{start: fde.Start, end: fde.End})
		}
	}
	if byStart := func(a, b function) int { return cmp.Compare(a.start, b.start) }; !slices.IsSortedFunc(c.fns, byStart) {
		slices.SortStableFunc(c.fns, byStart)
	}
	c.fns = apart(c.fns)
	if len(c.fns) == 0 {
		return ErrForeign
	}
	for i := range c.fns {
		f := &c.fns[i]
		if s, ok := exported.Lookup(f.start, f.start, f.end); ok && s.Addr == f.start {
			f.name = s.Name
		}
	}
	c.entries = make([]uint8, len(c.fns))
	c.index()
	for addr, kind := range c.callees {
		if fn := c.starting(addr); fn >= 0 {
			c.fns[fn].kind = kind
		}
	}
	return nil
}

// apart removes functions that begin inside another function.
func apart(fns []function) []function {
	kept := fns[:0]
	for i := range fns {
		if n := len(kept); n == 0 || fns[i].start >= kept[n-1].end {
			kept = append(kept, fns[i])
		}
	}
	return kept
}

// span is the base-2 logarithm of the number of bytes of code for which the list first has one element.
const span = 6

// index makes the list in the field first. For each 2^span bytes of code, this list contains the last function that
// starts at or before these bytes.
func (c *code) index() {
	c.base = c.fns[0].start
	last := c.fns[len(c.fns)-1].end - c.base
	if last > maxCode {
		c.fns = c.fns[:1]
		last = c.fns[0].end - c.base
	}
	c.first = make([]int32, last>>span+1)
	fn := int32(0)
	for i := range c.first {
		addr := c.base + uint64(i)<<span
		for int(fn)+1 < len(c.fns) && c.fns[fn+1].start <= addr {
			fn++
		}
		c.first[i] = fn
	}
}

// at returns the function that covers an address, or -1.
func (c *code) at(addr uint64) int32 {
	i := (addr - c.base) >> span
	if addr < c.base || i >= uint64(len(c.first)) {
		return -1
	}
	fn := c.first[i]
	for int(fn)+1 < len(c.fns) && c.fns[fn+1].start <= addr {
		fn++
	}
	if addr < c.fns[fn].end && addr >= c.fns[fn].start {
		return fn
	}
	return -1
}

// starting returns the function that begins at an address, or -1.
func (c *code) starting(addr uint64) int32 {
	if fn := c.at(addr); fn >= 0 && c.fns[fn].start == addr {
		return fn
	}
	return -1
}

// pointers records the functions to which the image's data points, by its relative relocations.
func (c *code) pointers(relocations [][]byte) {
	for _, p := range relocations {
		for ; len(p) >= relocation; p = p[relocation:] {
			if binary.LittleEndian.Uint64(p[8:]) != c.machine.relative {
				continue
			}
			if fn := c.starting(binary.LittleEndian.Uint64(p[16:])); fn >= 0 {
				c.fns[fn].called = true
				c.data = append(c.data, fn)
			}
		}
	}
}

// bytes returns n bytes at an address; nil if they are not in one read-only segment of the image.
func (c *code) bytes(addr, n uint64) []byte {
	for i := range c.pieces {
		p := &c.pieces[i]
		if addr >= p.addr && addr-p.addr < uint64(len(p.data)) {
			if off := addr - p.addr; n <= uint64(len(p.data))-off {
				return p.data[off : off+n]
			}
		}
	}
	return nil
}

// text returns the string at an address, of at most limit bytes; empty if there is none. The string shares the memory
// of the image's content.
func (c *code) text(addr uint64, limit int) string {
	for i := range c.pieces {
		p := &c.pieces[i]
		if addr < p.addr || addr-p.addr >= uint64(len(p.data)) {
			continue
		}
		s := p.data[addr-p.addr:]
		s = s[:min(len(s), limit+1)]
		if n := bytes.IndexByte(s, 0); n > 0 {
			return bytesString(s[:n])
		}
	}
	return ""
}

// identifier returns the C identifier that is stored at an address; empty if there is none.
func (c *code) identifier(addr uint64) string {
	s := c.text(addr, maxIdentifier)
	for i := range len(s) {
		b := s[i]
		if b != '_' && (b|0x20 < 'a' || b|0x20 > 'z') && (i == 0 || b < '0' || b > '9') {
			return ""
		}
	}
	return s
}

// sourceFile returns the name of a source file that is stored at an address; empty if there is none.
func (c *code) sourceFile(addr uint64) string {
	s := c.text(addr, maxFile)
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return ""
		}
	}
	for _, end := range []string{".c", ".h", ".y", ".l"} {
		if len(s) > len(end) && s[len(s)-len(end):] == end {
			return s
		}
	}
	return ""
}

// callee returns how the function that begins at a call's target reports errors. If the image imports this function,
// the target is a stub, which jumps to the address in a slot.
func (c *code) callee(target uint64) reporter {
	if fn := c.starting(target); fn >= 0 {
		return c.fns[fn].kind
	}
	if kind, known := c.callees[target]; known {
		return kind
	}
	const bound = 1 << 16
	kind := noReporter
	if slot := c.stubSlot(target); slot != 0 {
		kind = reporters[c.image.Imported(slot)]
	}
	if len(c.callees) < bound {
		c.callees[target] = kind
	}
	return kind
}

// plain reports whether function fn starts with the frame of a function's entry: the caller's return address is on top
// of the stack or in the link register, and nothing is saved. A part of a function that the compiler has moved
// elsewhere mostly starts inside a frame.
func (c *code) plain(fn int32) bool {
	const isPlain, isFramed = 1, 2
	if c.entries[fn] == 0 {
		c.entries[fn] = isFramed
		if row, err := c.frames.Row(c.fns[fn].start); err == nil && c.machine.isEntry(&row) {
			c.entries[fn] = isPlain
		}
	}
	return c.entries[fn] == isPlain
}
