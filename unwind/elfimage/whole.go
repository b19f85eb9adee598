package elfimage

import "debug/elf"

// maxWholeHeaders bounds the offset of the section headers of an image that is mapped completely. vDSOs have one to
// four pages.
const maxWholeHeaders = 1 << 20

// findWholeEHFrame finds .eh_frame by the section headers of an image in memory, if the program headers do not give the
// section. h is the ELF header in memory. The kernel maps a vDSO completely, including its section headers. The vDSO of
// s390x needs this method: in Linux 6.1 at least, it is linked with an empty PT_GNU_EH_FRAME. For other images, other
// data may be in the place of the section headers. So they are used only if they begin with the null section and
// .eh_frame lies within the only segment.
func (m *Image) findWholeEHFrame(h header) {
	if m.named(".eh_frame") != nil || len(m.segments) != 1 || h.shoff == 0 || h.shoff > maxWholeHeaders ||
		h.shentsize != uint64(m.layout.pick(64, 40)) || h.shnum == 0 {
		return
	}
	whole := Image{name: m.name, src: m.src, layout: m.layout, header: h, segments: m.segments, memory: true}
	if whole.readSections() != nil || whole.sections[0] != (section{}) {
		return
	}
	s := whole.named(".eh_frame")
	if s == nil || s.flags&elf.SHF_ALLOC == 0 || s.flags&elf.SHF_COMPRESSED != 0 || s.typ == elf.SHT_NOBITS {
		return
	}
	if off, ok := m.position(s.addr); ok && off == s.offset {
		m.synthesize(section{name: s.name, typ: elf.SHT_PROGBITS, addr: s.addr, size: s.size})
	}
}
