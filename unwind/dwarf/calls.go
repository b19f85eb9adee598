package dwarf

import (
	"errors"
	"fmt"
)

// call describes the function at an address, or a call that the compiler inlined at this address.
type call struct {
	// offset is the offset of the call's debugging information entry.
	offset       uint64
	entry, start uint64
	// file and line are the place of the call in the source; 0 for the function itself.
	file, line uint64
}

// maxCalls bounds how deep inlined calls nest.
const maxCalls = 256

// calls returns the function at an address and the calls inlined at this address, outermost first. The result is empty
// if no function covers the address.
func (d *Data) calls(u *unit, addr uint64) ([]call, error) {
	functions, err := d.functions(u)
	if err != nil {
		return nil, err
	}
	f, ok := functions.find(addr)
	if !ok {
		return nil, nil
	}
	w, err := d.walk(u, u.off+uint64(f.off), u.off+uint64(f.end))
	if err != nil {
		return nil, err
	}
	s := callSearch{d: d, w: &w, addr: addr, budget: maxRangeBytes}
	s.run()
	return s.calls, errors.Join(s.err, w.charge(int64(maxRangeBytes-s.budget)))
}

// callSearch searches a function's entry and its children for the inlined calls that contain an address.
type callSearch struct {
	d     *Data
	w     *walker
	addr  uint64
	calls []call
	spans []span
	// The field depth is the nesting depth of the next entry. The field open is the only depth at which entries are
	// examined: there, all parents of an entry contain the address, or are lexical blocks without addresses. The field
	// inner is the depth of the children of the innermost call in calls.
	depth, open, inner int
	budget             int
	err                error
}

func (s *callSearch) run() {
	for s.w.next() && s.depth <= maxDepth && len(s.calls) < maxCalls {
		e := &s.w.e
		if e.null {
			s.depth--
			if s.depth < s.inner && len(s.calls) > 1 || s.depth <= 0 {
				return // the innermost call is known, or the function has ended
			}
			s.open = min(s.open, s.depth)
			continue
		}
		if s.depth == s.open && s.enter(e) {
			if !e.children {
				return
			}
			s.depth++
			s.open = s.depth
			continue
		}
		if s.depth == 0 {
			return
		}
		s.pass(e)
	}
}

// pass skips an entry that does not contain the address. If the entry has a sibling attribute, pass also skips the
// entry's children.
func (s *callSearch) pass(e *entry) {
	if !e.children {
		return
	}
	if e.sibling.ok() {
		if _, off, err := s.d.reference(s.w.unit, e.sibling); err == nil && off > s.w.c.offset() {
			s.w.c.seek(off)
			return
		}
	}
	s.depth++
}

// enter reports whether an entry contains the address. If so, it appends the function or the inlined call to the field
// calls.
func (s *callSearch) enter(e *entry) bool {
	switch {
	case s.depth == 0:
	case e.tag == tagInlinedSubroutine:
	case e.tag == tagLexicalBlock && e.children:
		if !e.ranges.ok() && !e.low.ok() {
			return true
		}
	default:
		return false
	}
	spans, err := s.d.spans(s.spans[:0], s.w.unit, e.low, e.high, e.ranges, &s.budget)
	s.spans = spans
	if err != nil {
		s.err = errors.Join(s.err, fmt.Errorf("entry at %#x: %w", e.off, err))
	}
	for _, p := range spans {
		if !p.holds(s.addr) {
			continue
		}
		if e.tag != tagLexicalBlock {
			s.calls = append(s.calls, call{
				offset: e.off, start: p.low, entry: s.d.entryPC(s.w.unit, e, spans),
				file: e.callFile.u, line: e.callLine.u,
			})
			s.inner = s.depth + 1
		}
		return true
	}
	return false
}

// entryPC returns the address where a function or an inlined call begins: DW_AT_entry_pc, or the start of the first
// range (§2.18).
func (d *Data) entryPC(u *unit, e *entry, spans []span) uint64 {
	if e.entryPC.isAddress() {
		if addr, err := d.address(u, e.entryPC); err == nil {
			return addr
		}
	}
	return spans[0].low
}
