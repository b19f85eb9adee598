// Package dwarf reads DWARF debugging information, version 2 to 5. For a code address it gives the function, the calls
// that the compiler inlined at the address, and the source lines.
//
// Reading is lazy. The first look-up lists the units and the addresses that they cover. A look-up then decodes only the
// unit that covers its address, and a Cache of bounded size keeps the decoded data. Uncompressed sections are read
// piece by piece from the file. Large compressed sections are expanded only as far as necessary: if .debug_aranges
// contains the address, the units are not listed. If dwz has moved data to a supplementary file, it is read from this
// file (the GNU forms and the forms of DWARF 5). Data of split DWARF is read from .dwo files, or from a package of .dwo
// files (.dwp).
//
// Files may be damaged or hostile: reading is bounded in time and space, and damaged data gives fewer answers, never a
// panic. The package must not know of processes, load addresses or where files are found; addresses are link-time
// addresses. Section numbers in comments refer to the DWARF 5 standard.
package dwarf

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"pg_stat_backtrace/unwind/budget"
	"pg_stat_backtrace/unwind/elfimage"
)

// Errors that callers branch on with errors.Is.
var (
	// ErrNone means that the image has no debugging information.
	ErrNone = errors.New("dwarf: no debugging information")
	// ErrMalformed means that the information contradicts itself, or the size of a section.
	ErrMalformed = errors.New("dwarf: malformed debugging information")
	// ErrTooLarge means that a part exceeds the limits of this package.
	ErrTooLarge = errors.New("dwarf: debugging information too large")
	// ErrNoSupplement means that the data is in a supplementary file that was not given.
	ErrNoSupplement = errors.New("dwarf: supplementary file missing")
)

// Frame is a call at an address: a function, or a call that the compiler inlined.
type Frame struct {
	// Function is the linkage name if the information contains it (mangled in C++ and Rust). Otherwise it is the name
	// in the source, or "" if only the line is known.
	Function string
	// Entry is the function's first address, or 0 if unknown. Start is the first address of the piece of code that
	// contains the address. A function or an inlined call may consist of several pieces.
	Entry, Start uint64
	// File and Line are the current place of the frame in the source. For the innermost frame they come from the line
	// table, for other frames from the call. They are "" and 0 if unknown.
	File string
	Line int
	// Inlined is set for an inlined call, which shares the stack frame of the next Frame.
	Inlined bool
}

// Data is the debugging information of one file. It is safe for concurrent use.
type Data struct {
	name     string
	sections sections
	sup      *Data
	cache    *Cache
	options  Options
	// skeleton is the image to which a split file belongs; nil if this is an image itself.
	skeleton *Data
	// effort bounds the processor time, shared with split files; nil means no limit. exceeded is set when the error of
	// an exceeded effort goes to Options.Report, so that it goes there only once.
	effort   *budget.Effort
	exceeded atomic.Bool

	packageOnce sync.Once
	dwp         *dwp
	packageErr  error

	splitMu    sync.Mutex
	splitFiles map[SplitFile]splitFile

	early early

	once   sync.Once
	loaded atomic.Bool
	units  []unit
	index  index
	err    error
}

// sections are the sections with debugging information. A missing section has the size 0.
type sections struct {
	info, abbrev, str, lineStr, strOffsets, addr, line, ranges, rnglists, aranges section
}

// each calls the callback f for every section, with its number and its name.
func (s *sections) each(f func(i uint64, s *section, name string)) {
	for i, p := range []struct {
		to   *section
		name string
	}{
		{&s.info, ".debug_info"}, {&s.abbrev, ".debug_abbrev"}, {&s.str, ".debug_str"}, {&s.lineStr, ".debug_line_str"},
		{&s.strOffsets, ".debug_str_offsets"}, {&s.addr, ".debug_addr"}, {&s.line, ".debug_line"},
		{&s.ranges, ".debug_ranges"}, {&s.rnglists, ".debug_rnglists"}, {&s.aranges, ".debug_aranges"},
	} {
		f(uint64(i), p.to, p.name)
	}
}

// Options are the other inputs besides the image; the zero value is the default.
type Options struct {
	// Supplement is the file into which dwz has moved data that several files share; nil: none.
	Supplement *Data
	// Cache keeps decoded units; nil means a new Cache with the default budget.
	Cache *Cache
	// Spill creates a file for the content of a large compressed section. If it is nil, the cache keeps such content
	// in memory.
	Spill func() (SpillFile, error)
	// Report receives, once, the errors from listing the units, and once the error of an exceeded budget; nil discards
	// them.
	Report func(error)
	// Split opens the split file of a unit, when the unit's entries are first needed. The image must stay readable. The
	// unit is found in the file by its id. nil means that there are no split files.
	Split func(SplitFile) (*elfimage.Image, error)
	// Package opens the package of all split files (.dwp). The package is tried before single files; nil means that
	// there is none.
	Package func() (*elfimage.Image, error)
}

// New creates the debugging information of an image, which must stay readable. It reads only section headers. The error
// is ErrNone, or the image's error.
func New(m *elfimage.Image, o Options) (*Data, error) {
	d := &Data{name: m.Name(), sup: o.Supplement, cache: o.Cache, options: o, effort: budget.NewEffort()}
	if d.cache == nil {
		d.cache = NewCache(0)
	}
	if err := d.findSections(m, ""); err != nil {
		return nil, err
	}
	return d, nil
}

// findSections finds the sections with debugging information whose names end in suffix. The error is ErrNone if
// .debug_info or .debug_abbrev is missing.
func (d *Data) findSections(m *elfimage.Image, suffix string) error {
	var err error
	d.sections.each(func(i uint64, s *section, name string) {
		name += suffix
		s.name, s.big = name, m.Order().Uint16([]byte{1, 0}) != 1
		size, r, e := m.SectionReader(name)
		switch {
		case errors.Is(e, elfimage.ErrNoSection):
			return
		case e != nil:
			err = errors.Join(err, e)
			return
		}
		s.size, s.r = size, r
		credit := int64(min(size, math.MaxInt64/2))
		if r == nil {
			if _, e := m.Expand(name); e != nil { // it cannot have the size that it declares
				credit = 0
			}
			s.expand = func() ([]byte, error) { return d.expand(m, i, name, size) }
			if d.options.Spill != nil && size >= minSpill {
				s.spill = func() (*spilled, error) { return spill(m, name, d.options.Spill) }
			}
		}
		d.effort.Credit(credit)
	})
	if err != nil {
		return fmt.Errorf("dwarf: %w", err)
	}
	if d.sections.info.size == 0 || d.sections.abbrev.size == 0 {
		return fmt.Errorf("%s: %w", m.Name(), ErrNone)
	}
	return nil
}

// expand returns the content of a compressed section. The cache keeps the content.
func (d *Data) expand(m *elfimage.Image, i uint64, name string, size uint64) ([]byte, error) {
	return cachedAs(d.cache, cacheKey{d, cachedSection, i}, func() ([]byte, int, error) {
		if err := d.charge(int64(size), name); err != nil {
			return nil, 0, err
		}
		data, _, err := m.Section(name)
		return data, cap(data), err
	})
}

// Load lists the units and the addresses that they cover. Without Load, the first look-up does this. The error reports
// unreadable parts. All other parts can be used.
func (d *Data) Load() error {
	d.once.Do(func() {
		d.err = d.load()
		d.loaded.Store(true)
		if d.err != nil && d.options.Report != nil {
			d.options.Report(d.err)
		}
	})
	return d.err
}

// Frames returns the calls at an address, innermost first. The last Frame is the function itself, unless only the line
// is known. If the information does not cover the address, Frames returns no frames. An error reports unreadable parts.
// Frames may then still return frames that lack these parts.
func (d *Data) Frames(addr uint64) ([]Frame, error) {
	if d.sections.info.spill != nil && !d.loaded.Load() {
		if frames, err := d.earlyFrames(addr); len(frames) > 0 {
			return frames, err
		}
	}
	err := d.Load()
	for _, i := range d.index.find(addr) {
		frames, e := d.unitFrames(&d.units[i], addr)
		if len(frames) > 0 {
			return frames, e
		}
		err = errors.Join(err, e)
	}
	return nil, err
}

// unitFrames returns the frames at an address from one unit.
func (d *Data) unitFrames(u *unit, addr uint64) ([]Frame, error) {
	owner, entries, err := d.entries(u)
	var calls []call
	if err == nil {
		calls, err = owner.calls(entries, addr)
	}
	file, line, e := d.line(u, addr)
	err = errors.Join(err, e)
	if len(calls) == 0 {
		if line == 0 {
			return nil, err
		}
		return []Frame{{File: file, Line: line}}, err
	}
	frames := make([]Frame, len(calls))
	for i := range calls {
		c := &calls[len(calls)-1-i] // calls are outermost first
		f := &frames[i]
		*f = Frame{Entry: c.entry, Start: c.start, File: file, Line: line, Inlined: i < len(calls)-1}
		f.Function, e = owner.functionName(entries, c.offset)
		err = errors.Join(err, e)
		if f.Inlined {
			file, e = d.callFile(u, c)
			err = errors.Join(err, e)
			line = int(c.line)
		}
		if f.File == "" || f.Line == 0 {
			f.File, f.Line = "", 0
		}
	}
	return frames, err
}
