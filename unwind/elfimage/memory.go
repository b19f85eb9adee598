package elfimage

import (
	"debug/elf"
	"fmt"
	"io"
)

// ReadMemory reads bytes at a run-time address into p and returns how many bytes it read.
type ReadMemory func(addr uint64, p []byte) (int, error)

// FromMemory reads an ELF image from the memory of a process, with its ELF header at base: the vDSO, or a deleted file.
// Section headers are in memory only for a vDSO. So the sections .eh_frame_hdr, .eh_frame, .dynsym and .dynstr are
// derived from the program headers and the dynamic segment. The Image keeps the callback read and calls it lazily.
func FromMemory(read ReadMemory, base uint64, name string) (*Image, error) {
	m := &Image{name: name, memory: true, src: source{r: memoryReader{read: read, base: base}}}
	h, err := m.readMemoryHeaders()
	if err != nil {
		return nil, fmt.Errorf("%s at %#x: %w", name, base, err)
	}
	m.setRange()
	m.synthesizeSections(base - m.origin())
	m.findWholeEHFrame(h)
	m.buildID = m.findBuildID()
	return m, nil
}

// synthesizeSections derives section headers from the program headers, for an image without usable section headers.
// bias is the load bias of an image in memory, 0 for a file.
func (m *Image) synthesizeSections(bias uint64) {
	m.findEHFrame()
	m.findDynamic(bias)
}

// memoryReader makes an io.ReaderAt of a process's memory; offset 0 is the ELF header.
type memoryReader struct {
	read ReadMemory
	base uint64
}

// ReadAt implements io.ReaderAt.
func (r memoryReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.read(r.base+uint64(off), p)
	n = min(max(n, 0), len(p))
	if err == nil && n < len(p) {
		err = io.ErrUnexpectedEOF
	}
	return n, err //nolint:wrapcheck // source wraps it
}

// maxMemoryHeaders bounds the program headers of an image in memory, in bytes. Images have some ten of 56 bytes. A core
// file can have the same headers at many addresses, and each Image keeps its segments.
const maxMemoryHeaders = 8 << 10

// readMemoryHeaders reads the ELF header and the program headers. It returns the ELF header as it is in memory. In
// m.header, it removes the fields about section headers.
func (m *Image) readMemoryHeaders() (header, error) {
	if err := m.readELFHeader(); err != nil {
		return header{}, err
	}
	h := m.header
	m.header.shoff, m.header.shnum, m.header.shstrtab = 0, 0, 0
	if h.phnum*h.phentsize > maxMemoryHeaders {
		return header{}, fmt.Errorf("%w: %d program headers of %d bytes", ErrMalformed, h.phnum, h.phentsize)
	}
	if err := m.readSegments(); err != nil {
		return header{}, err
	}
	if len(m.segments) == 0 {
		return header{}, fmt.Errorf("%w: no loadable segment", ErrMalformed)
	}
	return h, nil
}

// origin returns the link-time address of the ELF header.
func (m *Image) origin() uint64 { return m.segments[0].Vaddr - m.segments[0].Offset }

// position returns the offset in the source of the byte at a link-time address. The result is false if the source does
// not have this byte.
func (m *Image) position(addr uint64) (uint64, bool) {
	for _, s := range m.segments {
		switch d := addr - s.Vaddr; {
		case addr < s.Vaddr:
		case m.memory && d < s.Memsz:
			return addr - m.origin(), true
		case !m.memory && d < s.Filesz:
			return s.Offset + d, true
		}
	}
	return 0, false
}

// at reads n bytes at a link-time address. They must lie in one segment.
func (m *Image) at(addr, n uint64) ([]byte, error) {
	off, ok := m.position(addr)
	if !ok || n > m.room(addr) {
		return nil, fmt.Errorf("%w: no segment has %d bytes at %#x", ErrMalformed, n, addr)
	}
	return m.src.bytes(off, n)
}

// synthesize adds a section header for [addr, addr+size), if this range lies in a segment.
func (m *Image) synthesize(s section) {
	off, ok := m.position(s.addr)
	if ok && s.size > 0 && s.size <= m.room(s.addr) {
		s.offset = off
		m.sections = append(m.sections, s)
	}
}

// room returns how many bytes the segment that contains addr has from addr on; 0 if no segment contains addr.
func (m *Image) room(addr uint64) uint64 {
	for _, s := range m.segments {
		size := s.Filesz
		if m.memory {
			size = s.Memsz
		}
		if addr >= s.Vaddr && addr-s.Vaddr < size {
			return size - (addr - s.Vaddr)
		}
	}
	return 0
}

// findProgram returns the first program header of a type.
func (m *Image) findProgram(typ elf.ProgType) (Segment, bool) {
	table, err := m.programHeaders()
	if err != nil {
		return Segment{}, false
	}
	for i := range m.header.phnum {
		if t, s := m.layout.parseSegment(table[i*m.header.phentsize:]); t == typ {
			return s, true
		}
	}
	return Segment{}, false
}

// findEHFrame derives .eh_frame_hdr from PT_GNU_EH_FRAME, and .eh_frame from the pointer in .eh_frame_hdr. No header
// has the length of .eh_frame. The section ends with a terminator, so the size assumed here may reach to the end of its
// segment.
func (m *Image) findEHFrame() {
	const size = maxSection / 4
	s, ok := m.findProgram(elf.PT_GNU_EH_FRAME)
	if !ok {
		return
	}
	m.synthesize(section{name: ".eh_frame_hdr", typ: elf.SHT_PROGBITS, addr: s.Vaddr, size: s.Memsz})
	p, err := m.at(s.Vaddr, 12)
	if err != nil {
		return
	}
	if addr, ok := m.layout.ehFramePointer(p, s.Vaddr); ok {
		m.synthesize(section{name: ".eh_frame", typ: elf.SHT_PROGBITS, addr: addr, size: min(m.room(addr), size)})
	}
}

// ehFramePointer decodes the field eh_frame_ptr of .eh_frame_hdr (LSB, "Exception Frames"). Linkers write the field as
// a 32- or 64-bit offset from its own address. Other encodings are not supported.
func (l layout) ehFramePointer(p []byte, hdr uint64) (uint64, bool) {
	const (
		pcrelUdata4, pcrelUdata8 = 0x13, 0x14
		pcrelSdata4, pcrelSdata8 = 0x1b, 0x1c
	)
	if p[0] != 1 {
		return 0, false
	}
	at := hdr + 4
	switch p[1] {
	case pcrelSdata4:
		return at + uint64(int64(int32(l.order.Uint32(p[4:])))), true
	case pcrelUdata4:
		return at + uint64(l.order.Uint32(p[4:])), true
	case pcrelUdata8, pcrelSdata8:
		return at + l.order.Uint64(p[4:]), true
	}
	return 0, false
}
