package elfimage

import (
	"debug/elf"
	"fmt"
	"iter"
	"strings"
	"unsafe"
)

// Symbol is an entry of a symbol table, with the values in the file (gABI, chapter 4, "Symbol Table").
type Symbol struct {
	// Name shares memory with the whole string table. Clone it to keep it longer than the table.
	Name string
	// Addr is the link-time address (st_value), Size the size in bytes.
	Addr, Size uint64
	Type       elf.SymType
	Bind       elf.SymBind
	// Section is st_shndx: an index of a section header, or one of the special values (SHN_ABS, SHN_XINDEX …).
	Section elf.SectionIndex
}

const (
	// maxSymbols bounds the number of entries of one table. A browser has about a million.
	maxSymbols = 2 << 20
	// maxName bounds the length of a name in bytes. The longest C++ names have some ten thousand. Names can overlap:
	// without a bound, reading many that end late would take time in proportion to the square of the file's size.
	maxName = 16 << 10
)

// Symbols returns the entries of a symbol table, ".symtab" or ".dynsym", in their order and without the null entry. It
// reads the whole table, and the iterator keeps it in memory. An entry is skipped if its name lies outside the string
// table or is longer than 16 KiB. The error is ErrNoSection, ErrTooLarge, ErrMalformed or an error of the image's
// reader.
func (m *Image) Symbols(table string) (iter.Seq[Symbol], error) {
	s := m.find(table)
	if s == nil || s.typ != elf.SHT_SYMTAB && s.typ != elf.SHT_DYNSYM {
		return nil, fmt.Errorf("%s: %s: %w", m.name, table, ErrNoSection)
	}
	entries, names, err := m.symbolTable(s)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", m.name, table, err)
	}
	entsize := m.layout.pick(24, 16)
	return func(yield func(Symbol) bool) {
		for off := entsize; off+entsize <= len(entries); off += entsize {
			sym, ok := m.layout.parseSymbol(entries[off:], names)
			if ok && !yield(sym) {
				return
			}
		}
	}, nil
}

// SymbolCount returns the number of entries in a symbol table by its size, at most maxSymbols; 0 if the table is
// missing or exceeds the file.
func (m *Image) SymbolCount(table string) int {
	s := m.find(table)
	if s == nil || m.src.check(s.offset, s.size) != nil {
		return 0
	}
	return int(min(s.size/uint64(m.layout.pick(24, 16)), maxSymbols))
}

// symbolTable reads a symbol table and its string table.
func (m *Image) symbolTable(s *section) ([]byte, strtab, error) {
	entsize := uint64(m.layout.pick(24, 16))
	if s.entsize != 0 && s.entsize != entsize {
		return nil, "", fmt.Errorf("%w: entries of %d bytes", ErrMalformed, s.entsize)
	}
	if s.size/entsize > maxSymbols {
		return nil, "", fmt.Errorf("%w: %d symbols", ErrTooLarge, s.size/entsize)
	}
	if uint64(s.link) >= uint64(len(m.sections)) || m.sections[s.link].typ != elf.SHT_STRTAB {
		return nil, "", fmt.Errorf("%w: no string table", ErrMalformed)
	}
	entries, err := m.content(s)
	if err != nil {
		return nil, "", err
	}
	names, err := m.content(&m.sections[s.link])
	if err != nil {
		return nil, "", fmt.Errorf("strings: %w", err)
	}
	return entries, stringTable(names), nil
}

// parseSymbol reads one entry. The result is false if the entry's name is invalid.
func (l layout) parseSymbol(p []byte, names strtab) (Symbol, bool) {
	var s Symbol
	name, ok := names.at(uint64(l.order.Uint32(p)))
	s.Name = name
	var info byte
	var shndx uint16
	if l.is64 {
		info, shndx = p[4], l.order.Uint16(p[6:])
		s.Addr, s.Size = l.order.Uint64(p[8:]), l.order.Uint64(p[16:])
	} else {
		s.Addr, s.Size = uint64(l.order.Uint32(p[4:])), uint64(l.order.Uint32(p[8:]))
		info, shndx = p[12], l.order.Uint16(p[14:])
	}
	s.Type, s.Bind, s.Section = elf.ST_TYPE(info), elf.ST_BIND(info), elf.SectionIndex(shndx)
	return s, ok
}

// InCode reports whether the symbol is defined in code: in an executable section or, if the image has no header for its
// section, in an executable segment. It is false for absolute, common, undefined and thread-local symbols.
func (m *Image) InCode(s Symbol) bool {
	switch {
	case s.Section == elf.SHN_UNDEF || s.Section == elf.SHN_ABS || s.Section == elf.SHN_COMMON || s.Type == elf.STT_TLS:
		return false
	case s.Section < elf.SHN_LORESERVE && int(s.Section) < len(m.sections) && m.header.shnum > 0:
		sec := &m.sections[s.Section]
		code := elf.SHF_ALLOC | elf.SHF_EXECINSTR
		return sec.flags&code == code && s.Addr >= sec.addr && s.Addr-sec.addr < sec.size
	case s.Section < elf.SHN_LORESERVE || s.Section == elf.SHN_XINDEX:
		return m.Executable(s.Addr)
	}
	return false
}

// SameSection reports whether two link-time addresses lie in the same section of code.
func (m *Image) SameSection(a, b uint64) bool {
	const code = elf.SHF_ALLOC | elf.SHF_EXECINSTR
	for i := range m.sections {
		s := &m.sections[i]
		if s.flags&code == code && a >= s.addr && a-s.addr < s.size {
			return b >= s.addr && b-s.addr < s.size
		}
	}
	return false
}

// strtab is a string table: NUL-terminated strings one after the other. It is a Go string, so that names are slices of
// it and need no copies.
type strtab string

// stringTable converts bytes without a copy. The caller must not change the bytes afterwards.
func stringTable(p []byte) strtab { return strtab(unsafe.String(unsafe.SliceData(p), len(p))) }

// at returns the string at an offset. The result is false if the offset is outside the table, or if the string has no
// NUL within maxName bytes.
func (t strtab) at(off uint64) (string, bool) {
	if off >= uint64(len(t)) {
		return "", false
	}
	s := string(t[off:min(off+maxName+1, uint64(len(t)))])
	n := strings.IndexByte(s, 0)
	if n < 0 {
		return "", false
	}
	return s[:n], true
}
