package elfimage

import (
	"debug/elf"
	"os"
)

// Bias returns the load bias of the image, run-time minus link-time address, from a mapping of its file. The arguments
// are the mapping's start address and its offset in the file, both in bytes. The process is one of this host. Use an executable mapping: if two segments
// share a page of the file, Bias assumes the executable segment. ok is false if the mapping fits no segment.
func (m *Image) Bias(mappingStart, mappingOffset uint64) (bias uint64, ok bool) {
	return m.biasOf(mappingStart, mappingOffset, uint64(os.Getpagesize()))
}

// biasOf is Bias for a kernel whose pages have pageSize bytes.
func (m *Image) biasOf(mappingStart, mappingOffset, pageSize uint64) (bias uint64, ok bool) {
	// A mapping begins with the page that contains the segment's first byte. The kernel's page size is tried first: with
	// a smaller one, a segment before the code could seem to begin at the offset.
	for _, page := range []uint64{pageSize, 4 << 10, 16 << 10, 64 << 10} {
		if s := m.segmentBy(func(s *Segment) bool { return s.Offset&^(page-1) == mappingOffset }); s != nil {
			return s.bias(mappingStart, mappingOffset)
		}
	}
	// mprotect splits mappings, so a mapping may also begin in the middle of a segment.
	s := m.segmentBy(func(s *Segment) bool { return mappingOffset >= s.Offset && mappingOffset-s.Offset < s.Filesz })
	if s == nil {
		return 0, false
	}
	return s.bias(mappingStart, mappingOffset)
}

// bias computes the load bias. The result is false if it is not a multiple of the page size.
func (s *Segment) bias(mappingStart, mappingOffset uint64) (uint64, bool) {
	b := mappingStart - mappingOffset - (s.Vaddr - s.Offset)
	return b, b&0xfff == 0
}

// segmentBy returns the first executable segment with content for which the callback holds returns true. If there is
// none, it returns the first other segment with content for which holds returns true, else nil.
func (m *Image) segmentBy(holds func(*Segment) bool) *Segment {
	var other *Segment
	for i := range m.segments {
		s := &m.segments[i]
		if s.Filesz == 0 || !holds(s) {
			continue
		}
		if s.Flags&elf.PF_X != 0 {
			return s
		}
		if other == nil {
			other = s
		}
	}
	return other
}
