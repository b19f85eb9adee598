package limits

import (
	"sync"
	"time"
)

// Share divides a bound: a quarter is reserved for superusers, and each other role gets at most half.
func Share(total int64) Shares {
	return Shares{Total: total, Ordinary: total - total/4, Role: (total + 1) / 2}
}

// MemoryTrees returns the gate for readings of memory contexts.
func MemoryTrees() *Gate {
	return NewGate(Shares{Total: memoryTrees, Ordinary: memoryTrees - 1, Role: 1})
}

// One returns a gate that lets one user pass at a time.
func One() *Gate { return NewGate(Shares{Total: 1, Ordinary: 1, Role: 1}) }

// maxCounted bounds the roles that are counted separately. The others are counted together.
const maxCounted = 1024

// Lines bounds the lines of the log about each role. It is safe for concurrent use.
type Lines struct {
	limiter *Limiter

	mu      sync.Mutex
	leftOut map[uint32]int
}

// NewLines makes a Lines.
func NewLines() *Lines {
	return &Lines{
		limiter: NewLimiter(Rate{PerSecond: linesPerSecond, Burst: lineBurst}), leftOut: make(map[uint32]int),
	}
}

// Take reports whether a line about the role may be written, and how many lines were left out since the last one.
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

// Repeats report what a role does again and again: at once the first time, then once a second how often it happened.
// The zero value is ready.
type Repeats struct {
	mu     sync.Mutex
	byRole map[uint32]*repeated
}

type repeated struct {
	times  int
	since  time.Time
	report func(times int, since time.Time) // of the last time
}

// Add counts an event of the role. It calls report now, or within a second unless another event of the role follows.
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

// flush reports what has happened in the last second.
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
