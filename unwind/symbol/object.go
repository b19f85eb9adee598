package symbol

import (
	"cmp"
	"debug/elf"
	"fmt"
	"slices"
	"sort"
)

// Limits of an object.
const (
	maxSections = 4096
	maxSymbols  = 1 << 16
	maxName     = 1024    // bytes of a function's name
	maxNames    = 2 << 20 // total bytes of the functions' names; a process can list 128 objects
	maxFrames   = 1 << 20
)

// JITSpan is the range of addresses from Start to End (exclusive).
type JITSpan struct{ Start, End uint64 }

// holds reports whether the span contains an address.
func (s JITSpan) holds(addr uint64) bool { return addr >= s.Start && addr < s.End }

// JITFunction is a function of an object, with the addresses of its code.
type JITFunction struct {
	JITSpan

	Name string
}

// JITObject is the object file of a JITEntry.
type JITObject struct {
	// Code are the address ranges of the object's code.
	Code []JITSpan
	// Frames is the address range of the object's section .eh_frame in memory, where the program has relocated it. It
	// is empty if the object has no such section.
	Frames    JITSpan
	functions []JITFunction // by address
}

// OpenJIT reads the headers and the symbols of an entry's object for the given machine. The object may be relocatable:
// the program has then written the load address of each section into the section header. The error is ErrMalformed. If
// only the symbols are malformed, OpenJIT also returns the object, without functions.
func OpenJIT(m JITMemory, e JITEntry, machine elf.Machine) (*JITObject, error) {
	if e.File == 0 || e.Size == 0 || e.Size > maxFile || e.File+e.Size < e.File {
		return nil, fmt.Errorf("%w: object of %d bytes at %#x", ErrMalformed, e.Size, e.File)
	}
	f := file{memory: m, entry: e}
	if err := f.readHeaders(); err != nil {
		return nil, err
	}
	if f.machine != machine {
		return nil, fmt.Errorf("%w: object at %#x for %s", ErrMalformed, e.File, f.machine)
	}
	o := &JITObject{}
	for _, s := range f.sections {
		if s.addr == 0 || s.size == 0 || s.size > maxFile || s.addr+s.size < s.addr || s.flags&elf.SHF_ALLOC == 0 {
			continue
		}
		span := JITSpan{s.addr, s.addr + s.size}
		switch {
		case s.flags&elf.SHF_EXECINSTR != 0:
			o.Code = append(o.Code, span)
		case s.size <= maxFrames && f.named(s, ".eh_frame"):
			o.Frames = span
		}
	}
	var err error
	o.functions, err = f.functions()
	return o, err
}

// functions returns the functions in the symbol table, ordered by address. An object without symbols has no functions,
// which is not an error.
func (f *file) functions() ([]JITFunction, error) {
	symbols, names, err := f.symbols()
	if err != nil {
		return nil, err
	}
	var functions []JITFunction
	total := 0
	for i := elf.Sym64Size; i < len(symbols); i += elf.Sym64Size { // the first symbol is empty
		fn, ok := f.function(symbols[i:], names)
		if !ok {
			continue
		}
		if total += len(fn.Name); total > maxNames {
			return nil, fmt.Errorf("%w: names of the object at %#x: more than %d bytes", ErrMalformed, f.entry.File, maxNames)
		}
		functions = append(functions, fn)
	}
	slices.SortFunc(functions, func(a, b JITFunction) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End), cmp.Compare(a.Name, b.Name))
	})
	return functions, nil
}

// function returns the function that a symbol names. The result is false if the function is not completely in one
// section of code, or if its name cannot be printed. names is the string table.
func (f *file) function(symbol, names []byte) (JITFunction, bool) {
	const info, section, value, size = 4, 6, 8, 16
	start, length, index := f.order.Uint64(symbol[value:]), f.order.Uint64(symbol[size:]), f.order.Uint16(symbol[section:])
	if elf.ST_TYPE(symbol[info]) != elf.STT_FUNC || length == 0 || elf.SectionIndex(index) == elf.SHN_UNDEF ||
		int(index) >= len(f.sections) {
		return JITFunction{}, false
	}
	s := f.sections[index]
	if f.typ == elf.ET_REL {
		start += s.addr
	}
	off := start - s.addr
	if s.addr == 0 || s.flags&elf.SHF_EXECINSTR == 0 || off > s.size || length > s.size-off {
		return JITFunction{}, false
	}
	name := nameAt(names, f.order.Uint32(symbol))
	return JITFunction{JITSpan{start, start + length}, name}, printable(name)
}

// printable reports whether a name can be shown on one line.
func printable(name string) bool {
	for i := range len(name) {
		if name[i] <= ' ' || name[i] >= 0x7f {
			return false
		}
	}
	return name != ""
}

// Holds reports whether an address lies in the object's code.
func (o *JITObject) Holds(addr uint64) bool {
	return slices.ContainsFunc(o.Code, func(s JITSpan) bool { return s.holds(addr) })
}

// Function returns the function whose symbol covers an address. If a function lies inside another function, it returns
// the inner function. The result is false if there is none.
func (o *JITObject) Function(addr uint64) (JITFunction, bool) {
	const maxOverlap = 8
	i := sort.Search(len(o.functions), func(i int) bool { return o.functions[i].Start > addr })
	for low := max(0, i-maxOverlap); i > low; i-- {
		if f := &o.functions[i-1]; f.holds(addr) {
			return *f, true
		}
	}
	return JITFunction{}, false
}
