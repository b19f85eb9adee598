package elfimage

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
)

const (
	maxSections = 1 << 18
	maxSegments = 1 << 16
	// maxNames bounds the size of the section name table in bytes.
	maxNames = 16 << 20
)

// layout is the class (32 or 64 bits) and byte order of an ELF file, which determine the layout of its structures.
type layout struct {
	order binary.ByteOrder
	is64  bool
}

// header has the fields of the ELF header that are needed.
type header struct {
	typ                elf.Type
	interpreted        bool // there is a PT_INTERP
	machine            elf.Machine
	entry              uint64
	phoff, shoff       uint64
	phentsize, phnum   uint64
	shentsize, shnum   uint64
	shstrndx, shstrtab uint64
}

// section is a section header. For images without section headers, it is derived from the program headers.
type section struct {
	name               string
	nameOff            uint32
	typ                elf.SectionType
	flags              elf.SectionFlag
	addr, offset, size uint64
	link, info         uint32
	entsize            uint64
}

func (l layout) addrSize() int {
	if l.is64 {
		return 8
	}
	return 4
}

// word reads an address-sized number.
func (l layout) word(p []byte) uint64 {
	if l.is64 {
		return l.order.Uint64(p)
	}
	return uint64(l.order.Uint32(p))
}

// pick returns the value for the class: n64 or n32.
func (l layout) pick(n64, n32 int) int {
	if l.is64 {
		return n64
	}
	return n32
}

// readHeaders reads the ELF header, the program headers and the section headers.
func (m *Image) readHeaders() error {
	if err := m.readELFHeader(); err != nil {
		return err
	}
	first, err := m.firstSection()
	if err != nil && !m.isCore() {
		return err
	}
	m.resolveExtended(first)
	if err := m.readSegments(); err != nil {
		return err
	}
	if err := m.readSections(); err != nil && !m.isCore() {
		return err
	}
	return nil
}

// isCore reports whether the image is a core file. The section headers at the end of a core file only repeat data of
// its segments, so a core file that is truncated there can be read without them.
func (m *Image) isCore() bool { return m.header.typ == elf.ET_CORE }

// readELFHeader reads Ehdr.
func (m *Image) readELFHeader() error {
	ident, err := m.src.bytes(0, elf.EI_NIDENT)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotELF, err)
	}
	if m.layout, err = parseIdent(ident); err != nil {
		return err
	}
	p, err := m.src.bytes(0, uint64(m.layout.pick(64, 52)))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotELF, err)
	}
	m.header = m.layout.parseHeader(p)
	return nil
}

// parseIdent checks e_ident and returns the file's class and byte order. The error is ErrNotELF.
func parseIdent(ident []byte) (layout, error) {
	var l layout
	if !bytes.HasPrefix(ident, []byte(elf.ELFMAG)) {
		return l, fmt.Errorf("%w: bad magic", ErrNotELF)
	}
	switch elf.Class(ident[elf.EI_CLASS]) {
	case elf.ELFCLASS64:
		l.is64 = true
	case elf.ELFCLASS32:
	default:
		return l, fmt.Errorf("%w: class %d", ErrNotELF, ident[elf.EI_CLASS])
	}
	switch elf.Data(ident[elf.EI_DATA]) {
	case elf.ELFDATA2LSB:
		l.order = binary.LittleEndian
	case elf.ELFDATA2MSB:
		l.order = binary.BigEndian
	default:
		return l, fmt.Errorf("%w: byte order %d", ErrNotELF, ident[elf.EI_DATA])
	}
	if elf.Version(ident[elf.EI_VERSION]) != elf.EV_CURRENT {
		return l, fmt.Errorf("%w: version %d", ErrNotELF, ident[elf.EI_VERSION])
	}
	return l, nil
}

// parseHeader reads the fields of Ehdr. p is the whole Ehdr.
func (l layout) parseHeader(p []byte) header {
	h := header{typ: elf.Type(l.order.Uint16(p[16:])), machine: elf.Machine(l.order.Uint16(p[18:]))}
	w := l.addrSize()
	h.entry = l.word(p[24:])
	h.phoff = l.word(p[24+w:])
	h.shoff = l.word(p[24+2*w:])
	tail := p[24+3*w+6:] // past e_flags and e_ehsize
	for i, field := range []*uint64{&h.phentsize, &h.phnum, &h.shentsize, &h.shnum, &h.shstrndx} {
		*field = uint64(l.order.Uint16(tail[2*i:]))
	}
	h.shstrtab = h.shstrndx
	return h
}

// firstSection reads section header 0, which contains values that are too large for the ELF header. It returns nil if
// there are no section headers.
func (m *Image) firstSection() (*section, error) {
	h := &m.header
	size := uint64(m.layout.pick(64, 40))
	if h.shoff == 0 || h.shentsize < size {
		h.shnum = 0
		return nil, nil //nolint:nilnil // having no section headers is not an error
	}
	p, err := m.src.bytes(h.shoff, size)
	if err != nil {
		h.shnum = 0
		return nil, fmt.Errorf("section headers: %w", err)
	}
	s := m.layout.parseSection(p)
	return &s, nil
}

// resolveExtended replaces fields of the ELF header whose values are in section header 0 (gABI, chapter 4, "ELF
// Header").
func (m *Image) resolveExtended(first *section) {
	h := &m.header
	if first == nil {
		return
	}
	if h.shnum == 0 {
		h.shnum = first.size
	}
	if h.shstrndx == uint64(elf.SHN_XINDEX) {
		h.shstrtab = uint64(first.link)
	}
	const pnXNum = 0xffff
	if h.phnum == pnXNum {
		h.phnum = uint64(first.info)
	}
}

// readSegments reads the program headers of type PT_LOAD, and records whether there is a PT_INTERP.
func (m *Image) readSegments() error {
	h := &m.header
	p, err := m.programHeaders()
	if err != nil {
		return err
	}
	for i := range h.phnum {
		typ, s := m.layout.parseSegment(p[i*h.phentsize:])
		switch typ {
		case elf.PT_LOAD:
			m.segments = append(m.segments, s)
		case elf.PT_INTERP:
			h.interpreted = true
		default:
		}
	}
	return nil
}

// programHeaders returns the bytes of the program headers, nil if there are none.
func (m *Image) programHeaders() ([]byte, error) {
	h := &m.header
	if h.phoff == 0 || h.phnum == 0 {
		h.phnum = 0
		return nil, nil
	}
	if h.phentsize < uint64(m.layout.pick(56, 32)) || h.phnum > maxSegments {
		return nil, fmt.Errorf("%w: %d program headers of %d bytes", ErrMalformed, h.phnum, h.phentsize)
	}
	p, err := m.src.bytes(h.phoff, h.phnum*h.phentsize)
	if err != nil {
		return nil, fmt.Errorf("program headers: %w", err)
	}
	return p, nil
}

// parseSegment reads a program header.
func (l layout) parseSegment(p []byte) (elf.ProgType, Segment) {
	typ := elf.ProgType(l.order.Uint32(p))
	if l.is64 {
		return typ, Segment{
			Flags: elf.ProgFlag(l.order.Uint32(p[4:])), Offset: l.order.Uint64(p[8:]), Vaddr: l.order.Uint64(p[16:]),
			Filesz: l.order.Uint64(p[32:]), Memsz: l.order.Uint64(p[40:]),
		}
	}
	u := func(off int) uint64 { return uint64(l.order.Uint32(p[off:])) }
	return typ, Segment{
		Offset: u(4), Vaddr: u(8), Filesz: u(16), Memsz: u(20), Flags: elf.ProgFlag(l.order.Uint32(p[24:])),
	}
}

// readSections reads the section headers and their names.
func (m *Image) readSections() error {
	h := &m.header
	if h.shnum == 0 {
		return nil
	}
	if h.shnum > maxSections {
		return fmt.Errorf("%w: %d section headers", ErrMalformed, h.shnum)
	}
	p, err := m.src.bytes(h.shoff, h.shnum*h.shentsize)
	if err != nil {
		h.shnum = 0
		return fmt.Errorf("section headers: %w", err)
	}
	m.sections = make([]section, h.shnum)
	for i := range m.sections {
		m.sections[i] = m.layout.parseSection(p[uint64(i)*h.shentsize:])
	}
	return m.nameSections()
}

// nameSections sets the sections' names, from their offsets sh_name in the section name table.
func (m *Image) nameSections() error {
	if m.header.shstrtab == 0 || m.header.shstrtab >= uint64(len(m.sections)) {
		return nil
	}
	t := m.sections[m.header.shstrtab]
	if t.typ != elf.SHT_STRTAB || t.size > maxNames {
		return fmt.Errorf("%w: section name table of type %v, %d bytes", ErrMalformed, t.typ, t.size)
	}
	p, err := m.src.bytes(t.offset, t.size)
	if err != nil {
		return fmt.Errorf("section names: %w", err)
	}
	names := stringTable(p)
	m.names = t.size
	for i := range m.sections {
		m.sections[i].name, _ = names.at(uint64(m.sections[i].nameOff))
	}
	return nil
}

// parseSection reads a section header.
func (l layout) parseSection(p []byte) section {
	w := l.addrSize()
	s := section{nameOff: l.order.Uint32(p), typ: elf.SectionType(l.order.Uint32(p[4:]))}
	s.flags = elf.SectionFlag(l.word(p[8:]))
	s.addr = l.word(p[8+w:])
	s.offset = l.word(p[8+2*w:])
	s.size = l.word(p[8+3*w:])
	s.link = l.order.Uint32(p[8+4*w:])
	s.info = l.order.Uint32(p[12+4*w:])
	s.entsize = l.word(p[16+5*w:])
	return s
}
