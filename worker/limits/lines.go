package limits

import (
	"sync"
	"time"
)

// Share returns Shares of a total: a quarter is reserved for superusers, and each other role gets at most half of the
// total.
func Share(total int64) Shares {
	return Shares{Total: total, Ordinary: total - total/4, Role: (total + 1) / 2}
}

// MemoryTrees returns the gate for the processes whose memory contexts are read: one for each role, and one place is
// reserved for superusers.
func MemoryTrees() *Gate {
	return NewGate(Shares{Total: memoryTrees, Ordinary: memoryTrees - 1, Role: 1})
}

// One returns a gate that grants an amount of 1 to one user at a time.
func One() *Gate { return NewGate(Shares{Total: 1, Ordinary: 1, Role: 1}) }

// maxCounted bounds the roles that are counted separately. All other roles are counted together, as role 0.
const maxCounted = 1024

// Lines bounds the number of lines in the log about each role. It is safe for concurrent use.
type Lines struct {
	limiter *Limiter

	mu      sync.Mutex
	leftOut map[uint32]int
}

// NewLines makes a Lines with the default rate.
func NewLines() *Lines {
	return &Lines{
		limiter: NewLimiter(Rate{PerSecond: linesPerSecond, Burst: lineBurst}), leftOut: make(map[uint32]int),
	}
}

// Take reports whether a line about the role may be written now. If so, leftOut is the number of lines about the role that
// were left out since its previous line.
func (l *Lines) Take(role uint32) (leftOut int, ok bool) {
	ok = l.limiter.Take(role) == nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok {
		leftOut = l.leftOut[role] + l.leftOut[0]
		delete(l.leftOut, role)
		delete(l.leftOut, 0)
		return leftOut, true
	}
	if len(l.leftOut) >= maxCounted && l.leftOut[role] == 0 {
		role = 0 // no role has this oid
	}
	l.leftOut[role]++
	return 0, false
}

// Repeats reports events that a role causes again and again: the first one at once, then once a second the number of events
// since the previous report. The zero value is ready for use.
type Repeats struct {
	mu     sync.Mutex
	byRole map[uint32]*repeated
}

type repeated struct {
	times  int
	since  time.Time
	report func(times int, since time.Time) // the function passed by the latest Add
}

// Add counts an event of the role. It calls report at once if the role had no event in the last second. Otherwise it waits:
// within a second it calls the function report of the latest Add once, with the number of events since the previous report.
func (r *Repeats) Add(role uint32, report func(times int, since time.Time)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.byRole == nil {
		r.byRole = make(map[uint32]*repeated)
	}
	if len(r.byRole) >= maxCounted && r.byRole[role] == nil {
		role = 0 // no role has this oid
	}
	if e := r.byRole[role]; e != nil {
		if e.times == 0 {
			e.since = now
		}
		e.times++
		e.report = report
		return
	}
	r.byRole[role] = &repeated{}
	time.AfterFunc(time.Second, func() { r.flush(role) })
	report(1, now)
}

// flush reports the role's events since the previous report. If there were none, it forgets the role.
func (r *Repeats) flush(role uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byRole[role]
	if e.times == 0 {
		delete(r.byRole, role)
		return
	}
	e.report(e.times, e.since)
	e.times, e.report = 0, nil
	time.AfterFunc(time.Second, func() { r.flush(role) })
}
