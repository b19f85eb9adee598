package elfimage

import (
	"debug/elf"
	"strings"
	"sync"
)

// imports are the functions that the dynamic linker looks for, by the places that it writes their addresses to.
type imports struct {
	once   sync.Once
	byAddr map[uint64]string
}

// Limits on the number of names kept for an image, and on the bytes of each. Servers import some five hundred
// functions.
const (
	maxImports    = 1 << 16
	maxImportName = 128
	// maxRelocations bounds the bytes of all relocation sections that are read for the names. A browser has some 26 MB.
	maxRelocations = 64 << 20
)

// Imported returns the name of the symbol whose address the dynamic linker writes to a link-time address, for example
// to a slot of the global offset table. It returns at most 128 bytes of the name. It is empty if there is no such
// symbol, or if the tables cannot be read. The first call reads and keeps the names of at most 65,536 functions.
func (m *Image) Imported(slot uint64) string {
	m.imports.once.Do(func() { m.imports.byAddr = m.readImports() })
	return m.imports.byAddr[slot]
}

// readImports reads the relocations that name a symbol and contain their addend (gABI, chapter 4, "Relocation"). It
// skips unreadable and compressed sections. It also skips a section if it would read more than maxRelocations bytes
// with it. If several section headers have the same range, each of them counts.
func (m *Image) readImports() map[uint64]string {
	dynsym := m.find(".dynsym")
	if dynsym == nil || dynsym.typ != elf.SHT_DYNSYM || !m.layout.is64 {
		return nil
	}
	symbols, names, err := m.symbolTable(dynsym)
	if err != nil {
		return nil
	}
	const relocation, symbol = 24, 24 // bytes of an entry with 64 bits
	found := make(map[uint64]string)
	left := uint64(maxRelocations)
	for i := range m.sections {
		s := &m.sections[i]
		if s.typ != elf.SHT_RELA || //nolint:misspell // the name
			s.flags&(elf.SHF_ALLOC|elf.SHF_COMPRESSED) != elf.SHF_ALLOC || s.size < relocation || s.size > left {
			continue
		}
		left -= s.size
		p, err := m.src.bytes(s.offset, s.size)
		for ; err == nil && len(p) >= relocation && len(found) < maxImports; p = p[relocation:] {
			index, addend := m.layout.order.Uint64(p[8:])>>32, m.layout.order.Uint64(p[16:])
			if index == 0 || addend != 0 || index >= uint64(len(symbols)/symbol) {
				continue
			}
			of, ok := m.layout.parseSymbol(symbols[index*symbol:], names)
			if ok && of.Type != elf.STT_OBJECT && of.Type != elf.STT_TLS {
				found[m.layout.order.Uint64(p)] = strings.Clone(of.Name[:min(len(of.Name), maxImportName)])
			}
		}
	}
	return found
}
