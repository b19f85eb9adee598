package capture

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestSoon: a look that does not come back is left behind, and what it had to itself is given back when it does.
func TestSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looked, late atomic.Int32
		look, tooLate := func() { looked.Add(1) }, func() { late.Add(1) }
		if !soon(look, tooLate) || looked.Load() != 1 || late.Load() != 0 {
			t.Errorf("one that comes back: looked %d times, late %d times", looked.Load(), late.Load())
		}
		back := make(chan struct{})
		if soon(func() { <-back; look() }, tooLate) || looked.Load() != 1 {
			t.Error("one that does not come back was waited for")
		}
		close(back)
		synctest.Wait()
		if looked.Load() != 2 || late.Load() != 1 {
			t.Errorf("one that comes back late: looked %d times, late %d times", looked.Load(), late.Load())
		}
	})
}
