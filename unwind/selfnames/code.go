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

// Bounds of the scan. PostgreSQL has 6 MB of code, 17,000 functions and 200,000 pointers in code and data.
const (
	maxCode      = 64 << 20
	maxData      = 64 << 20
	maxFunctions = 1 << 18
	maxRefs      = 1 << 21
	maxSites     = 1 << 18
	// maxIdentifier bounds the names of functions, maxFile those of source files.
	maxIdentifier = 63
	maxFile       = 200
)

// function is the range of one entry of the call frame information: a function, or a part of one.
type function struct {
	start, end uint64
	// name is the name of an exported symbol at start, else empty.
	name string
	kind reporter
	// called: something calls it, or has its address.
	called bool
	// opaque: not all of its code could be decoded, or it reports errors with an unknown name.
	opaque bool
}

// reference is a pointer that a function makes.
type reference struct {
	fn int32
	// base: the function adds a number to the pointer, to make another one.
	base bool
	to   uint64
}

// jump is a jump that leaves a function.
type jump struct {
	fn          int32
	conditional bool
	to          uint64
}

// site is a call that reports where it is: the addresses of the names of the function and of the file.
type site struct {
	fn         int32
	name, file uint64
}

// reporter is a function that is called with the caller's place in the source.
type reporter uint8

const (
	noReporter reporter = iota
	// thirdIsName: the arguments are file, line, function.
	thirdIsName
	// fourthIsName: one more argument comes first.
	fourthIsName
)

// reporters are the functions of PostgreSQL 14 to 19 that are called so.
var reporters = map[string]reporter{
	"errfinish": thirdIsName, "errsave_finish": fourthIsName, "s_lock": fourthIsName,
}

// piece is a segment's content.
type piece struct {
	addr uint64
	data []byte
	code bool
}

// code is an image during the analysis.
type code struct {
	image   *elfimage.Image
	frames  *cfi.Table
	machine *machine
	pieces  []piece // read-only segments
	fns     []function
	first   []int32 // see at
	base    uint64

	refs  []reference
	sites []site
	jumps []jump
	// data are the functions whose addresses are in the image's data.
	data []int32
	// callees are the reporters that the image defines, and targets of calls that are not the start of a function.
	callees map[uint64]reporter
	entries []uint8 // see plain
}

// openCode reads the data for the sweep.
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

// reports returns whether the image defines or imports a reporter.
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

// relocation is the size of an entry that has the addend in itself.
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

// functions lists the ranges of the call frame information.
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

// apart drops functions that begin inside another one.
func apart(fns []function) []function {
	kept := fns[:0]
	for i := range fns {
		if n := len(kept); n == 0 || fns[i].start >= kept[n-1].end {
			kept = append(kept, fns[i])
		}
	}
	return kept
}

// span is how many bytes of code one entry of the index is for, as a shift.
const span = 6

// index makes the table that at begins with.
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

// pointers notes which functions the image's data points to.
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

// bytes returns n bytes at an address, nil if they are not read-only bytes of the image.
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

// text returns the string at an address, of limit bytes at most; empty if there is none. It shares the memory of the
// image's content.
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

// identifier returns the identifier of C at an address, empty if there is none.
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

// sourceFile returns the name of a source file at an address, empty if there is none.
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

// callee returns the kind of reporter that a call calls. If the image imports the reporter, the call goes to a stub,
// which jumps to the address in a slot.
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

// plain reports whether the frame at the start of function fn is the frame of an entry: the caller's return address is
// on top of the stack, and nothing is saved. A part that was moved elsewhere mostly begins with a frame.
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
