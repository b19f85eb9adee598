package store

import (
	"cmp"
	"slices"
)

// A Root is the process at the beginning of a chain of waits: other sessions wait for it, directly or through sessions between, and
// it waits for no session of the sweep.
type Root struct {
	// PID is the process, or the leader if parallel workers belong to it. 0 means a prepared transaction, which has no process.
	PID int32
	// Deadlock means that there is no such process: the sessions wait for each other in a circle. PID is 0 then.
	Deadlock bool
}

// Roots has the roots of all sessions that waited for others in a sweep.
type Roots struct {
	rows  map[int32]*Row // sessions of the sweep, by process id
	roots map[int32][]Root
}

// NewRoots follows the waits of a sweep's sessions. A parallel worker and its leader count as one process here: the leader waits
// for what its worker waits for.
func NewRoots(s *SpanSweep) *Roots {
	r := &Roots{rows: map[int32]*Row{}, roots: map[int32][]Root{}}
	waits := false
	for i := range s.Rows {
		if row := &s.Rows[i]; !row.Ended {
			r.rows[row.PID], waits = row, waits || len(row.BlockedBy) > 0
		}
	}
	if !waits {
		return r
	}
	waiters := map[int32][]int32{} // by the process for which they wait directly
	waiting := map[int32]bool{}
	for _, row := range r.rows {
		for i := range row.BlockedBy {
			blocker := r.leader(row.BlockedBy[i].PID)
			waiters[blocker] = append(waiters[blocker], r.leader(row.PID))
			waiting[r.leader(row.PID)] = true
		}
	}
	for pid := range waiters {
		if !waiting[pid] {
			r.mark(pid, waiters)
		}
	}
	for pid := range waiting {
		if r.roots[pid] == nil {
			r.roots[pid] = []Root{{Deadlock: true}}
		}
		slices.SortFunc(r.roots[pid], func(a, b Root) int { return cmp.Compare(a.PID, b.PID) })
	}
	return r
}

// leader returns the leader of a parallel worker, and the process id itself for other processes.
func (r *Roots) leader(pid int32) int32 {
	if row := r.rows[pid]; row != nil && row.Leader != 0 {
		return row.Leader
	}
	return pid
}

// mark adds a root to all processes that wait for it, directly or not.
func (r *Roots) mark(root int32, waiters map[int32][]int32) {
	seen := map[int32]bool{root: true}
	for next := []int32{root}; len(next) > 0; {
		pid := next[len(next)-1]
		next = next[:len(next)-1]
		for _, waiter := range waiters[pid] {
			if !seen[waiter] {
				seen[waiter] = true
				r.roots[waiter] = append(r.roots[waiter], Root{PID: root})
				next = append(next, waiter)
			}
		}
	}
}

// Of returns the roots for which a row's session waits, in the order of process ids; nil: it waits for no session.
func (r *Roots) Of(row *Row) []Root {
	if len(row.BlockedBy) == 0 {
		return nil
	}
	return r.roots[r.leader(row.PID)]
}

// Row returns the session with a process id in the sweep; nil: there is none.
func (r *Roots) Row(pid int32) *Row { return r.rows[pid] }
