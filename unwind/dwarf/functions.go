package dwarf

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
)

// functions are the functions of one unit that have code.
type functions struct {
	all []function // sorted by low address
	// reach has, for each function, the highest end address of this function and of the functions before it in the list
	// all.
	reach []uint64
}

// function is one piece of a function's code. The function's entry, with its children, is at [off, end) of .debug_info,
// relative to the unit's start.
type function struct {
	span
	off, end uint32
}

// maxFunctions bounds the pieces of code of one unit.
const maxFunctions = 1 << 20

// functions returns the functions of a unit.
func (d *Data) functions(u *unit) (*functions, error) {
	return cachedAs(d.cache, cacheKey{d, cachedFunctions, u.off}, func() (*functions, int, error) {
		f, err := d.readFunctions(u)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: unit at %#x: %w", d.name, u.off, err)
		}
		return f, 32 * len(f.all), nil
	})
}

// readFunctions walks through the whole unit, because namespaces, types and other functions may contain functions.
func (d *Data) readFunctions(u *unit) (*functions, error) {
	if u.end-u.off > maxPiece {
		return nil, fmt.Errorf("%w: unit of %#x bytes", ErrTooLarge, u.end-u.off)
	}
	w, err := d.walk(u, u.first, u.end)
	if err != nil {
		return nil, err
	}
	f := &functions{}
	var open []opened
	budget := maxRangeBytes
	var spans []span
	for depth := 0; w.next(); {
		e := &w.e
		if e.null {
			depth--
			for len(open) > 0 && open[len(open)-1].depth >= depth {
				f.close(open[len(open)-1], w.c.offset()-u.off)
				open = open[:len(open)-1]
			}
			if depth <= 0 {
				break
			}
			continue
		}
		if e.tag == tagSubprogram {
			// If the list of ranges is damaged, only this function is missing.
			spans, _ = d.spans(spans[:0], u, e.low, e.high, e.ranges, &budget)
			first := len(f.all)
			f.add(spans, e.off-u.off, w.c.offset()-u.off)
			if len(f.all) > maxFunctions {
				return nil, fmt.Errorf("%w: more than %d functions", ErrTooLarge, maxFunctions)
			}
			if e.children && len(spans) > 0 {
				open = append(open, opened{depth, first, len(f.all)})
			}
		}
		if e.children {
			if depth++; depth > maxDepth {
				return nil, fmt.Errorf("%w: entries nest too deep", ErrMalformed)
			}
		}
	}
	if err := w.charge(int64(maxRangeBytes - budget)); err != nil {
		return nil, err
	}
	if w.c.bad && len(f.all) == 0 {
		return nil, fmt.Errorf("%w: entry at %#x", ErrMalformed, w.e.off)
	}
	f.sort()
	return f, nil
}

// opened is a function whose children are being read. Its pieces are all[first:last].
type opened struct {
	depth       int
	first, last int // indexes in functions.all
}

// add appends the pieces of a function. off and end limit the function's entry.
func (f *functions) add(spans []span, off, end uint64) {
	for _, s := range spans {
		f.all = append(f.all, function{s, uint32(off), uint32(end)})
	}
}

// close sets the end of a function's entry, after its last child.
func (f *functions) close(o opened, end uint64) {
	for i := o.first; i < o.last; i++ {
		f.all[i].end = uint32(end)
	}
}

func (f *functions) sort() {
	f.all = slices.Clip(f.all)
	slices.SortFunc(f.all, func(a, b function) int {
		return cmp.Or(cmp.Compare(a.low, b.low), cmp.Compare(b.high, a.high), cmp.Compare(b.off, a.off))
	})
	f.reach = make([]uint64, len(f.all))
	reach := uint64(0)
	for i := range f.all {
		reach = max(reach, f.all[i].high)
		f.reach[i] = reach
	}
}

// find returns the function that contains an address. If several functions contain it, find returns the smallest of
// them, and among equally small functions the first in the file.
func (f *functions) find(addr uint64) (function, bool) {
	i := sort.Search(len(f.all), func(i int) bool { return f.all[i].low > addr }) - 1
	var best function
	found := false
	for n := 0; i >= 0 && n < maxBack && f.reach[i] > addr; i, n = i-1, n+1 {
		g := &f.all[i]
		if g.holds(addr) && (!found || g.high-g.low < best.high-best.low) {
			best, found = *g, true
		}
	}
	return best, found
}
