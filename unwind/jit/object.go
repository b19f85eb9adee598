package jit

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sort"
)

// Bounds of an object.
const (
	maxSections = 4096
	maxPrograms = 64
	maxSymbols  = 1 << 16
	maxName     = 1024
	maxFrames   = 1 << 20
)

// Span is a range of addresses, End behind it.
type Span struct{ Start, End uint64 }

// holds reports whether the span has an address.
func (s Span) holds(addr uint64) bool { return addr >= s.Start && addr < s.End }

// Function is a function of an object.
type Function struct {
	Span

	Name string
}

// Object is the code of an entry.
type Object struct {
	// Code are the addresses of its code.
	Code []Span
	// Frames is the address range of its .eh_frame section in memory, relocated. It is empty if there is none.
	Frames    Span
	functions []Function // by address
}

// Open reads the headers and the symbols of an entry's object for the given machine. The object may be relocatable.
// The program has then written the load address of each section into the section headers.
func Open(m Memory, e Entry, machine elf.Machine) (*Object, error) {
	if e.File == 0 || e.Size == 0 || e.Size > maxFile || e.File+e.Size < e.File {
		return nil, fmt.Errorf("%w: object of %d bytes at %#x", ErrMalformed, e.Size, e.File)
	}
	if !modest(m, e) {
		return nil, fmt.Errorf("%w: header of the object at %#x", ErrMalformed, e.File)
	}
	f, err := elf.NewFile(reader{m, e})
	if err != nil {
		return nil, fmt.Errorf("%w: object at %#x: %w", ErrMalformed, e.File, err)
	}
	if f.Machine != machine {
		return nil, fmt.Errorf("%w: object at %#x for %s", ErrMalformed, e.File, f.Machine)
	}
	o := &Object{}
	for _, s := range f.Sections {
		if s.Addr == 0 || s.Size == 0 || s.Size > maxFile || s.Addr+s.Size < s.Addr || s.Flags&elf.SHF_ALLOC == 0 {
			continue
		}
		span := Span{s.Addr, s.Addr + s.Size}
		switch {
		case s.Flags&elf.SHF_EXECINSTR != 0:
			o.Code = append(o.Code, span)
		case s.Name == ".eh_frame" && s.Size <= maxFrames:
			o.Frames = span
		}
	}
	return o, o.readSymbols(f, e)
}

// modest reports whether the header of a 64-bit object declares no more headers than usual objects have. Open checks
// this before it allocates memory, because each program header takes a separate read.
func modest(m Memory, e Entry) bool {
	const programs, sections = 56, 60
	var h [64]byte
	if e.Size < uint64(len(h)) || !m(e.File, h[:]) || string(h[:4]) != elf.ELFMAG || elf.Class(h[4]) != elf.ELFCLASS64 {
		return false
	}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(h[5]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	n := order.Uint16(h[sections:])
	return n > 0 && n <= maxSections && order.Uint16(h[programs:]) <= maxPrograms
}

// readSymbols takes the functions of the symbol table.
func (o *Object) readSymbols(f *elf.File, e Entry) error {
	table := f.SectionByType(elf.SHT_SYMTAB)
	if table == nil {
		return nil
	}
	if table.Flags&elf.SHF_COMPRESSED != 0 || table.Size > maxSymbols*elf.Sym64Size ||
		uint64(table.Link) >= uint64(len(f.Sections)) ||
		f.Sections[table.Link].Flags&elf.SHF_COMPRESSED != 0 || f.Sections[table.Link].Size > e.Size {
		return fmt.Errorf("%w: symbols of the object at %#x", ErrMalformed, e.File)
	}
	symbols, err := f.Symbols()
	if err != nil {
		return fmt.Errorf("%w: symbols of the object at %#x: %w", ErrMalformed, e.File, err)
	}
	for i := range symbols {
		if fn, ok := function(f, &symbols[i]); ok {
			o.functions = append(o.functions, fn)
		}
	}
	slices.SortFunc(o.functions, func(a, b Function) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End), cmp.Compare(a.Name, b.Name))
	})
	return nil
}

// function returns the function of a symbol that lies completely in a section of code.
func function(f *elf.File, s *elf.Symbol) (Function, bool) {
	if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Size == 0 || !printable(s.Name) ||
		s.Section == elf.SHN_UNDEF || int(s.Section) >= len(f.Sections) {
		return Function{}, false
	}
	section := f.Sections[s.Section]
	start := s.Value
	if f.Type == elf.ET_REL {
		start += section.Addr
	}
	off := start - section.Addr
	if section.Addr == 0 || section.Flags&elf.SHF_EXECINSTR == 0 || off > section.Size || s.Size > section.Size-off {
		return Function{}, false
	}
	return Function{Span{start, start + s.Size}, s.Name}, true
}

// printable reports whether a name can be shown on one line.
func printable(name string) bool {
	for i := range len(name) {
		if name[i] <= ' ' || name[i] >= 0x7f {
			return false
		}
	}
	return name != "" && len(name) <= maxName
}

// Holds reports whether an address lies in the object's code.
func (o *Object) Holds(addr uint64) bool {
	return slices.ContainsFunc(o.Code, func(s Span) bool { return s.holds(addr) })
}

// Function returns the function whose symbol covers an address. If one function lies in another, it returns the
// innermost.
func (o *Object) Function(addr uint64) (Function, bool) {
	const maxOverlap = 8
	i := sort.Search(len(o.functions), func(i int) bool { return o.functions[i].Start > addr })
	for low := max(0, i-maxOverlap); i > low; i-- {
		if f := &o.functions[i-1]; f.holds(addr) {
			return *f, true
		}
	}
	return Function{}, false
}

// reader is an entry's object as a file.
type reader struct {
	memory Memory
	entry  Entry
}

// ReadAt implements io.ReaderAt.
func (r reader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || uint64(off) >= r.entry.Size {
		return 0, io.EOF
	}
	n := min(uint64(len(p)), r.entry.Size-uint64(off))
	if !r.memory(r.entry.File+uint64(off), p[:n]) {
		return 0, io.ErrUnexpectedEOF
	}
	if n < uint64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}
