package ptrace

import "pg_stat_backtrace/ptrace/procfs"

// MapsSnapshot is the data of a process that does not change with every capture: its mappings, and the properties
// that identify the process. It is immutable.
type MapsSnapshot struct {
	maps  []procfs.Mapping
	spans []span
	stat  procfs.Stat
}

// WithMaps returns the snapshot with another copy of the same mappings, so that many snapshots can share their
// memory.
func (l *MapsSnapshot) WithMaps(maps []procfs.Mapping) *MapsSnapshot {
	return &MapsSnapshot{maps: maps, spans: l.spans, stat: l.stat}
}

// of reports whether the snapshot belongs to a process and to the program that it executes now.
func (l *MapsSnapshot) of(now *procfs.Stat) bool {
	return l != nil && l.stat.PID == now.PID && l.stat.StartTime == now.StartTime && l.stat.StartCode == now.StartCode &&
		l.stat.StackStart == now.StackStart
}

// span is the part of a readable mapping's data that is needed to find a stack.
type span struct {
	start, end uint64
	grows      bool // the main thread's stack, which the kernel extends downwards on access
}

// maxGrowth is the distance by which a stack can have grown below its known start since the maps were read.
const maxGrowth = 1 << 30

// stackPath is the name of the main thread's stack in /proc/PID/maps.
const stackPath = "[stack]"

// appendSpans appends the readable mappings in address order. It joins adjacent pieces of the main stack, which are
// separate if a part has other rights.
func appendSpans(spans []span, maps []procfs.Mapping) []span {
	for i := range maps {
		m := &maps[i]
		if m.Perms&procfs.Read == 0 {
			continue
		}
		s := span{m.Start, m.End, m.Path == stackPath}
		if last := len(spans) - 1; last >= 0 && s.grows && spans[last].grows && spans[last].end == s.start {
			spans[last].end = s.end
			continue
		}
		spans = append(spans, s)
	}
	return spans
}

// stackAround returns the part of memory that is the stack at a stack pointer sp.
//
//go:nosplit
//go:norace
func (s *session) stackAround(sp uint64) (start, end uint64, ok bool) {
	low, high := 0, len(s.spans)
	for low < high {
		if middle := int(uint(low+high) >> 1); s.spans[middle].end > sp {
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
	case found.start <= sp && !found.grows:
		start = max(start, found.start)
	case found.start <= sp:
	case !found.grows || found.start-sp > maxGrowth:
		return 0, 0, false
	}
	return start, found.end, true
}

// StartTime is the start time of the process, as in procfs.Stat.StartTime.
func (l *MapsSnapshot) StartTime() uint64 { return l.stat.StartTime }
