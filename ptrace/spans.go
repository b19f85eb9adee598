package ptrace

import "pg_stat_backtrace/ptrace/snapshot"

// stackAround returns the limits of the stack at the stack pointer sp: from the red zone below sp to the end of the
// mapping. ok is false if sp is in no readable mapping, and in no memory into which the main stack can have grown.
//
//go:nosplit
//go:norace
func (s *session) stackAround(sp uint64) (start, end uint64, ok bool) {
	low, high := 0, len(s.spans)
	for low < high {
		if middle := int(uint(low+high) >> 1); s.spans[middle].End > sp {
			high = middle
		} else {
			low = middle + 1
		}
	}
	if low == len(s.spans) {
		return 0, 0, false
	}
	found := &s.spans[low]
	start = sp - min(s.redZone, sp)
	switch {
	case found.Start <= sp && !found.Grows:
		start = max(start, found.Start)
	case found.Start <= sp:
	case !found.Grows || found.Start-sp > snapshot.MaxGrowth:
		return 0, 0, false
	}
	return start, found.End, true
}

// readable reports whether the address is in a readable mapping. With Options.MapsSnapshot, it returns true for any address
// between the first and the last mapping, because the heap may have grown since those mappings were read.
//
//go:nosplit
//go:norace
func (s *session) readable(address uint64) bool {
	low, high := 0, len(s.spans)
	if high == 0 || address < s.spans[0].Start || address >= s.spans[high-1].End {
		return false
	}
	if s.call.options.MapsSnapshot != nil {
		return true
	}
	for low < high {
		if middle := int(uint(low+high) >> 1); s.spans[middle].End > address {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low < len(s.spans) && s.spans[low].Start <= address
}

// together reports whether two addresses lie in the same mapping.
//
//go:nosplit
//go:norace
func (s *session) together(a, b uint64) bool {
	_, end, ok := s.stackAround(a)
	_, other, both := s.stackAround(b)
	return ok && both && end == other
}
