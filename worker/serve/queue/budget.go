package queue

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// budget limits the number of sessions of all queues together. If there are more databases than sessions, the databases take
// turns: a session that has run for its time (see stay) ends, and the database that has waited longest gets a session.
type budget struct {
	// While other databases wait, a session may run for the time stay multiplied by the largest number of sessions. Its time
	// is shorter if resize lowers this number. So the server gets at most one new session in each time stay, however many
	// databases there are.
	stay time.Duration

	mu      sync.Mutex
	limit   int
	leases  []*lease // the oldest first
	waiting []*claim // in the order of the field due, the earliest first
	timer   *time.Timer
}

// lease is the right of a database to have a session.
type lease struct {
	since  time.Time
	asked  time.Time // when the session was asked to leave; written before leave is set
	leave  atomic.Bool
	signal chan struct{} // wakes the session
}

// urgentTurns says how far an urgent claim is moved forward in the line: as if it had been made this number of the times stay
// earlier.
const urgentTurns = 10

// claim is a database's place in the line for a lease. A database makes a new claim when its last lease has ended.
type claim struct {
	database string
	due      time.Time // order in the line: when the claim was made, or earlier if it is urgent
	urgent   bool
	granted  chan *lease
}

// wake makes the session check for work. It does not block.
func (l *lease) wake() {
	select {
	case l.signal <- struct{}{}:
	default:
	}
}

// acquire makes a claim and waits for its lease. An urgent claim goes before claims that have not waited for long; see
// urgentTurns.
func (b *budget) acquire(ctx context.Context, database string, urgent bool) (*lease, error) {
	c := &claim{database: database, due: time.Now(), granted: make(chan *lease, 1)}
	b.mu.Lock()
	b.waiting = append(b.waiting, c)
	if urgent {
		b.hasten(c)
	}
	b.reassign()
	b.mu.Unlock()
	select {
	case l := <-c.granted:
		return l, nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	b.waiting = slices.DeleteFunc(b.waiting, func(other *claim) bool { return other == c })
	b.mu.Unlock()
	select {
	case l := <-c.granted: // granted at the same time
		b.release(l)
	default:
	}
	return nil, ctx.Err()
}

// release gives a lease back.
func (b *budget) release(l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leases = slices.DeleteFunc(b.leases, func(other *lease) bool { return other == l })
	b.reassign()
}

// promote makes the claim of a waiting database urgent, unless it is urgent already.
func (b *budget) promote(database string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range slices.Clone(b.waiting) {
		if c.database == database {
			b.hasten(c)
		}
	}
}

// hasten makes a claim urgent. It does nothing if the claim is urgent already.
func (b *budget) hasten(c *claim) {
	if c.urgent {
		return
	}
	c.urgent, c.due = true, c.due.Add(-urgentTurns*b.stay)
	slices.SortStableFunc(b.waiting, func(x, y *claim) int { return x.due.Compare(y.due) })
}

// resize sets the maximum number of sessions. If more sessions are open, resize asks the oldest of them to leave at once.
func (b *budget) resize(limit int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit = limit
	b.reassign()
}

// used returns the number of sessions that are open or being opened.
func (b *budget) used() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.leases)
}

// reassign grants free leases to the claims that wait. If there are more sessions than the limit, it asks the oldest sessions
// to end. If claims remain, it asks sessions to end whose time (see stay) is over.
func (b *budget) reassign() {
	now := time.Now()
	for len(b.waiting) > 0 && len(b.leases) < b.limit {
		l := &lease{since: now, signal: make(chan struct{}, 1)}
		b.leases = append(b.leases, l)
		b.waiting[0].granted <- l
		b.waiting = b.waiting[1:]
	}
	over := len(b.leases) - b.limit
	if over+len(b.waiting) <= 0 {
		return
	}
	leaving, next := b.leaving(now)
	defer func() { b.reassignAfter(next) }()
	for _, l := range b.leases {
		if l.leave.Load() {
			continue
		}
		left := b.stay*time.Duration(b.limit) - now.Sub(l.since)
		switch {
		case leaving >= over+len(b.waiting):
			return
		case leaving >= over && left > 0:
			next = min(next, left)
			return
		}
		l.asked = now
		l.leave.Store(true)
		l.wake()
		leaving++
	}
}

// leaving returns the number of sessions that were asked to leave less than leaveTimeout ago. A session that has not left by
// then is not counted, so that another one is asked. next is the time until the number may change.
func (b *budget) leaving(now time.Time) (n int, next time.Duration) {
	next = leaveTimeout
	for _, l := range b.leases {
		if left := leaveTimeout - now.Sub(l.asked); l.leave.Load() && left > 0 {
			n++
			next = min(next, left)
		}
	}
	return n, next
}

// reassignAfter calls reassign after a pause.
func (b *budget) reassignAfter(pause time.Duration) {
	if b.timer != nil {
		b.timer.Stop()
	}
	b.timer = time.AfterFunc(pause, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.reassign()
	})
}
