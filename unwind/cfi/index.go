package cfi

import (
	"cmp"
	"errors"
	"slices"
	"sort"
	"sync"
)

const (
	// maxIndex bounds the FDEs of an index (16 bytes each); the largest
	// libraries have a few hundred thousand.
	maxIndex = 4 << 20
	// maxOverlap bounds how many FDEs are tried that start before an address
	// without reaching it.
	maxOverlap = 8
)

// index lists a section's FDEs by start address, for sections without a search
// table. It is built once, by the first look-up.
type index struct {
	once    sync.Once
	entries []indexEntry
	err     error // why the index may be incomplete
}

type indexEntry struct{ start, off uint64 }

// findIndexed looks an address up in a section's index.
func (t *Table) findIndexed(s sectionID, pc uint64) (FDE, *cie, bool, error) {
	ix := &t.index[s]
	ix.once.Do(func() { t.buildIndex(s, ix) })
	i := sort.Search(len(ix.entries), func(i int) bool { return ix.entries[i].start > pc })
	for range maxOverlap {
		if i--; i < 0 {
			break
		}
		f, c, err := t.parseFDE(s, ix.entries[i].off)
		if err == nil && pc-f.Start < f.End-f.Start {
			return f, c, true, nil
		}
	}
	return FDE{}, nil, false, ix.err
}

func (t *Table) buildIndex(s sectionID, ix *index) {
	entries := make([]indexEntry, 0, len(t.sections[s].Data)/typicalFDE)
	ix.err = t.walk(s, func(f FDE) bool {
		entries = append(entries, indexEntry{f.Start, f.off})
		return len(entries) < maxIndex
	})
	slices.SortFunc(entries, func(a, b indexEntry) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.off, b.off))
	})
	ix.entries = slices.Clip(entries)
}

// FDEs yields every well-formed FDE, in the order of the sections, first of .eh_frame.
func (t *Table) FDEs(yield func(FDE) bool) {
	stopped := false
	for s := range sectionCount {
		if stopped {
			return
		}
		_ = t.walk(s, func(f FDE) bool { // a malformed entry yields no FDE
			stopped = !yield(f)
			return !stopped
		})
	}
}

// walk iterates over a section's entries. It skips malformed entries with a valid length, and returns their first
// error at the end. An invalid length ends the walk with an error.
func (t *Table) walk(s sectionID, yield func(FDE) bool) error {
	var bad error
	for off := uint64(0); off < uint64(len(t.sections[s].Data)); {
		e, err := t.entryAt(s, off)
		if err != nil && bad == nil {
			bad = err
		}
		if e.end == 0 {
			return bad
		}
		off = uint64(e.end)
		if err != nil || e.kind != isFDE {
			continue
		}
		f, _, err := t.fdeOf(s, &e)
		switch {
		case errors.Is(err, errEmpty) || s == debugFrame && f.Start == 0:
			// The FDE is a leftover of a function that the linker dropped. The other FDEs may still be right.
		case err != nil:
			bad = cmp.Or(bad, err)
		case !yield(f):
			return bad
		}
	}
	return bad
}
