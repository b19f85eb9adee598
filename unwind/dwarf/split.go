package dwarf

import (
	"errors"
	"fmt"
)

// Split DWARF (§7.3.2; before version 5 a GNU extension): the image contains a skeleton of each unit, with its
// addresses and lines. The entries are in a separate file, or in one file for all units (see dwp.go).

// ErrNoSplit means that the entries of a unit are in a missing file.
var ErrNoSplit = errors.New("dwarf: split file missing")

// SplitFile says where the entries of a unit are.
type SplitFile struct {
	// Name is the compiler's path of the .dwo file, Dir the folder in which the compiler ran.
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

// entries returns the data with the entries of a unit: the file itself, or for a skeleton its split file.
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

// findSplit finds the split unit of a skeleton.
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

// of completes a split unit with data of its skeleton.
func (u *unit) of(skeleton *unit) *unit {
	s := *u
	s.low, s.addrBase, s.split = skeleton.low, skeleton.addrBase, false
	if s.version < 5 {
		s.rngBase = skeleton.gnuRanges
	}
	return &s
}

// splitData opens a split file, once.
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

// addrs is the table of addresses, which a split file leaves in the image.
func (d *Data) addrs() *section {
	if d.skeleton != nil {
		return &d.skeleton.sections.addr
	}
	return &d.sections.addr
}

// oldRanges are the range lists before version 5, which a split file leaves in the image, too.
func (d *Data) oldRanges() *section {
	if d.skeleton != nil {
		return &d.skeleton.sections.ranges
	}
	return &d.sections.ranges
}

// setSplitBases sets the start of the tables of a split unit: behind the headers of their sections (§7.3.2.2) in
// version 5.
func (u *unit) setSplitBases() {
	if u.version < 5 {
		return
	}
	u.strBase, u.rngBase = 8, 12
	if u.is64 {
		u.strBase, u.rngBase = 16, 20
	}
}
