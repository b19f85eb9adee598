package cfi

// entry is the common head of CIEs and FDEs, with the entry's place in the section.
type entry struct {
	off  uint64 // of the length field
	body int    // offset after the CIE id or CIE pointer
	end  int    // offset after the entry; the entry's contents are between body and end
	cie  uint64 // offset of its CIE, for an FDE
	kind entryKind
	wide bool // 64-bit DWARF
}

type entryKind uint8

const (
	isFDE entryKind = iota
	isCIE
	isZero // the entry's length is zero: the end of .eh_frame, or padding
)

// Values of the length field (DWARF 5 §7.2.2) and of .debug_frame's CIE id (§7.24).
const (
	length64    = 0xffff_ffff
	lengthLimit = 0xffff_fff0
	cieID32     = 0xffff_ffff
	cieID64     = 0xffff_ffff_ffff_ffff
)

// entryAt reads the head of the entry at an offset. If the length is valid, end lies after off and inside the section,
// even if the error is not nil.
//
// In .eh_frame the CIE pointer has four bytes, also after a 64-bit length (Linux Standard Base 5.0). It is the distance
// back from the pointer itself. In .debug_frame it has the size of an offset and is relative to the section's start
// (DWARF 5 §6.4.1).
func (t *Table) entryAt(s sectionID, off uint64) (entry, error) {
	data := t.sections[s].Data
	if off >= uint64(len(data)) {
		return entry{}, badAt(s, off, "entry outside of the section")
	}
	r := reader{data: data, pos: int(off), big: t.big}
	e := entry{off: off}
	length := uint64(r.u32())
	switch {
	case length == length64:
		e.wide = true
		length = r.u64()
	case length >= lengthLimit:
		r.failed = true
	}
	if r.failed || length > uint64(len(data)-r.pos) {
		return entry{}, badAt(s, off, "length reaches beyond the section")
	}
	e.end = r.pos + int(length)
	if length == 0 {
		e.kind, e.body = isZero, r.pos
		return e, nil
	}
	r.data = data[:e.end]
	if !e.classify(&r, s) {
		return e, badAt(s, off, "bad CIE pointer")
	}
	return e, nil
}

// classify reads the CIE id or CIE pointer. The result is false if the pointer is invalid.
func (e *entry) classify(r *reader, s sectionID) bool {
	at := uint64(r.pos)
	size, none := 4, uint64(cieID32)
	switch {
	case s == ehFrame:
		none = 0
	case e.wide:
		size, none = 8, cieID64
	}
	id := r.uint(size)
	e.body = r.pos
	switch {
	case id == none:
		e.kind = isCIE
	case s == debugFrame:
		e.cie = id
	case id > at:
		return false
	default:
		e.cie = at - id
	}
	return !r.failed
}
