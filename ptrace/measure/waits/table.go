package waits

import (
	"cmp"
	"slices"
)

// table has the figures of each event, by the event's number.
type table map[uint32]*Event

func (t table) at(id uint32) *Event {
	e := t[id]
	if e == nil {
		e = &Event{ID: id}
		t[id] = e
	}
	return e
}

func (t table) addAll(events []Event) {
	for i := range events {
		t.at(events[i].ID).add(&events[i])
	}
}

// list returns copies of the figures, sorted by event.
func (t table) list() []Event {
	events := make([]Event, 0, len(t))
	for _, e := range t {
		events = append(events, *e)
	}
	slices.SortFunc(events, func(a, b Event) int { return cmp.Compare(a.ID, b.ID) })
	return events
}

// keeper keeps the figures of certain processes after their end.
type keeper struct {
	pids  []int
	most  int // number of processes to keep besides pids
	ended []Process
}

// add keeps the figures of an ended process; false if they are not wanted, or a process with the same id is kept.
func (k *keeper) add(p Process) bool {
	wanted := slices.Contains(k.pids, p.PID) || len(k.ended) < k.most
	again := slices.ContainsFunc(k.ended, func(other Process) bool { return other.PID == p.PID })
	if !wanted || again {
		return false
	}
	k.ended = append(k.ended, p)
	return true
}

// addTo adds the kept processes to processes, and sorts all of them by slot.
func (k *keeper) addTo(processes []Process) []Process {
	processes = append(processes, k.ended...)
	slices.SortStableFunc(processes, func(a, b Process) int { return cmp.Compare(a.Slot, b.Slot) })
	return processes
}
