package dwarf

import (
	"slices"
	"sort"
	"sync"
)

// Listing the units of a large compressed file takes as long as expanding all its entries. If .debug_aranges contains
// an address, it gives the address's unit. For the answer, it is enough to expand the section up to the end of this
// unit.

// early finds units by .debug_aranges, before the units are listed.
type early struct {
	once sync.Once
	// index has the addresses in .debug_aranges. The unit numbers in it are indexes into offsets, which has the units'
	// offsets in .debug_info.
	index   index
	offsets []uint64
	// starts contains the same offsets in ascending order.
	starts []uint64
}

// load reads .debug_aranges. It ignores damaged parts, because the list of units does not depend on them.
func (e *early) load(d *Data) {
	_ = d.eachArange(func(off uint64, size uint8, set *cursor) error {
		e.offsets = append(e.offsets, off)
		return e.index.add(uint32(len(e.offsets)-1), parseAranges(set, &unit{addrSize: size}))
	})
	e.index.sort()
	e.starts = slices.Sorted(slices.Values(e.offsets))
}

// unitWith returns the unit that contains an offset of .debug_info, or nil. If the units of a large compressed
// section are not listed yet, it searches from the last unit in .debug_aranges that begins at or before the offset.
func (d *Data) unitWith(off uint64) *unit {
	if d.sections.info.spill == nil || d.loaded.Load() {
		_ = d.Load() // unreadable units are not in the list
		return d.unitAt(off)
	}
	d.early.once.Do(func() { d.early.load(d) })
	start := uint64(0)
	if i := sort.Search(len(d.early.starts), func(i int) bool { return d.early.starts[i] > off }); i > 0 {
		start = d.early.starts[i-1]
	}
	for range maxUnits {
		u, err := d.unitHeader(start)
		if err != nil || d.charge(headerCost, "headers of units") != nil {
			return nil
		}
		if u.end > off {
			break
		}
		start = u.end
	}
	u, err := d.unitByOffset(start)
	if err != nil || off < u.first || off >= u.end {
		return nil
	}
	return u
}

// earlyFrames does the work of Frames as long as the units are not listed. It returns no frames if only the list of all
// units can give the answer.
func (d *Data) earlyFrames(addr uint64) ([]Frame, error) {
	d.early.once.Do(func() { d.early.load(d) })
	for _, i := range d.early.index.find(addr) {
		d.readAhead(d.early.offsets[i])
		u, err := d.unitByOffset(d.early.offsets[i])
		if err != nil {
			continue
		}
		if frames, err := d.unitFrames(u, addr); len(frames) > 0 {
			return frames, err
		}
	}
	return nil, nil
}

// readAhead starts to expand the other sections that a look-up needs, in parallel with .debug_info. off is the offset
// of a unit in .debug_info. readAhead expands each section up to about the place of this unit's data. It does nothing
// if .debug_info is not expanded into a file, or if the file already contains the start of the unit.
func (d *Data) readAhead(off uint64) {
	info := &d.sections.info
	if s := info.expanding(); s == nil || s.have.Load() > off {
		return
	}
	go func() {
		// Errors are ignored here. The reader that needs a section later gets the same errors and reports them.
		defer func() { _ = recover() }()
		part := float64(off) / float64(info.size)
		for _, s := range []*section{
			&d.sections.abbrev, &d.sections.line, &d.sections.rnglists, &d.sections.ranges, &d.sections.str, &d.sections.lineStr,
		} {
			if s.expand != nil && s.size > 0 {
				// A unit's data is at about the same relative position in each section.
				_, _ = s.bytes(uint64(part*float64(s.size-1)), 1)
			}
		}
	}()
}

// unitByOffset reads the header and the first entry of the unit at an offset.
func (d *Data) unitByOffset(off uint64) (*unit, error) {
	return cachedAs(d.cache, cacheKey{d, cachedUnit, off}, func() (*unit, int, error) {
		const size = 128
		u, err := d.unitHeader(off)
		if err != nil || u.version == 0 {
			return nil, 0, ErrMalformed
		}
		if err := d.readRootOf(&u); err != nil {
			return nil, 0, err
		}
		return &u, size, nil
	})
}

// readRootOf reads the first entry of one unit, without the other units.
func (d *Data) readRootOf(u *unit) error {
	abbrevs, err := d.abbrevs(u)
	if err != nil {
		return err
	}
	c, err := d.sections.info.cursor(u.first, min(headerStep, u.end-u.first))
	if err != nil {
		return err
	}
	code := c.uleb()
	known := rootDeclaration{table: u.abbrev, code: code, layout: u.layout(), decl: abbrevs.find(code)}
	_, err = d.readRoot(u, nil, &known)
	return err
}
