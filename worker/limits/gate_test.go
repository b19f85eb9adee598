package limits

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

var (
	super = Who{Role: 10, Superuser: true}
	alice = Who{Role: 20}
	bob   = Who{Role: 30}
)

// TestShares checks the shares of a role, of all roles together, and of superusers.
func TestShares(t *testing.T) {
	g := NewGate(Shares{Total: 10, Ordinary: 6, Role: 4})
	var releases []func()
	for i, step := range []struct {
		who    Who
		amount int64
		want   bool
	}{
		{alice, 5, false}, {alice, 3, true}, {alice, 2, false}, {alice, 1, true}, {bob, 3, false}, {bob, 2, true},
		{bob, 1, false}, {super, 5, false}, {super, 3, true}, {Who{Role: 11, Superuser: true}, 1, true}, {super, 1, false},
	} {
		release, ok := g.Try(step.who, step.amount)
		if ok != step.want {
			t.Fatalf("step %d: %v", i, ok)
		}
		if ok {
			releases = append(releases, release)
		}
	}
	for _, release := range releases {
		release()
	}
	if g.total != 0 || g.ordinary != 0 || len(g.used) != 0 {
		t.Errorf("left: %d, %d, %v", g.total, g.ordinary, g.used)
	}
}

// TestTurns checks that superusers come first, then the role that uses least. A cancelled request must make room for
// those behind it.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(Shares{Total: 2, Ordinary: 2, Role: 2})
		hold, err := g.Acquire(t.Context(), alice, 9) // as much as a role may have
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var order []string
		ask := func(ctx context.Context, name string, who Who, amount int64) {
			go func() {
				release, err := g.Acquire(ctx, who, amount)
				if err != nil {
					name += " gave up"
				}
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				if err == nil {
					<-t.Context().Done()
					release()
				}
			}()
			synctest.Wait()
		}
		impatient, cancel := context.WithCancel(t.Context())
		ask(impatient, "impatient", alice, 2)
		ask(t.Context(), "alice", alice, 1)
		ask(t.Context(), "bob", bob, 1)
		ask(t.Context(), "super", super, 1)
		cancel()
		synctest.Wait()
		hold()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(order)
		if want := []string{"alice", "impatient gave up", "super"}; !slices.Equal(order, want) { // two at a time
			t.Errorf("%q, want %q", order, want)
		}
	})
}

// TestLargeIsNotPutOff checks that small amounts do not overtake a large one of a role that uses less.
func TestLargeIsNotPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(Shares{Total: 4, Ordinary: 4, Role: 3})
		first, _ := g.Acquire(t.Context(), alice, 1)
		second, _ := g.Acquire(t.Context(), alice, 1)
		got := make(chan string, 2)
		go func() {
			release, err := g.Acquire(t.Context(), bob, 3)
			got <- "large"
			if err == nil {
				release()
			}
		}()
		synctest.Wait()
		go func() {
			release, err := g.Acquire(t.Context(), alice, 1)
			got <- "small"
			if err == nil {
				release()
			}
		}()
		synctest.Wait()
		if len(got) != 0 {
			t.Fatalf("%s was let in", <-got)
		}
		first()
		synctest.Wait()
		if len(got) != 2 || <-got != "large" {
			t.Error("the large one was put off")
		}
		second()
	})
}

// TestConcurrent checks that the limits hold under concurrent use, and that everything is released.
func TestConcurrent(t *testing.T) {
	g := NewGate(Shares{Total: 8, Ordinary: 6, Role: 3})
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%7 == 0 {
				cancel()
			}
			release, err := g.Acquire(ctx, Who{Role: uint32(i % 5), Superuser: i%5 == 0}, int64(i%4))
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				return
			}
			g.mu.Lock()
			if g.total > 8 || g.ordinary > 6 {
				t.Errorf("%d, %d", g.total, g.ordinary)
			}
			g.mu.Unlock()
			release()
		})
	}
	wg.Wait()
	if g.total != 0 || g.ordinary != 0 || len(g.used) != 0 || len(g.waiting) != 0 {
		t.Errorf("left: %d, %d, %v, %v", g.total, g.ordinary, g.used, g.waiting)
	}
}

func BenchmarkAcquire(b *testing.B) {
	g := NewGate(Shares{Total: 4, Ordinary: 4, Role: 3})
	b.ReportAllocs()
	for b.Loop() {
		release, _ := g.Acquire(b.Context(), alice, 1)
		release()
	}
}
