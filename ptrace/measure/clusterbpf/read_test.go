package clusterbpf

import (
	"testing"
	"time"
)

// TestDivide expects the parts of the last two waits in which a process waited for a processor. The scheduler's clock
// is 1000 ns behind CLOCK_MONOTONIC.
func TestDivide(t *testing.T) {
	t.Parallel()
	const end, other = 10_000, 1000
	woken := Process{Started: 1, Since: 9000, notedQueued: 8700, clock: 1000}
	moved, late, unclocked := woken, woken, woken
	moved.delay, moved.notedDelay = 7, 57
	late.notedQueued = 9100
	unclocked.clock = 0
	future := woken
	future.Since = 11_000
	runs := Process{Started: 1, Since: 9000, Running: true, clock: 1000}
	unseen, slept := runs, runs
	unseen.notedQueued = 8800
	slept.Undivided, slept.UndividedTook, slept.delay, slept.notedDelay = true, 100, 5, 45
	preempted, long := slept, slept
	preempted.Runnable = true
	long.notedDelay = 450
	lost := Process{Started: 1, Since: 9000, Runnable: true, notedQueued: 8050, clock: 1000}
	for name, test := range map[string]struct {
		p                Process
		undivided, delay time.Duration
	}{
		"sleeps":                  {Process{Started: 1, Since: 9000, delay: 7, notedDelay: 7, clock: 1000}, 0, 0},
		"woken":                   {woken, 0, 300},
		"woken and moved":         {moved, 0, 350},
		"woken before the start":  {Process{Since: 9000, notedDelay: 50_000, notedQueued: 20}, 0, 1000},
		"woken after the end":     {late, 0, 0},
		"ran after the end":       {Process{Started: 1, Since: 9000, notedDelay: 5000}, 0, 1000},
		"lost its processor":      {lost, 0, 1000},
		"runs":                    {runs, 0, 0},
		"runs after a sleep":      {slept, 40, 0},
		"runs after a preemption": {preempted, 100, 0},
		"its last delay is long":  {long, 100, 0},
		"waits since the start":   {Process{Since: 1000, Running: true, Runnable: true, notedQueued: 10}, 0, 8990},
		"left unseen":             {unseen, 0, 200},
		"left before the clock":   {unclocked, 0, 300},
		"in the future":           {future, 0, 0},
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
