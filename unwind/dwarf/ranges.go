package dwarf

import "fmt"

// span is a range of addresses [low, high).
type span struct{ low, high uint64 }

func (s span) holds(addr uint64) bool { return addr >= s.low && addr < s.high }

const (
	// maxRanges bounds the ranges of one entry.
	maxRanges = 1 << 18
	// maxRangeBytes limits the bytes of range lists that are read for the functions of one unit, and for the ranges of
	// all units together.
	maxRangeBytes = 64 << 20
	// indexCost is the cost of reading an address by its index, in bytes of range lists.
	indexCost = 16
	// rangeStep is how many bytes of a list are read at first.
	rangeStep = 1 << 10
)

// alive reports whether the linker kept the code. If a linker has removed the code, it sets the addresses to 0 or 1.
// Newer linkers set them to the largest address or the address before it.
func (s span) alive(u *unit) bool {
	top := ^uint64(0)
	if u.addrSize == 4 {
		top = 0xffffffff
	}
	return s.low > 1 && s.low < s.high && s.low < top-1
}

// spans appends the address ranges that an entry covers: DW_AT_low_pc and DW_AT_high_pc, or DW_AT_ranges (§2.17).
//
// budget is the number of bytes of range lists that may still be read. It is needed because many entries may refer to
// the same long list.
func (d *Data) spans(dst []span, u *unit, low, high, ranges value, budget *int) ([]span, error) {
	if ranges.ok() {
		return d.rangeList(dst, u, ranges, budget)
	}
	if !low.ok() || !high.ok() {
		return dst, nil
	}
	start, err := d.address(u, low)
	if err != nil {
		return dst, err
	}
	end := start + high.u // unless it is an address, high is the length
	if high.isAddress() {
		if end, err = d.address(u, high); err != nil {
			return dst, err
		}
	}
	if s := (span{start, end}); s.alive(u) {
		dst = append(dst, s)
	}
	return dst, nil
}

// rangeList appends the ranges of the list to which the value at refers.
func (d *Data) rangeList(dst []span, u *unit, at value, budget *int) ([]span, error) {
	s, off := d.oldRanges(), at.u
	if d.skeleton != nil && u.version < 5 {
		off += u.rngBase
	}
	if u.version >= 5 {
		s = &d.sections.rnglists
		if at.form == formRnglistx {
			rel, err := s.uint(u.rngBase, at.u, u.offsetSize())
			if err != nil {
				return dst, err
			}
			off = u.rngBase + rel
		}
	}
	before := len(dst)
	for n := uint64(rangeStep); ; n *= 8 {
		c, err := s.cursor(off, n)
		if err != nil {
			return dst, err
		}
		if *budget < 0 {
			return dst[:before], fmt.Errorf("%w: range lists", ErrTooLarge)
		}
		if u.version >= 5 {
			dst, err = d.parseRnglist(dst[:before], u, &c, budget)
		} else {
			dst = parseRanges(dst[:before], u, &c)
		}
		if err != nil {
			return dst, err
		}
		*budget -= c.pos
		switch {
		case len(dst)-before > maxRanges:
			return dst[:before], fmt.Errorf("%w: ranges at %#x", ErrTooLarge, off)
		case !c.bad:
			return dst, nil
		case uint64(len(c.data)) < n:
			return dst[:before], fmt.Errorf("%w: ranges at %#x end early", ErrMalformed, off)
		}
	}
}

// parseRanges reads a list of .debug_ranges (DWARF 4 §2.17.3).
func parseRanges(dst []span, u *unit, c *cursor) []span {
	base, eight := u.low, u.addrSize == 8
	top := ^uint64(0)
	if !eight {
		top = 0xffffffff
	}
	for limit := len(dst) + maxRanges; !c.bad && len(dst) <= limit; {
		low, high := c.sized(eight), c.sized(eight)
		switch {
		case low == 0 && high == 0:
			return dst
		case low == top:
			base = high
		default:
			if s := (span{base + low, base + high}); low < high && s.alive(u) {
				dst = append(dst, s)
			}
		}
	}
	return dst
}

// Kinds of entries of a range list (DW_RLE_…, §7.25).
const (
	rleEndOfList    = 0
	rleBaseAddressx = 1
	rleStartxEndx   = 2
	rleStartxLength = 3
	rleOffsetPair   = 4
	rleBaseAddress  = 5
	rleStartEnd     = 6
	rleStartLength  = 7
)

// parseRnglist reads a list of .debug_rnglists (§2.17.3).
func (d *Data) parseRnglist(dst []span, u *unit, c *cursor, budget *int) ([]span, error) {
	base, eight := u.low, u.addrSize == 8
	index := func() (uint64, error) {
		if *budget -= indexCost; *budget < 0 {
			return 0, fmt.Errorf("%w: range lists", ErrTooLarge)
		}
		return d.addrs().uint(u.addrBase, c.uleb(), int(u.addrSize))
	}
	for limit := len(dst) + maxRanges; !c.bad && len(dst) <= limit; {
		var s span
		var err error
		switch kind := c.u8(); kind {
		case rleEndOfList:
			return dst, nil
		case rleBaseAddressx:
			base, err = index()
		case rleBaseAddress:
			base = c.sized(eight)
		case rleStartxEndx:
			if s.low, err = index(); err == nil {
				s.high, err = index()
			}
		case rleStartxLength:
			s.low, err = index()
			s.high = s.low + c.uleb()
		case rleOffsetPair:
			s.low = base + c.uleb()
			s.high = base + c.uleb()
		case rleStartEnd:
			s.low, s.high = c.sized(eight), c.sized(eight)
		case rleStartLength:
			s.low = c.sized(eight)
			s.high = s.low + c.uleb()
		default:
			return dst, fmt.Errorf("%w: range list entry of kind %d", ErrMalformed, kind)
		}
		if c.bad {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
		if s.alive(u) {
			dst = append(dst, s)
		}
	}
	return dst, nil
}
