package gomaxprocs

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
)

// TestFrugal checks that one task uses one processor and several tasks use all, and that one processor is used again
// afterwards.
func TestFrugal(t *testing.T) {
	all := runtime.GOMAXPROCS(0)
	if all == 1 {
		t.Skip("this machine has one processor only")
	}
	t.Setenv("GOMAXPROCS", "2")
	Frugal()
	Begin()
	Begin()
	End()
	End()
	if use.frugal || runtime.GOMAXPROCS(0) != all {
		t.Fatal("GOMAXPROCS of the environment is not respected")
	}
	t.Setenv("GOMAXPROCS", "")
	Frugal()
	t.Cleanup(func() {
		use.Lock()
		use.frugal, use.wide = false, false
		use.since.Stop()
		use.Unlock()
		apply()
	})
	is := func(want int, when string) {
		t.Helper()
		if got := runtime.GOMAXPROCS(0); got != want {
			t.Errorf("%d processors %s, not %d", got, when, want)
		}
	}
	pgtest.Wait(t, "one processor", func() bool { return runtime.GOMAXPROCS(0) == 1 })
	if All() != all {
		t.Errorf("%d processors in all, not %d", All(), all)
	}
	Begin()
	is(1, "for one piece of work")
	Begin()
	pgtest.Wait(t, "all processors for two", func() bool { return runtime.GOMAXPROCS(0) == all })
	End()
	pgtest.Wait(t, "one processor again", func() bool { return runtime.GOMAXPROCS(0) == 1 })
	End()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100 {
				Begin()
				time.Sleep(10 * time.Microsecond)
				End()
			}
		})
	}
	group.Wait()
	if use.work != 0 {
		t.Errorf("%d pieces of work are left", use.work)
	}
	pgtest.Wait(t, "one processor in the end", func() bool { return runtime.GOMAXPROCS(0) == 1 })
}
