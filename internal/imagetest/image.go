// Package imagetest has ELF files for the tests of the packages that read them.
//
// A File is a small ELF file built in memory (image.go). It supports only the parts of the format that these tests
// need, and shares no code with the packages under test. Files returns real files with call frame information: the
// machine's C library, and the servers in PGSB_TEST_BINDIRS. BuildSplit compiles a program with separate debug
// information, and StartDebuginfod starts elfutils' real server of such files on loopback.
package imagetest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// File describes an ELF file. The zero value is an empty 64-bit little-endian file.
type File struct {
	Order    binary.ByteOrder // nil: little-endian
	Is32     bool
	Type     elf.Type
	Machine  elf.Machine
	Programs []Program
	Sections []Section
}

// Program is a program header. If Data is not nil, it is stored in the file, and Offset and Filesz are set to its place.
type Program struct {
	Type                         elf.ProgType
	Flags                        elf.ProgFlag
	Offset, Vaddr, Filesz, Memsz uint64
	Data                         []byte
}

// Section is a section header with its content. Link names another section.
type Section struct {
	Name    string
	Type    elf.SectionType
	Flags   elf.SectionFlag
	Addr    uint64
	Data    []byte
	Size    uint64 // only for SHT_NOBITS; otherwise the size is len(Data)
	Link    string
	Entsize uint64
}

// Symbol is an entry of a symbol table.
type Symbol struct {
	Name       string
	Addr, Size uint64
	Type       elf.SymType
	Bind       elf.SymBind
	Section    elf.SectionIndex
}

// writer appends values in a file's format.
type writer struct {
	bytes.Buffer

	f *File
}

func (w *writer) u16(vs ...uint16) {
	for _, v := range vs {
		w.Write(w.f.order().AppendUint16(nil, v))
	}
}

func (w *writer) u32(vs ...uint32) {
	for _, v := range vs {
		w.Write(w.f.order().AppendUint32(nil, v))
	}
}

func (w *writer) word(vs ...uint64) {
	for _, v := range vs {
		if w.f.Is32 {
			w.u32(uint32(v))
		} else {
			w.Write(w.f.order().AppendUint64(nil, v))
		}
	}
}

// order returns the file's byte order, for reading and appending.
func (f *File) order() binary.AppendByteOrder {
	if f.Order == binary.BigEndian {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

func (f *File) pick(n64, n32 int) int {
	if f.Is32 {
		return n32
	}
	return n64
}

// Bytes returns the file: ELF header, program headers, contents, section headers.
func (f *File) Bytes() []byte {
	sections := f.withNames()
	head := f.pick(64, 52)
	body := &writer{f: f}
	offset := func() uint64 {
		for body.Len()%8 != 0 {
			body.WriteByte(0)
		}
		return uint64(head + len(f.Programs)*f.pick(56, 32) + body.Len())
	}
	programs := &writer{f: f}
	for _, p := range f.Programs {
		if p.Data != nil {
			p.Offset, p.Filesz = offset(), uint64(len(p.Data))
			body.Write(p.Data)
		}
		programs.program(p)
	}
	headers := &writer{f: f}
	for i, s := range sections {
		at := offset()
		if s.Type != elf.SHT_NOBITS {
			s.Size = uint64(len(s.Data))
			body.Write(s.Data)
		}
		headers.section(s, at, sections, sections[i].Name)
	}
	out := &writer{f: f}
	out.header(offset(), len(sections))
	out.Write(programs.Bytes())
	out.Write(body.Bytes())
	out.Write(headers.Bytes())
	return out.Bytes()
}

// withNames returns the sections with section 0 and the section name table. It returns nil for a file without sections.
func (f *File) withNames() []Section {
	if len(f.Sections) == 0 {
		return nil
	}
	all := append([]Section{{}}, f.Sections...)
	all = append(all, Section{Name: ".shstrtab", Type: elf.SHT_STRTAB})
	for _, s := range all {
		all[len(all)-1].Data = append(all[len(all)-1].Data, s.Name+"\x00"...)
	}
	return all
}

// header writes the ELF header (Ehdr).
func (w *writer) header(shoff uint64, shnum int) {
	f := w.f
	class, data := elf.ELFCLASS64, elf.ELFDATA2LSB
	if f.Is32 {
		class = elf.ELFCLASS32
	}
	if f.Order == binary.BigEndian {
		data = elf.ELFDATA2MSB
	}
	w.WriteString(elf.ELFMAG)
	w.Write([]byte{byte(class), byte(data), byte(elf.EV_CURRENT), 0, 0, 0, 0, 0, 0, 0, 0, 0})
	w.u16(uint16(f.Type), uint16(f.Machine))
	w.u32(uint32(elf.EV_CURRENT))
	phoff, shstrndx := uint64(f.pick(64, 52)), shnum-1
	if len(f.Programs) == 0 {
		phoff = 0
	}
	if shnum == 0 {
		shoff, shstrndx = 0, 0
	}
	w.word(0, phoff, shoff)
	w.u32(0)
	w.u16(uint16(f.pick(64, 52)), uint16(f.pick(56, 32)), uint16(len(f.Programs)),
		uint16(f.pick(64, 40)), uint16(shnum), uint16(shstrndx))
}

// program writes a program header (Phdr).
func (w *writer) program(p Program) {
	w.u32(uint32(p.Type))
	if !w.f.Is32 {
		w.u32(uint32(p.Flags))
	}
	w.word(p.Offset, p.Vaddr, p.Vaddr, p.Filesz, p.Memsz)
	if w.f.Is32 {
		w.u32(uint32(p.Flags))
	}
	w.word(0x1000)
}

// section writes a section header (Shdr).
func (w *writer) section(s Section, offset uint64, all []Section, name string) {
	names := all[len(all)-1].Data
	w.u32(uint32(bytes.Index(names, []byte(name+"\x00"))), uint32(s.Type))
	w.word(uint64(s.Flags), s.Addr, offset, s.Size)
	link := uint32(0)
	for i := range all {
		if s.Link != "" && all[i].Name == s.Link {
			link = uint32(i)
		}
	}
	w.u32(link, 0)
	w.word(1, s.Entsize)
}

// SymbolTable returns the sections of a symbol table and of its string table. The parameters table and strings are their names,
// such as ".symtab" and ".strtab".
func (f *File) SymbolTable(table, strings string, symbols ...Symbol) []Section {
	w, names := &writer{f: f}, []byte{0}
	for _, s := range append([]Symbol{{}}, symbols...) {
		name := uint32(0)
		if s.Name != "" {
			name = uint32(len(names))
			names = append(names, s.Name+"\x00"...)
		}
		info := byte(s.Bind)<<4 | byte(s.Type)&0xf
		w.u32(name)
		if f.Is32 {
			w.word(s.Addr, s.Size)
		}
		w.Write([]byte{info, 0})
		w.u16(uint16(s.Section))
		if !f.Is32 {
			w.word(s.Addr, s.Size)
		}
	}
	typ := elf.SHT_SYMTAB
	if table == ".dynsym" {
		typ = elf.SHT_DYNSYM
	}
	return []Section{
		{Name: table, Type: typ, Data: w.Bytes(), Link: strings, Entsize: uint64(f.pick(24, 16))},
		{Name: strings, Type: elf.SHT_STRTAB, Data: names},
	}
}
