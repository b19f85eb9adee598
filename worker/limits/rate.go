package limits

import (
	"math"
	"sync"
	"time"
)

// Rate configures a Limiter. The zero value is the default.
type Rate struct {
	// PerSecond is the number of tokens that a role earns per second; default RequestsPerSecond. A request costs one
	// token for each process that it names, and more for stacks larger than usual (see Charge).
	PerSecond float64
	Burst     int // the most tokens that a role can have; default RequestBurst
	// Roles is the number of roles that have their own bucket of tokens at a time. All other roles share one bucket.
	// Default maxRoles. A role without requests for Burst/PerSecond seconds can lose its bucket, which is then full.
	Roles int
	// Now is the clock; it should be monotonic. Default time.Now.
	Now func() time.Time
}

// Limiter limits the requests of each role: a token bucket for each role, in bounded memory. It is safe for
// concurrent use.
type Limiter struct {
	limits Rate
	mu     sync.Mutex
	roles  map[uint32]*bucket
	shared bucket    // for roles without their own bucket
	sweep  time.Time // time of the next search for idle roles
}

// bucket has the tokens that a role had at the time in the field at.
type bucket struct {
	tokens float64
	at     time.Time
}

// NewLimiter makes a Limiter.
func NewLimiter(l Rate) *Limiter {
	if !(l.PerSecond > 0) || math.IsInf(l.PerSecond, 0) { // this condition is also true for NaN
		l.PerSecond = RequestsPerSecond
	}
	if l.Burst <= 0 {
		l.Burst = RequestBurst
	}
	if l.Roles <= 0 {
		l.Roles = maxRoles
	}
	if l.Now == nil {
		l.Now = time.Now
	}
	return &Limiter{
		limits: l, roles: make(map[uint32]*bucket), shared: bucket{tokens: float64(l.Burst), at: l.Now()},
	}
}

// Take counts a request of the role for one process. It returns an *Exceeded if the role is over its limit.
func (l *Limiter) Take(role uint32) error { return l.TakeAll(role, 1) }

// TakeAll counts a request of the role for several processes. If the role has fewer tokens than processes, TakeAll
// returns an *Exceeded and takes no token.
func (l *Limiter) TakeAll(role uint32, processes int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucket(role, l.limits.Now())
	if b.tokens >= float64(processes) {
		b.tokens -= float64(processes)
		return nil
	}
	return l.denied(processes)
}

// Charge subtracts tokens after a request whose cost was unknown before. The role's balance may become negative.
func (l *Limiter) Charge(role uint32, tokens float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bucket(role, l.limits.Now()).tokens -= tokens
}

// Solvent returns nil, or an *Exceeded if the role's balance is negative.
func (l *Limiter) Solvent(role uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bucket(role, l.limits.Now()).tokens < 0 {
		return l.denied(1)
	}
	return nil
}

func (l *Limiter) denied(processes int) *Exceeded {
	return tooOften(l.limits, processes)
}

// bucket returns the role's bucket, filled up to now.
func (l *Limiter) bucket(role uint32, now time.Time) *bucket {
	b, known := l.roles[role]
	if !known && len(l.roles) >= l.limits.Roles && !now.Before(l.sweep) {
		l.forgetIdle(now)
	}
	switch {
	case known:
	case len(l.roles) < l.limits.Roles:
		b = &bucket{tokens: float64(l.limits.Burst), at: now}
		l.roles[role] = b
	default:
		b = &l.shared
	}
	l.fill(b, now)
	return b
}

// fill adds the tokens that the role has earned since the time b.at. If the clock was set back, it adds none.
func (l *Limiter) fill(b *bucket, now time.Time) {
	if passed := now.Sub(b.at); passed > 0 {
		b.tokens = min(float64(l.limits.Burst), b.tokens+passed.Seconds()*l.limits.PerSecond)
	}
	b.at = now
}

// forgetIdle drops the roles whose buckets are full, because a new bucket would be equal. It checks all roles, so
// bucket does not call it again before another bucket can be full, but at the latest after a second.
func (l *Limiter) forgetIdle(now time.Time) {
	next := math.Inf(1)
	for role, b := range l.roles {
		l.fill(b, now)
		missing := float64(l.limits.Burst) - b.tokens
		if missing <= 0 {
			delete(l.roles, role)
			continue
		}
		next = min(next, missing/l.limits.PerSecond)
	}
	l.sweep = now
	if len(l.roles) >= l.limits.Roles {
		l.sweep = now.Add(time.Duration(min(next, 1) * float64(time.Second)))
	}
}
