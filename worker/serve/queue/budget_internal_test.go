package queue

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"
)

// TestBudgetRotation checks that many databases share few sessions. Each database must get its turn, and the limit
// must hold.
func TestBudgetRotation(t *testing.T) {
	t.Parallel()
	b := &budget{stay: time.Millisecond}
	b.resize(3)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	turns := map[string]int{}
	open, most := 0, 0
	var databases sync.WaitGroup
	for i := range 25 {
		name := strconv.Itoa(i)
		databases.Go(func() {
			for range 4 {
				l, err := b.acquire(ctx, name, false)
				if err != nil {
					t.Errorf("database %s: %v", name, err)
					return
				}
				mu.Lock()
				open++
				most = max(most, open)
				turns[name]++
				mu.Unlock()
				for !l.leave.Load() && ctx.Err() == nil && waits(b) {
					select {
					case <-l.signal:
					case <-time.After(time.Millisecond):
					}
				}
				mu.Lock()
				open--
				mu.Unlock()
				b.release(l)
			}
		})
	}
	databases.Wait()
	if len(turns) != 25 || most > 3 || b.used() != 0 {
		t.Errorf("%d databases had a turn, %d sessions at once, %d left", len(turns), most, b.used())
	}
}

func waits(b *budget) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting) > 0
}

// TestBudgetShrinks checks that sessions are asked to leave at once if the limit shrinks, and not otherwise.
func TestBudgetShrinks(t *testing.T) {
	t.Parallel()
	b := &budget{stay: time.Hour}
	b.resize(2)
	var leases []*lease
	for _, name := range []string{"a", "b"} {
		l, err := b.acquire(t.Context(), name, false)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := b.acquire(short, "c", false); err == nil || leases[0].leave.Load() {
		t.Errorf("a third session: %v; the first is asked to leave: %v", err, leases[0].leave.Load())
	}
	b.resize(1)
	if !leases[0].leave.Load() || leases[1].leave.Load() {
		t.Errorf("asked to leave: the first %v, the second %v", leases[0].leave.Load(), leases[1].leave.Load())
	}
	b.resize(0)
	if !leases[1].leave.Load() {
		t.Error("the last session is not asked to leave")
	}
}

// TestBudgetPromotes checks that a database with rows to write is the next one.
func TestBudgetPromotes(t *testing.T) {
	t.Parallel()
	b := &budget{stay: time.Hour}
	order := make(chan string, 3)
	for _, name := range []string{"a", "b", "c"} {
		before := len(b.waiting)
		go func() {
			l, err := b.acquire(context.Background(), name, false)
			if err != nil {
				return
			}
			order <- name
			b.release(l)
		}()
		for len(queued(b)) == before {
			time.Sleep(time.Millisecond)
		}
	}
	b.promote("c")
	b.resize(1)
	if first := <-order; first != "c" {
		t.Errorf("the first is %s", first)
	}
	<-order
	<-order
}

func queued(b *budget) []*claim {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting
}

// TestBudgetStuckSession: if a session does not leave, another one is asked.
func TestBudgetStuckSession(t *testing.T) {
	t.Parallel()
	b := &budget{}
	b.resize(2)
	leases := make([]*lease, 2)
	for i, name := range []string{"stuck", "b"} {
		l, err := b.acquire(t.Context(), name, false)
		if err != nil {
			t.Fatal(err)
		}
		leases[i] = l
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got := make(chan error, 1)
	go func() {
		_, err := b.acquire(ctx, "c", false)
		got <- err
	}()
	<-leases[0].signal
	b.mu.Lock()
	if !leases[0].leave.Load() || leases[1].leave.Load() {
		t.Errorf("asked to leave: the first %v, the second %v", leases[0].leave.Load(), leases[1].leave.Load())
	}
	leases[0].asked = leases[0].asked.Add(-leaveTimeout)
	b.reassign()
	b.mu.Unlock()
	if !leases[1].leave.Load() {
		t.Fatal("no other session is asked to leave")
	}
	b.release(leases[1])
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// TestBudgetUrgentClaimsStarveNoOther: two databases always have rows to write. A third one gets its turn.
func TestBudgetUrgentClaimsStarveNoOther(t *testing.T) {
	t.Parallel()
	for _, byPromotion := range []bool{false, true} {
		b := &budget{stay: time.Millisecond}
		b.resize(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		busy, stop := context.WithCancel(ctx)
		var databases sync.WaitGroup
		for _, name := range []string{"a", "c"} {
			databases.Go(func() {
				for busy.Err() == nil {
					l, err := b.acquire(busy, name, !byPromotion)
					if err != nil {
						return
					}
					for !l.leave.Load() && busy.Err() == nil {
						b.promote(map[string]string{"a": "c", "c": "a"}[name])
						time.Sleep(time.Millisecond / 10)
					}
					b.release(l)
				}
			})
		}
		for len(queued(b)) == 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		if l, err := b.acquire(ctx, "b", false); err != nil {
			t.Errorf("promoted %v: the third database has no turn", byPromotion)
		} else {
			b.release(l)
		}
		stop()
		databases.Wait()
		cancel()
	}
}

// TestPauseClaims: a claim has to wait if a notification causes it, and the last notification brought no request.
func TestPauseClaims(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		name               string
		notified, signaled bool
		emptied            time.Time
		least              time.Duration
	}{
		{"no notification", false, false, now.Add(time.Hour), 0},
		{"the first notification", true, false, now.Add(-claimPause), 0},
		{"a notification and a call of wake", true, true, now.Add(time.Hour), 0},
		{"another notification", true, false, now, claimPause},
	} {
		s := &session{notified: c.notified, emptied: c.emptied, lease: &lease{signal: make(chan struct{}, 1)}}
		if c.signaled {
			s.wake()
		}
		s.pauseClaims(t.Context())
		if took := time.Since(now); took < c.least {
			t.Errorf("%s: %v", c.name, took)
		}
	}
}
