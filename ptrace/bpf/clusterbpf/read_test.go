package clusterbpf

import (
	"testing"
	"time"
)

// TestDivide expects the parts of the last two waits in which a process waited for a processor. The scheduler's clock is
// 1000 ns behind CLOCK_MONOTONIC.
func TestDivide(t *testing.T) {
	t.Parallel()
	const end, other = 10_000, 1000
	for name, test := range map[string]struct {
		p                Process
		undivided, delay time.Duration
	}{
		"sleeps":                  {Process{Started: 1, Since: 9000, delay: 7, notedDelay: 7, clock: 1000}, 0, 0},
		"woken":                   {Process{Started: 1, Since: 9000, notedQueued: 8700, clock: 1000}, 0, 300},
		"woken and moved":         {Process{Started: 1, Since: 9000, delay: 7, notedDelay: 57, notedQueued: 8700, clock: 1000}, 0, 350},
		"woken before the start":  {Process{Since: 9000, notedDelay: 50_000, notedQueued: 20}, 0, 1000},
		"woken after the end":     {Process{Started: 1, Since: 9000, notedQueued: 9100, clock: 1000}, 0, 0},
		"ran after the end":       {Process{Started: 1, Since: 9000, notedDelay: 5000}, 0, 1000},
		"lost its processor":      {Process{Started: 1, Since: 9000, Runnable: true, notedQueued: 8050, clock: 1000}, 0, 1000},
		"runs":                    {Process{Started: 1, Since: 9000, Running: true, clock: 1000}, 0, 0},
		"runs after a sleep":      {Process{Started: 1, Since: 9000, Running: true, Undivided: true, UndividedTook: 100, delay: 5, notedDelay: 45}, 40, 0},
		"runs after a preemption": {Process{Started: 1, Since: 9000, Running: true, Undivided: true, UndividedTook: 100, Runnable: true}, 100, 0},
		"its last delay is long":  {Process{Started: 1, Since: 9000, Running: true, Undivided: true, UndividedTook: 100, notedDelay: 450}, 100, 0},
		"waits since the start":   {Process{Since: 1000, Running: true, Runnable: true, notedDelay: 3, notedQueued: 10}, 0, 8990},
		"left unseen":             {Process{Started: 1, Since: 9000, Running: true, notedQueued: 8800, clock: 1000}, 0, 200},
		"left before the clock":   {Process{Started: 1, Since: 9000, notedQueued: 8700}, 0, 300},
		"in the future":           {Process{Started: 1, Since: 11_000, notedQueued: 8700, clock: 1000}, 0, 0},
	} {
		test.p.noted = true
		test.p.divide(end, other)
		if test.p.UndividedDelay != test.undivided || test.p.Delay != test.delay {
			t.Errorf("%s: %v and %v, want %v and %v", name, test.p.UndividedDelay, test.p.Delay, test.undivided, test.delay)
		}
	}
	p := Process{Started: 1, Since: 9000, delay: 7, clock: 1000} // the kernel does not count
	if p.divide(end, other); p.Delay != 0 {
		t.Errorf("a delay of %v without a count", p.Delay)
	}
}
