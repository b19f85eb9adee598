package limits

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

type fakeClock struct{ now time.Time }

func (c *fakeClock) read() time.Time { return c.now }

func TestLimiter(t *testing.T) {
	clock := &fakeClock{time.Unix(1e9, 0)}
	l := NewLimiter(Rate{PerSecond: 10, Burst: 3, Now: clock.read})
	granted := func(role uint32, requests int) (n int) {
		for range requests {
			if l.Take(role) == nil {
				n++
			}
		}
		return n
	}
	for i, step := range []struct {
		pass     time.Duration
		role     uint32
		requests int
		want     int
	}{
		{0, 1, 5, 3},                      // the burst
		{0, 2, 5, 3},                      // another role has its own
		{50 * time.Millisecond, 1, 1, 0},  // half a token
		{50 * time.Millisecond, 1, 2, 1},  // one
		{time.Second, 1, 20, 3},           // never more than the burst
		{-time.Hour, 1, 1, 0},             // a clock set back gives nothing,
		{200 * time.Millisecond, 1, 5, 2}, // and takes nothing
	} {
		clock.now = clock.now.Add(step.pass)
		if got := granted(step.role, step.requests); got != step.want {
			t.Errorf("step %d: %d of %d granted, want %d", i, got, step.requests, step.want)
		}
	}
	if err := l.Take(1); !isLimited(err) {
		t.Errorf("refused with %v", err)
	}
}

// TestLimiterCosts checks that a request costs as many tokens as it names processes, all or nothing. A later charge
// must be paid before the next request.
func TestLimiterCosts(t *testing.T) {
	clock := &fakeClock{time.Unix(1e9, 0)}
	l := NewLimiter(Rate{PerSecond: 10, Burst: 100, Now: clock.read})
	if err := l.TakeAll(1, 5000); !isLimited(err) {
		t.Errorf("more than the burst: %v", err)
	}
	if err := l.TakeAll(1, 100); err != nil {
		t.Errorf("the burst: %v", err)
	}
	if err := l.Solvent(1); err != nil {
		t.Errorf("nothing is left, and nothing is owed: %v", err)
	}
	if err := l.TakeAll(1, 1); !isLimited(err) {
		t.Errorf("nothing is left: %v", err)
	}
	l.Charge(1, 25.5)
	if err := l.Solvent(1); !isLimited(err) {
		t.Errorf("25.5 are owed: %v", err)
	}
	clock.now = clock.now.Add(2600 * time.Millisecond)
	if err := l.Solvent(1); err != nil {
		t.Errorf("all is paid: %v", err)
	}
	if err := l.Take(1); !isLimited(err) {
		t.Errorf("half a token is left: %v", err)
	}
	clock.now = clock.now.Add(50 * time.Millisecond)
	if err := l.Take(1); err != nil {
		t.Errorf("one is left: %v", err)
	}
	if l.Take(2) != nil || l.Solvent(2) != nil {
		t.Error("another role paid for it")
	}
}

func TestLimiterMemory(t *testing.T) {
	const places = 10
	clock := &fakeClock{time.Unix(1e9, 0)}
	l := NewLimiter(Rate{PerSecond: 1, Burst: 2, Roles: places, Now: clock.read})
	granted := 0
	for role := range uint32(1000) {
		if l.Take(role) == nil {
			granted++
		}
		if len(l.roles) > places {
			t.Fatalf("%d roles are remembered", len(l.roles))
		}
	}
	if want := places + 2; granted != want { // one each, and a burst for all the others together
		t.Errorf("%d requests granted, want %d", granted, want)
	}
	clock.now = clock.now.Add(3 * time.Second) // everybody idle: there is room again
	for range 2 {
		if err := l.Take(5000); err != nil {
			t.Errorf("a new role after the rush: %v", err)
		}
	}
	if _, own := l.roles[5000]; !own {
		t.Error("a new role found no place of its own")
	}
}

func TestLimiterDefaults(t *testing.T) {
	l := NewLimiter(Rate{})
	granted := 0
	for l.Take(1) == nil && granted < 10000 {
		granted++
	}
	if granted < RequestBurst || granted > 2*RequestBurst {
		t.Errorf("%d requests granted at once, want about %d", granted, RequestBurst)
	}
}

func TestLimiterConcurrent(t *testing.T) {
	clock := &fakeClock{time.Unix(1e9, 0)}
	l := NewLimiter(Rate{PerSecond: 1, Burst: 100, Now: clock.read})
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if l.Take(1) == nil {
					granted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if granted.Load() != 100 {
		t.Errorf("%d requests granted, want 100", granted.Load())
	}
}

func BenchmarkLimiter(b *testing.B) {
	l := NewLimiter(Rate{})
	b.ReportAllocs()
	for b.Loop() {
		_ = l.Take(1)
	}
}

func isLimited(err error) bool {
	var e *Exceeded
	return errors.As(err, &e)
}
