package cfi

import (
	"cmp"
	"errors"
	"slices"
	"sort"
	"sync"
)

const (
	// maxIndex bounds the FDEs of an index, 16 bytes each. The largest libraries have a few hundred thousand.
	maxIndex = 4 << 20
	// maxOverlap limits the number of FDEs that one look-up tries. It tries more than one, because the last FDE that
	// starts before the address may end before it, too.
	maxOverlap = 8
)

// index lists a section's FDEs by start address. Look-ups use it if the section has no search table. The first look-up
// builds it.
type index struct {
	once    sync.Once
	entries []indexEntry
	err     error // why FDEs may be missing in entries
}

type indexEntry struct{ start, off uint64 }

// findIndexed looks an address up in a section's index. If no FDE covers the address, the boolean result is false, and
// the error is the field err of the index.
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

// FDEs yields every well-formed FDE of .eh_frame, then of .debug_frame, each in the order of the section.
func (t *Table) FDEs(yield func(FDE) bool) {
	stopped := false
	for s := range sectionCount {
		if stopped {
			return
		}
		_ = t.walk(s, func(f FDE) bool { // the FDEs after a malformed entry are still yielded
			stopped = !yield(f)
			return !stopped
		})
	}
}

// walk yields the FDEs of a section. It skips malformed entries with a valid length, and returns the first of their
// errors at the end. An invalid length ends the walk with an error.
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
			// The FDE is left over from a function that the linker has removed. The other FDEs may still be right.
		case err != nil:
			bad = cmp.Or(bad, err)
		case !yield(f):
			return bad
		}
	}
	return bad
}
