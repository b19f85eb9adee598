package dwarf

import (
	"errors"
	"fmt"
)

// A package (.dwp) has the split units of a program in one file. An index has, for each unit, the places of its data in
// the sections (§7.3.5; version 2 is the GNU extension before DWARF 5).

// dwp is an opened package.
type dwp struct {
	data  *Data
	index packageIndex
}

// packageIndex is the section .debug_cu_index: a hash table of units, and tables with the places of the units' data.
type packageIndex struct {
	raw []byte
	big bool
	// columns are the numbers of the sections with data of units. The fields units and slots are the lengths of the
	// tables.
	columns      []uint32
	units, slots uint32
	// The fields hashes, rows, offsets and sizes are the positions of the tables in the field raw.
	hashes, rows, offsets, sizes int
}

// Numbers of sections in an index (DW_SECT_…, §7.3.5.3).
const (
	sectInfo       = 1
	sectAbbrev     = 3
	sectStrOffsets = 6
	sectRnglists   = 8
)

// maxPackageIndex bounds the index in bytes, maxColumns its number of sections.
const (
	maxPackageIndex = 64 << 20
	maxColumns      = 16
)

// parsePackageIndex reads the header of an index and verifies that the index contains its tables.
func parsePackageIndex(raw []byte, big bool) (packageIndex, error) {
	c := cursor{data: raw, big: big}
	version := c.u32()
	if big {
		version = version>>16 | version<<16 // in version 5 the first half is the version, the second half is padding
	}
	if v := version & 0xffff; v != 2 && v != 5 {
		return packageIndex{}, fmt.Errorf("%w: index of version %d", ErrMalformed, v)
	}
	columns := c.u32()
	x := packageIndex{raw: raw, big: big, units: c.u32(), slots: c.u32()}
	if c.bad || columns == 0 || columns > maxColumns || x.slots&(x.slots-1) != 0 ||
		uint64(x.slots)*12+uint64(x.units)*uint64(columns)*8+uint64(columns)*4 > uint64(c.left()) {
		return packageIndex{}, fmt.Errorf("%w: index of %d units", ErrMalformed, x.units)
	}
	x.hashes = c.pos
	x.rows = x.hashes + 8*int(x.slots)
	c.pos = x.rows + 4*int(x.slots)
	for range columns {
		x.columns = append(x.columns, c.u32())
	}
	x.offsets = c.pos
	x.sizes = x.offsets + 4*int(columns)*int(x.units)
	return x, nil
}

// number reads entry i of the table that begins at the position table in raw. The table's entries are numbers of size
// bytes.
func (x *packageIndex) number(table int, i uint32, size int) uint64 {
	c := cursor{data: x.raw, pos: table + int(i)*size, big: x.big}
	return c.uint(size)
}

// part is the place of a unit's data in a section.
type part struct{ off, size uint64 }

// find returns the places of a unit's data by the numbers of sections; nil if the package does not contain the unit.
// looked is the number of slots that find read and that belong to other units.
func (x *packageIndex) find(id uint64) (parts map[uint32]part, looked uint32) {
	if x.slots == 0 {
		return nil, 0
	}
	mask := x.slots - 1
	step := uint32(id>>32)&mask | 1
	for n, i := uint32(0), uint32(id)&mask; n < x.slots; n, i = n+1, (i+step)&mask {
		row := uint32(x.number(x.rows, i, 4))
		if row == 0 {
			return nil, n
		}
		if x.number(x.hashes, i, 8) != id {
			continue
		}
		if row > x.units {
			return nil, n
		}
		parts = make(map[uint32]part, len(x.columns))
		for k, column := range x.columns {
			at := (row-1)*uint32(len(x.columns)) + uint32(k)
			parts[column] = part{x.number(x.offsets, at, 4), x.number(x.sizes, at, 4)}
		}
		return parts, n
	}
	return nil, x.slots
}

// openPackage opens the package at its first call. It returns nil if there is none.
func (d *Data) openPackage() (*dwp, error) {
	d.packageOnce.Do(func() {
		if d.options.Package == nil {
			return
		}
		d.dwp, d.packageErr = d.readPackage()
	})
	return d.dwp, d.packageErr
}

func (d *Data) readPackage() (*dwp, error) {
	m, err := d.options.Package()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoSplit, err)
	}
	raw, _, err := m.Section(".debug_cu_index")
	if err != nil || len(raw) > maxPackageIndex {
		return nil, fmt.Errorf("%s: %w: no index: %w", m.Name(), ErrMalformed, err)
	}
	p := &dwp{data: &Data{name: m.Name(), cache: d.cache, options: d.options, skeleton: d, effort: d.effort}}
	p.data.once.Do(func() {}) // the index replaces the list of units
	if err := p.data.findSections(m, ".dwo"); err != nil {
		return nil, err
	}
	p.index, err = parsePackageIndex(raw, p.data.sections.info.big)
	return p, err
}

// packaged looks in the package for the split unit of a skeleton.
func (d *Data) packaged(u *unit) (splitUnit, error) {
	p, err := d.openPackage()
	if err != nil || p == nil {
		return splitUnit{}, errors.Join(ErrNoSplit, err)
	}
	parts, looked := p.index.find(u.dwoID)
	if err := d.charge(int64(looked)*lookCost, "the index of units"); err != nil {
		return splitUnit{}, err
	}
	if parts == nil {
		return splitUnit{}, fmt.Errorf("%s: %w: no unit %#x", p.data.name, ErrNoSplit, u.dwoID)
	}
	s, err := p.data.unitHeader(parts[sectInfo].off)
	if err != nil {
		return splitUnit{}, err
	}
	s.abbrev += parts[sectAbbrev].off
	s.strBase += parts[sectStrOffsets].off
	if s.version >= 5 {
		s.rngBase += parts[sectRnglists].off
	}
	if s.version != u.version || s.end > parts[sectInfo].off+parts[sectInfo].size {
		return splitUnit{}, fmt.Errorf("%s: %w: unit %#x", p.data.name, ErrMalformed, u.dwoID)
	}
	if err := p.data.readRootOf(&s); err != nil {
		return splitUnit{}, err
	}
	if s.dwoID != u.dwoID {
		return splitUnit{}, fmt.Errorf("%s: %w: unit %#x is %#x", p.data.name, ErrMalformed, u.dwoID, s.dwoID)
	}
	return splitUnit{p.data, s.of(u)}, nil
}
