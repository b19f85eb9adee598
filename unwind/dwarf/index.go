package dwarf

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
)

// index finds the units that cover an address.
type index struct {
	spans []indexed // sorted by low address
	// reach has, for each span, the highest end address of this span and of the spans before it in the list spans.
	reach []uint64
}

// indexed is a range of addresses of a unit.
type indexed struct {
	span
	unit uint32
}

const (
	// maxIndexed bounds the ranges of a file.
	maxIndexed = 4 << 20
	// maxOverlap limits the number of units for one address. Units overlap only in damaged files.
	maxOverlap = 8
	// maxBack limits the number of spans or functions that a look-up tests.
	maxBack = 4096
)

func (x *index) add(unit uint32, spans []span) error {
	if len(x.spans)+len(spans) > maxIndexed {
		return fmt.Errorf("%w: more than %d ranges", ErrTooLarge, maxIndexed)
	}
	for _, s := range spans {
		if n := len(x.spans); n > 0 && x.spans[n-1].unit == unit && x.spans[n-1].high == s.low {
			x.spans[n-1].high = s.high
			continue
		}
		x.spans = append(x.spans, indexed{s, unit})
	}
	return nil
}

func (x *index) sort() {
	x.spans = slices.Clip(x.spans)
	slices.SortFunc(x.spans, func(a, b indexed) int {
		if a.low == b.low {
			return cmp.Compare(a.unit, b.unit)
		}
		return cmp.Compare(a.low, b.low)
	})
	x.reach = make([]uint64, len(x.spans))
	reach := uint64(0)
	for i := range x.spans {
		reach = max(reach, x.spans[i].high)
		x.reach[i] = reach
	}
}

// find returns the numbers of the units that cover an address. The unit whose range begins nearest to the address comes
// first.
func (x *index) find(addr uint64) []uint32 {
	i := sort.Search(len(x.spans), func(i int) bool { return x.spans[i].low > addr }) - 1
	var units []uint32
	for n := 0; i >= 0 && n < maxBack && x.reach[i] > addr; i, n = i-1, n+1 {
		s := &x.spans[i]
		if s.holds(addr) && !slices.Contains(units, s.unit) {
			if units = append(units, s.unit); len(units) == maxOverlap {
				break
			}
		}
	}
	return units
}

// indexUnit adds the addresses of unit i to the index. If the unit's first entry does not give the addresses, indexUnit
// adds the unit to pending, by the unit's offset, so that readAranges can look for them.
func (d *Data) indexUnit(i uint32, r *root, pending map[uint64]uint32, budget *int) error {
	u := &d.units[i]
	if u.tag != tagCompileUnit && u.tag != tagSkeletonUnit {
		return nil // types and partial units have no code
	}
	if !r.ranges.ok() && !r.high.ok() {
		pending[u.off] = i
		return nil
	}
	spans, err := d.spans(nil, u, r.low, r.high, r.ranges, budget)
	if err != nil {
		return err
	}
	return d.index.add(i, spans)
}

// readAranges adds the addresses of the pending units to the index, from .debug_aranges.
func (d *Data) readAranges(pending map[uint64]uint32) error {
	return d.eachArange(func(off uint64, size uint8, set *cursor) error {
		i, ok := pending[off]
		if !ok || size != d.units[i].addrSize {
			return nil
		}
		return d.index.add(i, parseAranges(set, &d.units[i]))
	})
}

// eachArange calls the callback use for each set of .debug_aranges (§6.1.2), with the offset of its unit, the size of
// addresses, and the rest of the set.
func (d *Data) eachArange(use func(off uint64, size uint8, set *cursor) error) error {
	all, err := d.sections.aranges.bytes(0, d.sections.aranges.size)
	if err != nil {
		return err
	}
	for len(all) > 0 {
		c := cursor{data: all, big: d.sections.aranges.big}
		length, is64 := c.initialLength()
		if c.bad || length > uint64(c.left()) {
			return fmt.Errorf("%w: .debug_aranges", ErrMalformed)
		}
		set := cursor{data: all[:c.pos+int(length)], pos: c.pos, big: c.big}
		all = all[c.pos+int(length):]
		version, off := set.u16(), set.sized(is64)
		size, segment := set.u8(), set.u8()
		if version != 2 || segment != 0 || size != 4 && size != 8 || set.bad {
			continue
		}
		if err := use(off, size, &set); err != nil {
			return err
		}
	}
	return nil
}

// parseAranges reads the ranges of one set. The pairs of address and length are aligned to their size.
func parseAranges(c *cursor, u *unit) []span {
	var spans []span
	size := 2 * int(u.addrSize)
	if over := c.pos % size; over != 0 {
		c.take(uint64(size - over))
	}
	for c.left() >= size {
		low, length := c.sized(u.addrSize == 8), c.sized(u.addrSize == 8)
		if low == 0 && length == 0 {
			break
		}
		if s := (span{low, low + length}); s.alive(u) {
			spans = append(spans, s)
		}
	}
	return spans
}
