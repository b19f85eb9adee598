package dwarf

import (
	"errors"
	"fmt"
)

// With split DWARF (§7.3.2; before version 5 a GNU extension), the image contains a skeleton of each unit, with its
// addresses and lines. The entries are in a separate file for each unit, or in one file for all units (see dwp.go).

// ErrNoSplit means that the file with a unit's entries is missing.
var ErrNoSplit = errors.New("dwarf: split file missing")

// SplitFile identifies the file with the entries of a unit.
type SplitFile struct {
	// Name is the path of the .dwo file as the compiler wrote it. Dir is the folder in which the compiler ran.
	Name, Dir string
}

// maxSplitFiles bounds the files that are kept open.
const maxSplitFiles = 256

// splitUnit is a unit of a .dwo file or a package.
type splitUnit struct {
	data *Data
	unit *unit
}

// splitFile is an opened file, or the reason why it could not be opened.
type splitFile struct {
	data *Data
	err  error
}

// entries returns the Data and the unit that contain the entries of the unit u. These are d and u themselves or, for a
// skeleton, the Data of its split file and its split unit.
func (d *Data) entries(u *unit) (*Data, *unit, error) {
	if !u.split {
		return d, u, nil
	}
	s, err := cachedAs(d.cache, cacheKey{d, cachedSplit, u.off}, func() (splitUnit, int, error) {
		s, err := d.findSplit(u)
		return s, 0, err
	})
	return s.data, s.unit, err
}

// findSplit finds the split unit of a skeleton, in the package or in a separate file.
func (d *Data) findSplit(u *unit) (splitUnit, error) {
	s, notPackaged := d.packaged(u)
	if notPackaged == nil {
		return s, nil
	}
	if d.options.Split == nil {
		return splitUnit{}, fmt.Errorf("%s: unit at %#x: %w", d.name, u.off, notPackaged)
	}
	a, err := d.source(u)
	if err != nil {
		return splitUnit{}, err
	}
	name := SplitFile{Name: a.dwo, Dir: a.dir}
	data, err := d.splitData(name)
	if err != nil {
		return splitUnit{}, fmt.Errorf("%s: %s: %w", d.name, name.Name, err)
	}
	if err := d.charge(int64(len(data.units))*lookCost, "the units of split files"); err != nil {
		return splitUnit{}, err
	}
	for i := range data.units {
		s := &data.units[i]
		if s.dwoID == u.dwoID && s.tag == tagCompileUnit && s.version == u.version {
			return splitUnit{data, s.of(u)}, nil
		}
	}
	return splitUnit{}, fmt.Errorf("%s: %s: %w: no unit %#x", d.name, name.Name, ErrNoSplit, u.dwoID)
}

// of returns a copy of a split unit, with the values that only its skeleton contains.
func (u *unit) of(skeleton *unit) *unit {
	s := *u
	s.low, s.addrBase, s.split = skeleton.low, skeleton.addrBase, false
	if s.version < 5 {
		s.rngBase = skeleton.gnuRanges
	}
	return &s
}

// splitData opens a split file, or returns the result of the earlier call for this file.
func (d *Data) splitData(name SplitFile) (*Data, error) {
	d.splitMu.Lock()
	defer d.splitMu.Unlock()
	f, ok := d.splitFiles[name]
	if !ok {
		if len(d.splitFiles) >= maxSplitFiles {
			clear(d.splitFiles)
		}
		f.data, f.err = d.openSplit(name)
		if d.splitFiles == nil {
			d.splitFiles = make(map[SplitFile]splitFile)
		}
		d.splitFiles[name] = f
	}
	return f.data, f.err
}

// openSplit opens a split file and lists its units.
func (d *Data) openSplit(name SplitFile) (*Data, error) {
	m, err := d.options.Split(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoSplit, err)
	}
	s := &Data{name: m.Name(), cache: d.cache, options: d.options, skeleton: d, effort: d.effort}
	if err := s.findSections(m, ".dwo"); err != nil {
		return nil, err
	}
	return s, s.Load()
}

// addrs returns the section with the table of addresses, .debug_addr. A split file has no such section: its addresses
// are in the image.
func (d *Data) addrs() *section {
	if d.skeleton != nil {
		return &d.skeleton.sections.addr
	}
	return &d.sections.addr
}

// oldRanges returns the section with the range lists before version 5, .debug_ranges. For a split file it is in the
// image.
func (d *Data) oldRanges() *section {
	if d.skeleton != nil {
		return &d.skeleton.sections.ranges
	}
	return &d.sections.ranges
}

// setSplitBases sets the offsets of a split unit's tables in their sections. In version 5 the tables follow the
// sections' headers (§7.3.2.2).
func (u *unit) setSplitBases() {
	if u.version < 5 {
		return
	}
	u.strBase, u.rngBase = 8, 12
	if u.is64 {
		u.strBase, u.rngBase = 16, 20
	}
}
