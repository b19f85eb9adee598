package cfi

import "sync/atomic"

// maxAugmentation bounds the augmentation string of a CIE.
const maxAugmentation = 32

// cie is a parsed Common Information Entry (DWARF 5 §6.4.1; Linux Standard Base
// 5.0, "The Common Information Entry Format").
type cie struct {
	off         uint64
	codeAlign   uint64
	dataAlign   int64
	ra          uint64 // column of the return address
	body, end   int    // initial instructions
	addrSize    int
	segmentSize int
	fdeEnc      byte // encoding of an FDE's addresses
	hasData     bool // 'z': FDEs have a length of augmentation data
	signal      bool // 'S': frames that a signal interrupted
}

// cieSlots is the number of CIEs that a cache keeps for each section. Images have few CIEs.
const cieSlots = 64

// cieCache keeps parsed CIEs by offset. A new CIE replaces the old CIE in its slot, so the size is bounded for any
// image.
type cieCache [sectionCount][cieSlots]atomic.Pointer[cie]

// cieAt returns the CIE at an offset of a section.
func (t *Table) cieAt(s sectionID, off uint64) (*cie, error) {
	slot := &t.cies[s][off/4%cieSlots]
	if c := slot.Load(); c != nil && c.off == off {
		return c, nil
	}
	c, err := t.parseCIE(s, off)
	if err != nil {
		return nil, err
	}
	slot.Store(c)
	return c, nil
}

// parseCIE reads the CIE at an offset of a section.
func (t *Table) parseCIE(s sectionID, off uint64) (*cie, error) {
	e, err := t.entryAt(s, off)
	if err != nil {
		return nil, err
	}
	if e.kind != isCIE {
		return nil, badAt(s, off, "not a CIE")
	}
	r := reader{data: t.sections[s].Data[:e.end], pos: e.body, big: t.big}
	c := &cie{off: off, addrSize: t.addrSize, end: e.end}
	version := r.u8()
	if version != 1 && version != 3 && version != 4 {
		return nil, badAt(s, off, "unknown CIE version")
	}
	augmentation := r.cstring(maxAugmentation)
	if len(augmentation) >= 2 && augmentation[0] == 'e' && augmentation[1] == 'h' {
		r.take(t.addrSize) // GCC 2's "EH data" has no information about frames
		augmentation = augmentation[2:]
	}
	if version == 4 {
		c.addrSize, c.segmentSize = int(r.u8()), int(r.u8())
	}
	c.codeAlign, c.dataAlign = r.uleb(), r.sleb()
	if version == 1 {
		c.ra = uint64(r.u8())
	} else {
		c.ra = r.uleb()
	}
	t.augment(c, &r, s, augmentation)
	c.body = r.pos
	if r.failed || c.addrSize != t.addrSize || c.segmentSize > 8 || c.ra >= maxColumns {
		return nil, badAt(s, off, "malformed CIE")
	}
	return c, nil
}

// augment reads a CIE's augmentation data. It stops at an unknown letter. This is no error, because unknown letters do
// not change the frame's rules, and the letter 'z' gives the length of the data to skip.
func (t *Table) augment(c *cie, r *reader, s sectionID, augmentation []byte) {
	if len(augmentation) == 0 {
		return
	}
	if augmentation[0] != 'z' {
		r.failed = true
		return
	}
	c.hasData = true
	size := r.uleb()
	if r.failed || size > uint64(len(r.data)-r.pos) {
		r.failed = true
		return
	}
	end := r.pos + int(size)
	data := *r
	data.data = r.data[:end]
	for _, letter := range augmentation[1:] {
		if !t.augmentLetter(c, &data, s, letter) {
			break
		}
	}
	r.failed = data.failed
	r.pos = end
}

// augmentLetter reads the data of one letter of an augmentation string. The result is false for an unknown letter.
func (t *Table) augmentLetter(c *cie, r *reader, s sectionID, letter byte) bool {
	switch letter {
	case 'R': // encoding of addresses
		c.fdeEnc = r.u8()
	case 'L': // encoding of the language-specific data
		r.u8()
	case 'P': // personality routine: skipped, not followed
		if enc := r.u8(); enc != peOmit {
			sec := &t.sections[s]
			t.pointer(r, enc&^peIndir, bases{section: sec.Addr, data: t.data, hasFn: true})
		}
	case 'S':
		c.signal = true
	case 'B', 'G': // aarch64: return addresses are signed with the B key; memory tagging
	default:
		return false
	}
	return true
}
