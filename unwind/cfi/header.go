package cfi

// header is .eh_frame_hdr's search table. The field count is the number of its pairs of encoded pointers: the start of
// a function and the address of its FDE, sorted by the start (Linux Standard Base 5.0, "The .eh_frame_hdr section").
// Look-ups search the section's own bytes.
type header struct {
	addr  uint64
	data  []byte
	table int    // offset of the first pair
	count uint64 // 0: no table that can be searched
	enc   byte
	size  int // bytes of one pointer
	// quick is set if pointers are DW_EH_PE_datarel|sdata4 and little endian, as linkers make them.
	quick bool
}

// parseHeader validates .eh_frame_hdr. The result's count is 0 if look-ups cannot search the header: it is absent, has
// an unknown version, has no table, has pointers of varying size, or is truncated.
func (t *Table) parseHeader(s Section) header {
	r := reader{data: s.Data, big: t.big}
	b := bases{section: s.Addr, data: s.Addr}
	version, frameEnc, countEnc, enc := r.u8(), r.u8(), r.u8(), r.u8()
	if version != 1 || r.failed || countEnc == peOmit || len(t.sections[ehFrame].Data) == 0 {
		return header{}
	}
	if frameEnc != peOmit {
		t.pointer(&r, frameEnc, b)
	}
	count := t.pointer(&r, countEnc, b)
	size := t.fixedSize(enc)
	if r.failed || size == 0 || enc&peIndir != 0 || count > uint64(len(s.Data)-r.pos)/uint64(2*size) {
		return header{}
	}
	return header{
		addr: s.Addr, data: s.Data, table: r.pos, count: count, enc: enc, size: size,
		quick: enc == peDataRel|peSData4 && !t.big && t.addrSize == 8,
	}
}

// searchHeader finds the last pair whose function starts at or before pc. It returns the function's start and the FDE's
// address; false if there is no such pair.
func (t *Table) searchHeader(pc uint64) (start, fde uint64, ok bool) {
	h := &t.header
	lo, hi := uint64(0), h.count
	for lo < hi {
		mid := (lo + hi) / 2
		var at uint64
		if h.quick {
			at = h.quickStart(mid)
		} else {
			at, _ = t.headerPair(mid)
		}
		if at <= pc {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return 0, 0, false
	}
	start, fde = t.headerPair(lo - 1)
	return start, fde, true
}

// quickStart returns the first pointer of pair i, the function's start. The header must be quick.
func (h *header) quickStart(i uint64) uint64 {
	b := h.data[uint64(h.table)+8*i:]
	_ = b[3]
	v := int32(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
	return h.addr + uint64(int64(v))
}

// headerPair reads pair i.
func (t *Table) headerPair(i uint64) (start, fde uint64) {
	h := &t.header
	pos := h.table + int(i)*2*h.size
	r := reader{data: h.data, pos: pos, big: t.big}
	b := bases{section: h.addr, data: h.addr}
	start = t.pointer(&r, h.enc, b)
	fde = t.pointer(&r, h.enc, b)
	return start, fde
}
