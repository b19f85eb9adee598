package elfimage

import (
	"debug/elf"
	"strings"
	"sync"
)

// imports are the names of the functions that the dynamic linker finds in other images. The key of a name is the
// address of the word to which the dynamic linker writes the function's address.
type imports struct {
	once   sync.Once
	byAddr map[uint64]string
}

// Limits on the number of imports, and on the bytes of each name. Servers import some five hundred functions.
const (
	maxImports    = 1 << 16
	maxImportName = 128
	// maxRelocations bounds the bytes of all relocation sections that are read for the names. A browser has some 26 MB.
	maxRelocations = 64 << 20
)

// Imported returns the name of the symbol whose address the dynamic linker writes to slot, a link-time address, for
// example in the global offset table. The name is cut to 128 bytes. It is empty if the linker writes no symbol's
// address there, or if the tables cannot be read. The first call reads and keeps the names of at most 65,536 functions.
func (m *Image) Imported(slot uint64) string {
	m.imports.once.Do(func() { m.imports.byAddr = m.readImports() })
	return m.imports.byAddr[slot]
}

// readImports reads the relocations with a symbol and an addend of 0 (gABI, chapter 4, "Relocation"). It ignores
// unreadable and compressed sections. It reads at most maxRelocations bytes and ignores sections that would exceed
// this. A section that several headers describe is read, and counted, for each of them.
func (m *Image) readImports() map[uint64]string {
	dynsym := m.find(".dynsym")
	if dynsym == nil || dynsym.typ != elf.SHT_DYNSYM || !m.layout.is64 {
		return nil
	}
	symbols, names, err := m.symbolTable(dynsym)
	if err != nil {
		return nil
	}
	const relocation, symbol = 24, 24 // sizes of the 64-bit entries in bytes
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
