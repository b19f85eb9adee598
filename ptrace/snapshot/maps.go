package snapshot

import (
	"pg_stat_backtrace/ptrace/process"
	"slices"
)

// MapsSnapshot has the data of a process that later captures can use again: its mappings, and the properties that
// identify the process. It is immutable.
type MapsSnapshot struct {
	maps  []process.Mapping
	spans []Span
	stat  process.Stat
}

// NewMapsSnapshot makes a snapshot of a process's mappings, in address order, and of its stat file. The caller must
// not change the mappings any more.
func NewMapsSnapshot(maps []process.Mapping, stat *process.Stat) *MapsSnapshot {
	return &MapsSnapshot{maps: maps, spans: appendSpans(nil, maps), stat: *stat}
}

// WithMaps returns a copy of the snapshot that uses the slice maps, which must have equal mappings. So many snapshots can
// share the memory of one slice.
func (l *MapsSnapshot) WithMaps(maps []process.Mapping) *MapsSnapshot {
	return &MapsSnapshot{maps: maps, spans: l.spans, stat: l.stat}
}

// Describes reports whether the snapshot is of the process whose present stat file is now, and of the program that the process
// executes now. It returns false for nil.
func (l *MapsSnapshot) Describes(now *process.Stat) bool {
	return l != nil && l.stat.PID == now.PID && l.stat.StartTime == now.StartTime && l.stat.StartCode == now.StartCode &&
		l.stat.StackStart == now.StackStart
}

// Span is a readable mapping, with only the data that is needed to find a stack.
type Span struct {
	Start, End uint64
	Grows      bool // it is the main thread's stack, which the kernel extends downwards on access
}

// MaxGrowth is the largest distance by which the main stack is assumed to have grown since the mappings were read.
const MaxGrowth = 1 << 30

// StackPath is the name of the main thread's stack in /proc/PID/maps.
const StackPath = "[stack]"

// appendSpans appends the readable mappings in address order. It joins adjacent mappings of the main stack, which are
// separate if their rights differ.
func appendSpans(spans []Span, maps []process.Mapping) []Span {
	for i := range maps {
		m := &maps[i]
		if m.Perms&process.Read == 0 {
			continue
		}
		s := Span{m.Start, m.End, m.Path == StackPath}
		if last := len(spans) - 1; last >= 0 && s.Grows && spans[last].Grows && spans[last].End == s.Start {
			spans[last].End = s.End
			continue
		}
		spans = append(spans, s)
	}
	return spans
}

// Maps returns the mappings, in address order. They must not be changed.
func (l *MapsSnapshot) Maps() []process.Mapping { return l.maps }

// Spans returns the readable mappings. They must not be changed.
func (l *MapsSnapshot) Spans() []Span { return l.spans }

// Stat returns the process's stat file, as it was when the mappings were read. It must not be changed.
func (l *MapsSnapshot) Stat() *process.Stat { return &l.stat }

// StartTime is the start time of the process, as in process.Stat.StartTime.
func (l *MapsSnapshot) StartTime() uint64 { return l.stat.StartTime }

// StackIn returns the limits of the stack at the stack pointer sp: from redZone bytes below sp to the end of the
// mapping. ok is false if sp is in no readable mapping, and in no memory into which the main stack can have grown.
func StackIn(maps []process.Mapping, sp, redZone uint64) (start, end uint64, ok bool) {
	i, _ := slices.BinarySearchFunc(maps, sp, func(m process.Mapping, sp uint64) int {
		if m.End <= sp {
			return -1
		}
		return 1
	})
	if i == len(maps) || maps[i].Perms&process.Read == 0 {
		return 0, 0, false
	}
	m := &maps[i]
	grows := m.Path == StackPath
	if sp < m.Start && (!grows || m.Start-sp > MaxGrowth) {
		return 0, 0, false
	}
	start, end = sp-min(redZone, sp), m.End
	if !grows {
		start = max(start, m.Start)
	}
	// A part of the main stack with other rights is a separate mapping.
	for _, next := range maps[i+1:] {
		if !grows || next.Start != end || next.Path != m.Path || next.Perms&process.Read == 0 {
			break
		}
		end = next.End
	}
	return start, end, true
}

// MapsBetween returns the mappings that a process can have had at a moment between two reads of its mappings (before and
// after). These are the mappings in after, because code loaded between the reads may have been running. Code that replaced
// other code is left out. MapsBetween changes the elements of after.
func MapsBetween(before, after []process.Mapping) []process.Mapping {
	i := 0
	return slices.DeleteFunc(after, func(m process.Mapping) bool {
		for i < len(before) && before[i].End <= m.Start {
			i++
		}
		for j := i; m.Perms&process.Exec != 0 && j < len(before) && before[j].Start < m.End; j++ {
			if before[j].Perms&process.Exec != 0 && before[j] != m {
				return true
			}
		}
		return false
	})
}
