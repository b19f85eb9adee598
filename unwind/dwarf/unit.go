package dwarf

import (
	"errors"
	"fmt"
	"sort"

	"pg_stat_backtrace/unwind/budget"
)

// unit has a unit's header (§7.5.1), and those attributes of its first entry that apply to all entries.
type unit struct {
	// off and end are the unit's range in .debug_info. The field first is the offset of its first entry.
	off, end, first uint64
	abbrev          uint64
	stmt            uint64
	low             uint64
	strBase         uint64
	addrBase        uint64
	rngBase         uint64
	// dwoID is the number that a skeleton and its split unit have in common. gnuRanges is the start of a split unit's
	// range lists before version 5.
	dwoID, gnuRanges uint64
	tag              tag
	version          uint8
	addrSize         uint8
	is64             bool
	hasStmt          bool
	// split is set for a skeleton, whose entries are in another file.
	split bool
}

func (u *unit) offsetSize() int {
	if u.is64 {
		return 8
	}
	return 4
}

// layout encodes the properties on which the sizes of forms depend, as a number below 16.
func (u *unit) layout() uint64 {
	n := uint64(0)
	if u.is64 {
		n |= 1
	}
	if u.addrSize == 8 {
		n |= 2
	}
	if u.version > 2 {
		n |= 4
	}
	return n
}

const (
	// maxUnits bounds the units of a file.
	maxUnits = 1 << 18
	// headerStep is how many bytes of a unit are read at first, for its header and first entry.
	headerStep = 512
	// maxHeader bounds the first entry in bytes.
	maxHeader = 64 << 10
)

// load lists the units and their addresses.
func (d *Data) load() error {
	var errs error
	info := &d.sections.info
	headers := 0 // includes units of unknown versions, to stop in a section of zeros
	for off := uint64(0); off < info.size; headers++ {
		if headers == maxUnits {
			errs = errors.Join(errs, fmt.Errorf("%s: %w: more than %d units", d.name, ErrTooLarge, maxUnits))
			break
		}
		u, err := d.unitHeader(off)
		if err != nil {
			errs = errors.Join(errs, fmt.Errorf("%s: unit at %#x: %w", d.name, off, err))
			break // the start of the next unit is unknown
		}
		off = u.end
		if u.version == 0 {
			continue
		}
		d.units = append(d.units, u)
	}
	errs = errors.Join(errs, d.readRoots())
	if info.spill != nil {
		// The checksum is at the end of the section. A section whose checksum could not be verified is not used.
		if _, err := info.bytes(info.size-1, 1); err != nil {
			d.units, d.index = nil, index{}
			errs = errors.Join(errs, err)
		}
	}
	d.index.sort()
	return errs
}

// unitHeader reads the header of the unit at off. If the unit's version or header is unknown, the result has version 0.
func (d *Data) unitHeader(off uint64) (unit, error) {
	const largest = 40
	c, err := d.sections.info.cursor(off, largest)
	if err != nil {
		return unit{}, err
	}
	u := unit{off: off}
	length, is64 := c.initialLength()
	u.is64 = is64
	u.end = c.offset() + length
	if c.bad || length > d.sections.info.size || u.end > d.sections.info.size {
		return u, fmt.Errorf("%w: length %#x", ErrMalformed, length)
	}
	version := c.u16()
	if version < 2 || version > 5 {
		return u, nil
	}
	kind := uint8(0)
	if version == 5 {
		kind = c.u8()
		u.addrSize = c.u8()
		u.abbrev = c.sized(is64)
	} else {
		u.abbrev = c.sized(is64)
		u.addrSize = c.u8()
	}
	switch kind {
	case unitSkeleton, unitSplitCompile:
		u.dwoID = c.uint(8)
	case unitType, unitSplitType:
		c.uint(8)
		c.sized(is64)
	}
	u.first = c.offset()
	if c.bad || u.first > u.end || u.addrSize != 4 && u.addrSize != 8 || u.abbrev > 1<<59 {
		return u, nil
	}
	u.version = uint8(version)
	if kind == unitSplitCompile || kind == unitSplitType {
		u.setSplitBases()
	}
	return u, nil
}

// unitAt returns the unit that contains an offset of .debug_info, or nil. The units must be listed.
func (d *Data) unitAt(off uint64) *unit {
	i := sort.Search(len(d.units), func(i int) bool { return d.units[i].end > off })
	if i == len(d.units) || off < d.units[i].first {
		return nil
	}
	return &d.units[i]
}

// readRoots reads the first entry of each unit and adds the unit's addresses to the index. Most units have their own
// table of abbreviations; readRoots reads only one declaration of it.
func (d *Data) readRoots() error {
	abbrev, err := d.sections.abbrev.bytes(0, d.sections.abbrev.size)
	if err != nil {
		return err
	}
	var errs error
	var known rootDeclaration
	pending := make(map[uint64]uint32)
	ranges := maxRangeBytes
	for i := range d.units {
		u := &d.units[i]
		r, err := d.readRoot(u, abbrev, &known)
		if errors.Is(err, budget.ErrExceeded) {
			errs = errors.Join(errs, err)
			break
		}
		if err == nil {
			err = d.indexUnit(uint32(i), &r, pending, &ranges)
		}
		if err != nil && len(d.units) < 1000 { // if a file has 1,000 units or more, errors of single units are not reported
			errs = errors.Join(errs, fmt.Errorf("%s: unit at %#x: %w", d.name, u.off, err))
		}
	}
	if len(pending) > 0 {
		errs = errors.Join(errs, d.readAranges(pending))
	}
	return errs
}

// root are the attributes of a unit's first entry that define its addresses.
type root struct {
	low, high, ranges value
}

// rootDeclaration is the declaration that was found last for the first entry of a unit. Some compilers use one table
// for all units, so the next unit may have the same declaration.
type rootDeclaration struct {
	table, code, layout uint64
	decl                *declaration
	// read is the number of declarations that were read in all searches.
	read int
}

// maxRootSearch limits the number of declarations that are read to find the declarations of the units' first entries,
// over all units of a file.
const maxRootSearch = 32 << 20

// rootDeclaration returns the declaration of a unit's first entry, or nil. It charges the cost of the search and of the
// attributes.
func (d *Data) rootDeclaration(k *rootDeclaration, abbrev []byte, u *unit, code uint64, big bool) (*declaration, error) {
	decl, searched := k.find(abbrev, u, code, big)
	if decl != nil {
		searched += len(decl.attrs)
	}
	return decl, d.charge(headerCost+int64(searched), "first entries of units")
}

// find looks for the declaration with a code in the table of abbreviations that u uses. searched is the number of bytes
// that it read.
func (k *rootDeclaration) find(abbrev []byte, u *unit, code uint64, big bool) (found *declaration, searched int) {
	if k.decl != nil && k.table == u.abbrev && k.code == code && k.layout == u.layout() {
		return k.decl, 0
	}
	if u.abbrev >= uint64(len(abbrev)) {
		return nil, 0
	}
	c := cursor{data: abbrev, pos: int(u.abbrev), big: big}
	defer func() { searched = c.pos - int(u.abbrev) }()
	for ; k.read < maxRootSearch; k.read++ {
		got := c.uleb()
		if got == 0 || c.bad {
			return nil, 0
		}
		if got == code {
			decl := parseDeclaration(&c, u)
			k.table, k.code, k.layout, k.decl = u.abbrev, code, u.layout(), &decl
			return &decl, 0
		}
		skipDeclaration(&c)
	}
	return nil, 0
}

// readRoot reads the first entry of a unit, and copies those attributes to the unit that apply to all its entries.
func (d *Data) readRoot(u *unit, abbrev []byte, known *rootDeclaration) (root, error) {
	for n := uint64(headerStep); ; n *= 8 {
		c, err := d.sections.info.cursor(u.first, min(n, u.end-u.first))
		if err != nil {
			return root{}, err
		}
		code := c.uleb()
		if code == 0 && !c.bad {
			return root{}, nil // an empty unit
		}
		decl, err := d.rootDeclaration(known, abbrev, u, code, c.big)
		if err != nil {
			return root{}, err
		}
		if decl == nil {
			return root{}, fmt.Errorf("%w: no abbreviation %d", ErrMalformed, code)
		}
		r, low := u.readRootAttributes(&c, decl)
		if !c.bad {
			if low.ok() {
				u.low, err = d.address(u, low)
			}
			r.low = low
			return r, err
		}
		if n >= u.end-u.first || n >= maxHeader {
			return root{}, fmt.Errorf("%w: first entry ends early", ErrMalformed)
		}
	}
}

// readRootAttributes reads the attributes of the first entry.
func (u *unit) readRootAttributes(c *cursor, decl *declaration) (root, value) {
	var r root
	var low value
	u.tag = decl.tag
	for i := range decl.attrs {
		a := &decl.attrs[i]
		switch a.name {
		case attrLowPC:
			low = u.readForm(c, a)
		case attrHighPC:
			r.high = u.readForm(c, a)
		case attrRanges:
			r.ranges = u.readForm(c, a)
		case attrStmtList:
			u.stmt, u.hasStmt = u.readForm(c, a).u, true
		case attrStrOffsetsBase:
			u.strBase = u.readForm(c, a).u
		case attrAddrBase, attrGNUAddrBase:
			u.addrBase = u.readForm(c, a).u
		case attrGNURangesBase:
			u.gnuRanges = u.readForm(c, a).u
		case attrGNUDwoID:
			u.dwoID = u.readForm(c, a).u
		case attrDwoName, attrGNUDwoName:
			u.split = true
			u.skipForm(c, a.form)
		case attrRnglistsBase:
			u.rngBase = u.readForm(c, a).u
		default:
			u.skipForm(c, a.form)
		}
	}
	return r, low
}

// source has the paths in a unit's first entry.
type source struct {
	// dir is the folder in which the compiler ran. dwo is the name of the file with the entries of a skeleton.
	dir, dwo string
}

// source reads the paths in a unit's first entry. If it returns an error, the result has the readable part.
func (d *Data) source(u *unit) (source, error) {
	var s source
	abbrevs, err := d.abbrevs(u)
	if err != nil {
		return s, err
	}
	c, err := d.sections.info.cursor(u.first, min(maxHeader, u.end-u.first))
	if err != nil {
		return s, err
	}
	decl := abbrevs.find(c.uleb())
	if decl == nil {
		return s, fmt.Errorf("%w: unit at %#x", ErrMalformed, u.off)
	}
	if err := d.charge(int64(len(decl.attrs)), "first entries of units"); err != nil {
		return s, err
	}
	for i := range decl.attrs {
		a := &decl.attrs[i]
		v := u.readForm(&c, a)
		if c.bad {
			break
		}
		var e error
		switch a.name {
		case attrCompDir:
			s.dir, e = d.text(u, v)
		case attrDwoName, attrGNUDwoName:
			s.dwo, e = d.text(u, v)
		default:
		}
		err = errors.Join(err, e)
	}
	return s, err
}
