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

// What is kept of an image is bounded: names, and bytes of each. Servers import some five hundred functions.
const (
	maxImports    = 1 << 16
	maxImportName = 128
)

// Imported returns the name of the symbol whose address the dynamic linker writes to a link-time address, as to a slot
// of the global offset table, 128 bytes of it at most; empty if it writes none there, or that cannot be read. What is
// read for the first question is kept: the names of 65,536 such functions at most.
func (m *Image) Imported(slot uint64) string {
	m.imports.once.Do(func() { m.imports.byAddr = m.readImports() })
	return m.imports.byAddr[slot]
}

// readImports reads the relocations that name a symbol and have in themselves what is added to it (gABI, chapter 4,
// "Relocation"). What cannot be read is left out.
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
	for i := range m.sections {
		s := &m.sections[i]
		if s.typ != elf.SHT_RELA || //nolint:misspell // the name
			s.flags&elf.SHF_ALLOC == 0 {
			continue
		}
		p, err := m.content(s)
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
