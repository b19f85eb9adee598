package cfi

import (
	"fmt"
	"math/bits"
	"sync/atomic"
)

// smallRow is the number of rules that a cached row stores without a second allocation.
const smallRow = 8

// cachedRow is a row for the cache. It is immutable once it is in the cache.
type cachedRow struct {
	row   Row
	small [smallRow]Rule
}

// rowCache is a direct-mapped cache of rows by address. A new row replaces the old row in its slot, so the size is
// bounded. Readers and writers take no lock.
type rowCache struct {
	slots []atomic.Pointer[cachedRow]
	shift uint
}

// Limits of a table's rowCache, in slots. A slot is a pointer. A cached row takes 256 bytes.
const (
	minCachedRows = 64
	maxCachedRows = 4096
	rowsPerFDE    = 4 // FDEs for each slot
)

// size computes the number of slots from the number of FDEs.
func (c *rowCache) size(fdes uint64) {
	n := min(max(fdes/rowsPerFDE, minCachedRows), maxCachedRows)
	order := bits.Len64(n - 1)
	c.slots = make([]atomic.Pointer[cachedRow], 1<<order)
	c.shift = uint(64 - order)
}

// slot returns the slot for an address (Fibonacci hashing).
func (c *rowCache) slot(pc uint64) *atomic.Pointer[cachedRow] {
	return &c.slots[pc*0x9e37_79b9_7f4a_7c15>>c.shift]
}

// Row returns the row for a link-time address. The errors are the errors of Find, and ErrBadCFI if the instructions
// are malformed.
func (t *Table) Row(pc uint64) (Row, error) {
	slot := t.rows.slot(pc)
	if c := slot.Load(); c != nil && pc-c.row.Start < c.row.End-c.row.Start {
		return c.row, nil
	}
	c, err := t.makeRow(pc)
	if err != nil {
		return Row{}, err
	}
	slot.Store(c)
	return c.row, nil
}

// makeRow computes the row for an address. Its errors are the errors of Row.
func (t *Table) makeRow(pc uint64) (*cachedRow, error) {
	f, c, err := t.find(pc)
	if err != nil {
		return nil, err
	}
	m, _ := machines.Get().(*machine)
	defer m.release()
	start, end, err := m.run(t, &f, c, pc)
	if err == nil && m.now.cfa.rule().Kind == RuleUnspecified {
		err = badAt(f.section, f.off, "no rule for the CFA")
	}
	if err != nil {
		return nil, fmt.Errorf("address %#x: %w", pc, err)
	}
	made := &cachedRow{row: Row{
		Start: start, End: end, FDEStart: f.Start, FDEEnd: f.End, CFA: m.now.cfa.rule(),
		table: t, section: f.section, ra: uint8(c.ra),
		Signal: f.Signal, RASigned: m.now.signed,
	}}
	made.pack(&m.now)
	return made, nil
}

// pack stores the rules in the state s in the cached row.
func (c *cachedRow) pack(s *state) {
	c.row.rules = c.small[:0]
	for column := range s.columns {
		c.row.rules = append(c.row.rules, s.rules[column])
	}
	ra := uint64(c.row.ra)
	c.row.RAUndefined = s.set.has(ra) && s.rules[ra].Kind == RuleUndefined
}
