package limits

import (
	"context"
	"sync"
)

// Who is the user of a resource. Role is the oid of the role. If Superuser is set, the user is all superusers together.
type Who struct {
	Role      uint32
	Superuser bool
}

// Shares bound the amounts of a resource that are in use at the same time. Values below 1 mean 1.
type Shares struct {
	Total    int64 // most for all users together
	Ordinary int64 // most for all roles that are not superusers together; the rest of Total is for superusers
	Role     int64 // most for one role that is not a superuser
}

// Gate grants amounts of a resource to users, within its Shares. It is safe for concurrent use.
type Gate struct {
	limits Shares

	mu       sync.Mutex
	total    int64
	ordinary int64
	used     map[Who]int64
	waiting  map[Who][]*waiter // requests of each user in the order of arrival; no list is empty
	arrivals uint64
}

// waiter is a call of Acquire that waits.
type waiter struct {
	amount int64
	number uint64        // in the order of arrival
	turn   chan struct{} // closed when the amount has been granted
}

// NewGate makes a Gate. It reduces Ordinary to at most Total, and Role to at most Ordinary.
func NewGate(l Shares) *Gate {
	l.Total = max(l.Total, 1)
	l.Ordinary = min(max(l.Ordinary, 1), l.Total)
	l.Role = min(max(l.Role, 1), l.Ordinary)
	return &Gate{limits: l, used: map[Who]int64{}, waiting: map[Who][]*waiter{}}
}

// Acquire waits until the amount is free for this user, or returns ctx's error if ctx ends before. An amount above the
// user's limit is reduced to the limit. The caller must call release once, to return the amount.
func (g *Gate) Acquire(ctx context.Context, who Who, amount int64) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	who, amount = g.normalize(who, amount)
	g.mu.Lock()
	if len(g.waiting) == 0 && g.fits(who, amount) {
		g.take(who, amount)
		g.mu.Unlock()
		return func() { g.release(who, amount) }, nil
	}
	g.arrivals++
	w := &waiter{amount: amount, number: g.arrivals, turn: make(chan struct{})}
	g.waiting[who] = append(g.waiting[who], w)
	g.admit()
	g.mu.Unlock()
	select {
	case <-w.turn:
	case <-ctx.Done():
		if g.leave(who, w) {
			return nil, ctx.Err()
		}
	}
	return func() { g.release(who, amount) }, nil
}

// Try grants the amount if it is free now, even if other users wait; otherwise it returns false. Unlike Acquire, it does not
// reduce an amount above the user's limit.
func (g *Gate) Try(who Who, amount int64) (release func(), ok bool) {
	normal, _ := g.normalize(who, amount)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.fits(normal, amount) {
		return nil, false
	}
	g.take(normal, amount)
	return func() { g.release(normal, amount) }, true
}

func (g *Gate) normalize(who Who, amount int64) (Who, int64) {
	if who.Superuser {
		return Who{Superuser: true}, min(amount, g.limits.Total)
	}
	return who, min(amount, g.limits.Role)
}

// fits reports whether the amount is free for the user.
func (g *Gate) fits(who Who, amount int64) bool {
	return g.total+amount <= g.limits.Total && (who.Superuser ||
		g.ordinary+amount <= g.limits.Ordinary && g.used[who]+amount <= g.limits.Role)
}

func (g *Gate) take(who Who, amount int64) {
	g.total += amount
	if !who.Superuser {
		g.ordinary += amount
	}
	g.used[who] += amount
}

func (g *Gate) release(who Who, amount int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.take(who, -amount)
	if g.used[who] == 0 {
		delete(g.used, who)
	}
	g.admit()
}

// leave removes a waiter. It returns false if the waiter's amount has been granted meanwhile.
func (g *Gate) leave(who Who, w *waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := g.waiting[who]
	for i, other := range list {
		if other == w {
			g.setWaiting(who, append(list[:i:i], list[i+1:]...))
			g.admit() // requests that arrived after w may have waited because of w
			return true
		}
	}
	return false
}

func (g *Gate) setWaiting(who Who, list []*waiter) {
	if len(list) == 0 {
		delete(g.waiting, who)
	} else {
		g.waiting[who] = list
	}
}

// admit grants waiting requests: superusers first, then the role that uses least, then the earliest. If the next
// request does not fit, admit grants no other request, so that large amounts are granted eventually. Users at their own
// limit are skipped.
func (g *Gate) admit() {
	for len(g.waiting) > 0 {
		who, found := g.next()
		if !found {
			return
		}
		list := g.waiting[who]
		if !g.fits(who, list[0].amount) {
			return
		}
		g.take(who, list[0].amount)
		close(list[0].turn)
		g.setWaiting(who, list[1:])
	}
}

// next returns the user whose first waiting request comes next. It skips users whose request exceeds their own limit
// now.
func (g *Gate) next() (best Who, found bool) {
	for who, list := range g.waiting {
		if !who.Superuser && g.used[who]+list[0].amount > g.limits.Role {
			continue
		}
		if !found || g.before(who, best) {
			best, found = who, true
		}
	}
	return best, found
}

func (g *Gate) before(a, b Who) bool {
	switch {
	case a.Superuser != b.Superuser:
		return a.Superuser
	case g.used[a] != g.used[b]:
		return g.used[a] < g.used[b]
	}
	return g.waiting[a][0].number < g.waiting[b][0].number
}
