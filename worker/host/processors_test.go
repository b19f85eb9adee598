package host

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
	BeginWork()
	BeginWork()
	EndWork()
	EndWork()
	if processorUse.frugal || runtime.GOMAXPROCS(0) != all {
		t.Fatal("GOMAXPROCS of the environment is not respected")
	}
	t.Setenv("GOMAXPROCS", "")
	Frugal()
	t.Cleanup(func() {
		processorUse.Lock()
		processorUse.frugal, processorUse.wide = false, false
		processorUse.since.Stop()
		processorUse.Unlock()
		applyProcessors()
	})
	is := func(want int, when string) {
		t.Helper()
		if got := runtime.GOMAXPROCS(0); got != want {
			t.Errorf("%d processors %s, not %d", got, when, want)
		}
	}
	pgtest.Wait(t, "one processor", func() bool { return runtime.GOMAXPROCS(0) == 1 })
	if AllProcessors() != all {
		t.Errorf("%d processors in all, not %d", AllProcessors(), all)
	}
	BeginWork()
	is(1, "for one piece of work")
	BeginWork()
	pgtest.Wait(t, "all processors for two", func() bool { return runtime.GOMAXPROCS(0) == all })
	EndWork()
	pgtest.Wait(t, "one processor again", func() bool { return runtime.GOMAXPROCS(0) == 1 })
	EndWork()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100 {
				BeginWork()
				time.Sleep(10 * time.Microsecond)
				EndWork()
			}
		})
	}
	group.Wait()
	if processorUse.work != 0 {
		t.Errorf("%d pieces of work are left", processorUse.work)
	}
	pgtest.Wait(t, "one processor in the end", func() bool { return runtime.GOMAXPROCS(0) == 1 })
}
