package selfnames

import (
	"debug/elf"
	"slices"
	"testing"
)

// TestBaseIsNoMention decodes a function of aarch64 that addresses one constant from another one. The first is a base.
func TestBaseIsNoMention(t *testing.T) {
	t.Parallel()
	const text, first, second = 0x1000, 0x2000, 0x2040
	instructions := []byte{
		0x00, 0x00, 0x00, 0xb0, // adrp x0, 0x2000
		0x00, 0x00, 0x00, 0x91, // add x0, x0, #0
		0x02, 0x00, 0x01, 0x91, // add x2, x0, #64
		0xc0, 0x03, 0x5f, 0xd6, // ret
	}
	m := machines[elf.EM_AARCH64]
	c := &code{
		machine: m, pieces: []piece{{text, instructions, true}},
		fns: []function{{start: text, end: text + uint64(len(instructions))}},
	}
	s := sweeper{code: c, args: m.args, clobber: m.clobber, decode: m.decode, low: text, high: second + 1}
	s.function(0)
	want := []reference{{fn: 0, base: true, to: first}, {fn: 0, to: second}}
	if !slices.Equal(c.refs, want) {
		t.Errorf("%+v, want %+v", c.refs, want)
	}
}

// TestUnknownReportIsOpaque decodes a function that reports with a name that the scan does not find.
func TestUnknownReportIsOpaque(t *testing.T) {
	t.Parallel()
	const text = 0x1000
	instructions := []byte{
		0x01, 0x00, 0x00, 0x94, // bl the next instruction
		0xc0, 0x03, 0x5f, 0xd6, // ret
	}
	m := machines[elf.EM_AARCH64]
	c := &code{
		machine: m, pieces: []piece{{text, instructions, true}},
		fns: []function{{start: text, end: text + 4}, {start: text + 4, end: text + 8, kind: thirdIsName}},
	}
	c.index()
	s := sweeper{code: c, args: m.args, clobber: m.clobber, decode: m.decode, low: text, high: text + 8}
	s.function(0)
	if !c.fns[0].opaque || len(c.sites) > 0 {
		t.Errorf("opaque %v, %d reports, want true and none", c.fns[0].opaque, len(c.sites))
	}
}
