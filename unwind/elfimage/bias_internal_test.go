package elfimage

import (
	"debug/elf"
	"testing"
)

// TestBias takes layouts where a page of the file belongs to two segments.
func TestBias(t *testing.T) {
	const base = 0x555500000000
	type mapping struct {
		start, offset uint64
		ok            bool
	}
	for _, test := range []struct {
		page     uint64
		segments []Segment
		mappings []mapping
	}{
		{4 << 10, []Segment{
			{Flags: elf.PF_R, Filesz: 0x1ff0, Memsz: 0x1ff0},
			{Flags: elf.PF_R | elf.PF_X, Offset: 0x1ff0, Vaddr: 0x2ff0, Filesz: 0x5000, Memsz: 0x5000},
			{Flags: elf.PF_R | elf.PF_W, Offset: 0x6ff0, Vaddr: 0x8ff0, Filesz: 0x3000, Memsz: 0x9000},
		}, []mapping{
			{base, 0, true}, {base + 0x2000, 0x1000, true}, {base + 0x4000, 0x3000, true}, {base + 0x8000, 0x6000, true},
			{base + 0xa000, 0x8000, true}, {base + 0x20000, 0x20000, false}, {base + 1, 0, false},
		}},
		{64 << 10, []Segment{ // lld's layout: all in one page of the file
			{Flags: elf.PF_R, Filesz: 0x1634, Memsz: 0x1634},
			{Flags: elf.PF_R | elf.PF_X, Offset: 0x1634, Vaddr: 0x11634, Filesz: 0x9000, Memsz: 0x9000},
		}, []mapping{{base + 0x10000, 0, true}}},
	} {
		m := &Image{segments: test.segments}
		for _, c := range test.mappings {
			bias, ok := m.biasOf(c.start, c.offset, test.page)
			if ok != c.ok || ok && bias != base {
				t.Errorf("pages of %d bytes, mapping %#x of %#x: bias %#x, %v", test.page, c.start, c.offset, bias, ok)
			}
		}
	}
}
