package symbol

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
)

// file is the object of a JITEntry: an ELF file with 64-bit addresses in the process's memory. Package debug/elf is not
// suitable for reading it: for each name, it copies or searches the string table again, even if a name has megabytes.
type file struct {
	memory JITMemory
	entry  JITEntry

	order    binary.ByteOrder
	typ      elf.Type
	machine  elf.Machine
	sections []section
	names    section // the section with the names of the sections
}

// section is a section header.
type section struct {
	name               uint32 // offset in the names of the sections
	typ                elf.SectionType
	flags              elf.SectionFlag
	addr, offset, size uint64
	link               uint32
}

// bytes reads n bytes of the file at an offset. The result is false if the file does not contain them or the memory
// cannot be read.
func (f *file) bytes(off, n uint64) ([]byte, bool) {
	if off > f.entry.Size || n > f.entry.Size-off {
		return nil, false
	}
	p := make([]byte, n)
	return p, n == 0 || f.memory(f.entry.File+off, p)
}

// readHeaders reads the ELF header and the section headers. The error is ErrMalformed.
func (f *file) readHeaders() error {
	const (
		headerSize, sectionSize          = 64, 64
		typ, machine, sections           = 16, 18, 40
		entrySize, entries, namesSection = 58, 60, 62
	)
	malformed := fmt.Errorf("%w: header of the object at %#x", ErrMalformed, f.entry.File)
	h, ok := f.bytes(0, headerSize)
	if !ok || string(h[:4]) != elf.ELFMAG || elf.Class(h[elf.EI_CLASS]) != elf.ELFCLASS64 ||
		elf.Version(h[elf.EI_VERSION]) != elf.EV_CURRENT {
		return malformed
	}
	switch elf.Data(h[elf.EI_DATA]) {
	case elf.ELFDATA2LSB:
		f.order = binary.LittleEndian
	case elf.ELFDATA2MSB:
		f.order = binary.BigEndian
	default:
		return malformed
	}
	f.typ, f.machine = elf.Type(f.order.Uint16(h[typ:])), elf.Machine(f.order.Uint16(h[machine:]))
	n, names := f.order.Uint16(h[entries:]), f.order.Uint16(h[namesSection:])
	if n == 0 || n > maxSections || names >= n || f.order.Uint16(h[entrySize:]) != sectionSize {
		return malformed
	}
	p, ok := f.bytes(f.order.Uint64(h[sections:]), uint64(n)*sectionSize)
	if !ok {
		return malformed
	}
	f.sections = make([]section, n)
	for i := range f.sections {
		f.sections[i] = f.section(p[i*sectionSize:])
	}
	f.names = f.sections[names]
	return nil
}

// section decodes a section header.
func (f *file) section(p []byte) section {
	return section{
		name: f.order.Uint32(p), typ: elf.SectionType(f.order.Uint32(p[4:])),
		flags: elf.SectionFlag(f.order.Uint64(p[8:])), addr: f.order.Uint64(p[16:]), offset: f.order.Uint64(p[24:]),
		size: f.order.Uint64(p[32:]), link: f.order.Uint32(p[40:]),
	}
}

// named reports whether a section has the given name.
func (f *file) named(s section, name string) bool {
	end := uint64(s.name) + uint64(len(name)) + 1
	if f.names.typ != elf.SHT_STRTAB || end > f.names.size || f.names.offset > f.entry.Size {
		return false
	}
	p, ok := f.bytes(f.names.offset+uint64(s.name), uint64(len(name))+1)
	return ok && string(p) == name+"\x00"
}

// symbols returns the contents of the symbol table and of its string table. Both are empty if the object has no symbol
// table. The error is ErrMalformed.
func (f *file) symbols() (symbols, names []byte, err error) {
	for _, s := range f.sections {
		if s.typ != elf.SHT_SYMTAB {
			continue
		}
		malformed := fmt.Errorf("%w: symbols of the object at %#x", ErrMalformed, f.entry.File)
		if s.flags&elf.SHF_COMPRESSED != 0 || s.size > maxSymbols*elf.Sym64Size || s.size%elf.Sym64Size != 0 ||
			uint64(s.link) >= uint64(len(f.sections)) {
			return nil, nil, malformed
		}
		strings := f.sections[s.link]
		if strings.typ != elf.SHT_STRTAB || strings.flags&elf.SHF_COMPRESSED != 0 {
			return nil, nil, malformed
		}
		symbols, ok := f.bytes(s.offset, s.size)
		if !ok {
			return nil, nil, malformed
		}
		names, ok := f.bytes(strings.offset, strings.size)
		// A string table begins and ends with a NUL (gABI, chapter 4, "String Table").
		if !ok || len(names) == 0 || names[0] != 0 || names[len(names)-1] != 0 {
			return nil, nil, malformed
		}
		return symbols, names, nil
	}
	return nil, nil, nil
}

// nameAt returns the name at an offset of a string table. The name is empty if it is longer than maxName bytes.
func nameAt(names []byte, off uint32) string {
	if uint64(off) >= uint64(len(names)) {
		return ""
	}
	p := names[off:min(uint64(off)+maxName+1, uint64(len(names)))]
	return string(p[:max(bytes.IndexByte(p, 0), 0)])
}
