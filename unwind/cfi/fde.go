package cfi

import "fmt"

// FDE is a Frame Description Entry: it has the call frame information for the addresses [Start, End) of the image.
type FDE struct {
	// Start and End are link-time addresses.
	Start, End uint64
	// Signal marks code to which a signal handler returns. The caller's PC is then the interrupted address, not a
	// return address.
	Signal bool

	section   sectionID
	off       uint64 // offset of the FDE in its section
	cie       uint64 // offset of its CIE
	body, end int    // instructions
}

// errEmpty is the error for an FDE that covers no address.
var errEmpty = fmt.Errorf("%w: empty FDE", ErrBadCFI)

// Offset returns the FDE's offset in its section, for messages and comparisons.
func (f *FDE) Offset() uint64 { return f.off }

// InDebugFrame reports whether the FDE belongs to .debug_frame.
func (f *FDE) InDebugFrame() bool { return f.section == debugFrame }

// Find returns the FDE that covers a link-time address. The error is ErrNoFDE if no FDE covers the address, and
// ErrBadCFI if the FDE or the section's index is malformed.
func (t *Table) Find(pc uint64) (FDE, error) {
	f, _, err := t.find(pc)
	return f, err
}

// find looks an address up in .eh_frame and then in .debug_frame. It also returns the FDE's CIE.
func (t *Table) find(pc uint64) (FDE, *cie, error) {
	var bad error
	for s := range sectionCount {
		if len(t.sections[s].Data) == 0 {
			continue
		}
		f, c, ok, err := t.findIn(s, pc)
		if ok {
			return f, c, nil
		}
		if bad == nil {
			bad = err
		}
	}
	if bad != nil {
		return FDE{}, nil, fmt.Errorf("address %#x: %w", pc, bad)
	}
	return FDE{}, nil, ErrNoFDE // not wrapped: code without call frame information is common
}

// findIn looks an address up in one section. ok is false if no FDE covers the address. findIn uses the header's search
// table as long as the table's pairs point to FDEs with the same start address. After the first wrong pair it uses the
// index instead.
func (t *Table) findIn(s sectionID, pc uint64) (f FDE, c *cie, ok bool, err error) {
	if s == ehFrame && t.Searchable() {
		start, addr, found := t.searchHeader(pc)
		if !found {
			return FDE{}, nil, false, nil
		}
		f, c, err = t.parseFDE(s, addr-t.sections[s].Addr)
		if err == nil && f.Start == start {
			return f, c, pc-f.Start < f.End-f.Start, nil
		}
		t.distrust.Store(true)
	}
	return t.findIndexed(s, pc)
}

// parseFDE reads the FDE at an offset of a section. If the error is nil, Start is lower than End.
func (t *Table) parseFDE(s sectionID, off uint64) (FDE, *cie, error) {
	e, err := t.entryAt(s, off)
	if err != nil {
		return FDE{}, nil, err
	}
	if e.kind != isFDE {
		return FDE{}, nil, badAt(s, off, "not an FDE")
	}
	return t.fdeOf(s, &e)
}

// fdeOf reads the rest of an FDE, after the head in e.
func (t *Table) fdeOf(s sectionID, e *entry) (FDE, *cie, error) {
	c, err := t.cieAt(s, e.cie)
	if err != nil {
		return FDE{}, nil, err
	}
	sec := &t.sections[s]
	r := reader{data: sec.Data[:e.end], pos: e.body, big: t.big}
	r.take(c.segmentSize)
	f := FDE{section: s, off: e.off, cie: e.cie, Signal: c.signal, end: e.end}
	f.Start = t.pointer(&r, c.fdeEnc, bases{section: sec.Addr, data: t.data})
	// The FDE's length has the format of the addresses, and no base.
	f.End = f.Start + t.pointerValue(&r, c.fdeEnc&peFormat)&t.lengthMask(c.fdeEnc)
	if c.hasData {
		size := r.uleb()
		if size > uint64(len(r.data)-r.pos) {
			r.failed = true
		} else {
			r.take(int(size))
		}
	}
	f.body = r.pos
	if f.End == f.Start && !r.failed {
		return FDE{}, nil, errEmpty
	}
	if r.failed || f.End < f.Start || f.End-1 > t.addrMask {
		return FDE{}, nil, badAt(s, e.off, "malformed FDE")
	}
	return f, c, nil
}

// lengthMask returns a mask that makes the length of an FDE unsigned if its format is signed.
func (t *Table) lengthMask(enc byte) uint64 {
	if size := t.fixedSize(enc & peFormat); size != 0 {
		return ^uint64(0) >> (64 - 8*size)
	}
	return ^uint64(0)
}
