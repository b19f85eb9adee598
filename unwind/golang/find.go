package golang

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"

	"pg_stat_backtrace/unwind/elfimage"
)

// tableSections are the sections that Go's linker makes for the table. The second name is used in position-independent
// programs.
var tableSections = [...]string{".gopclntab", ".data.rel.ro.gopclntab"}

// mergedSections are the sections into which other linkers put the table.
var mergedSections = [...]string{".data.rel.ro", ".rodata"}

// marks are sections that only Go's linker makes. An image with one of them is a Go program.
var marks = [...]string{".go.buildinfo", ".note.go.buildid"}

// NewTable finds the table of an image, which must stay readable. The error is ErrNone, ErrTableVersion, ErrMalformed
// or the image's error.
func NewTable(m *elfimage.Image) (*Table, error) {
	t, err := find(m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Name(), err)
	}
	if err := t.locate(m); err != nil {
		return nil, fmt.Errorf("%s: %w", m.Name(), err)
	}
	return t, nil
}

// find finds and opens the table. The error is ErrNone if there is no table.
func find(m *elfimage.Image) (*Table, error) {
	for _, name := range tableSections {
		if !m.HasSection(name) {
			continue
		}
		data, addr, err := m.Section(name)
		if err != nil {
			return nil, err
		}
		return open(m, m.Order(), addr, uint64(len(data)))
	}
	for _, name := range marks {
		if m.HasSection(name) {
			return search(m)
		}
	}
	return nil, ErrNone
}

// search looks for the table's header in the sections that other linkers use.
func search(m *elfimage.Image) (*Table, error) {
	for _, name := range mergedSections {
		data, addr, err := m.Section(name)
		if errors.Is(err, elfimage.ErrNoSection) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for magic := range magics {
			first := make([]byte, 4)
			m.Order().PutUint32(first, magic)
			for off := 0; ; off++ {
				i := bytes.Index(data[off:], first)
				if i < 0 {
					break
				}
				off += i
				if t, err := open(m, m.Order(), addr+uint64(off), uint64(len(data)-off)); err == nil {
					return t, nil
				}
			}
		}
	}
	return nil, ErrNone
}

// Indexes of words in the module data, a structure from which package runtime finds all its tables (moduledata in its
// symtab.go).
const (
	wordHeader    = 0  // the table
	wordList      = 16 // the list of functions
	wordListSize  = 17
	wordText      = 22 // base address of functions
	wordBase118   = 38 // base address of functions' data, in Go 1.18 and 1.19
	wordBase120   = 40 // since Go 1.20
	moduleWords   = 46
	maxCandidates = 64
)

// moduleSections are the sections that may contain the module data. Since Go 1.26 it is in the first of these sections.
var moduleSections = [...]string{".go.module", ".noptrdata", ".data", ".data.rel.ro"}

// locate finds the module data, which contains the base addresses of functions and of their data. In Go 1.16 and 1.17
// the table has absolute addresses, so it needs no module data. If a later program has no module data, the error is
// ErrMalformed.
func (t *Table) locate(m *elfimage.Image) error {
	if t.format == go116 {
		if first, err := t.entry(0); err != nil || !m.Executable(first) {
			return fmt.Errorf("%w: the first function is not in code", ErrMalformed)
		}
		return nil
	}
	relocated := relative(m)
	for _, addr := range t.candidates(m, relocated) {
		words := t.moduleData(m, addr, relocated)
		if words == nil || words[wordHeader] != t.addr || words[wordList] != t.addr+t.funcs ||
			words[wordListSize] != t.functions+1 || !m.Executable(words[wordText]) {
			continue
		}
		base := wordBase118
		if t.format == go120 {
			base = wordBase120
		}
		// Two words after the base address, or three since Go 1.26, is the number of code sections.
		if words[base+2] != 1 && words[base+3] != 1 {
			return fmt.Errorf("%w: several sections of code", ErrTableVersion)
		}
		t.text, t.base = words[wordText], words[base]
		return nil
	}
	return fmt.Errorf("%w: no module data", ErrMalformed)
}

// candidates returns the addresses of words whose content is the table's address. Each may be the start of the module
// data, which begins with such a word.
func (t *Table) candidates(m *elfimage.Image, relocated relocations) []uint64 {
	var list []uint64
	relocated.each(func(at, value uint64) {
		if value == t.addr && len(list) < maxCandidates {
			list = append(list, at)
		}
	})
	word := make([]byte, t.ptr)
	if t.ptr == 8 {
		t.order.PutUint64(word, t.addr)
	} else {
		t.order.PutUint32(word, uint32(t.addr))
	}
	for _, name := range moduleSections {
		data, addr, err := m.Section(name)
		if err != nil {
			continue
		}
		for off := 0; len(list) < maxCandidates; off++ {
			i := bytes.Index(data[off:], word)
			if i < 0 {
				break
			}
			off += i
			list = append(list, addr+uint64(off))
		}
	}
	return list
}

// moduleData reads the words at an address, with relocations applied; nil if they cannot be read.
func (t *Table) moduleData(m *elfimage.Image, addr uint64, relocated relocations) []uint64 {
	p, err := m.Bytes(addr, moduleWords*t.ptr)
	if err != nil {
		return nil
	}
	words := make([]uint64, moduleWords)
	for i := range words {
		at := uint64(i) * t.ptr
		words[i] = t.word(p[at:])
	}
	relocated.each(func(at, value uint64) {
		if i := (at - addr) / t.ptr; i < moduleWords && (at-addr)%t.ptr == 0 {
			words[i] = value
		}
	})
	return words
}

// relativeTypes are the types of relocations that write the sum of load bias and addend, by machine.
var relativeTypes = map[elf.Machine]uint32{
	elf.EM_X86_64: uint32(elf.R_X86_64_RELATIVE), elf.EM_AARCH64: uint32(elf.R_AARCH64_RELATIVE),
	elf.EM_PPC64: uint32(elf.R_PPC64_RELATIVE), elf.EM_S390: uint32(elf.R_390_RELATIVE),
	elf.EM_RISCV: uint32(elf.R_RISCV_RELATIVE),
}

// relocations are the relocations of a position-independent image that write addresses of the image itself.
type relocations struct {
	data  []byte // of .rela.dyn
	order binary.ByteOrder
	typ   uint32
}

// relative reads the relocations of an image. For 32-bit images the result is empty: their words already contain the
// addresses.
func relative(m *elfimage.Image) relocations {
	typ, ok := relativeTypes[m.Machine()]
	data, _, err := m.Section(".rela.dyn")
	if err != nil || !ok || m.AddrSize() != 8 {
		return relocations{}
	}
	return relocations{data: data, order: m.Order(), typ: typ}
}

// each calls the callback f with the address of each relocated word, and the link-time address that the word stands
// for.
func (r relocations) each(f func(at, value uint64)) {
	const size = 24 // of an entry
	for data := r.data; len(data) >= size; data = data[size:] {
		if uint32(r.order.Uint64(data[8:])) == r.typ {
			f(r.order.Uint64(data), r.order.Uint64(data[16:]))
		}
	}
}
