package runningplan

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestCostBounded: the pause after each statement leaves the sessions a tenth of a processor, and a calibration that
// costs too much ends.
func TestCostBounded(t *testing.T) {
	t.Parallel()
	const runner, holder = 1, 2
	used := map[int]time.Duration{runner: time.Hour, holder: time.Minute}
	var paused time.Duration
	c := &cost{
		share: 0.1, limit: time.Second, began: map[int]time.Duration{runner: time.Hour, holder: time.Minute},
		processor: func(pid int) (time.Duration, error) { return used[pid], nil },
		after: func(d time.Duration) <-chan time.Time {
			paused += d
			ready := make(chan time.Time, 1)
			ready <- time.Time{}
			return ready
		},
	}
	for range 5 {
		used[runner] += 100 * time.Millisecond
		used[holder] += 20 * time.Millisecond
		if err := c.add(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	const want, exact = 600 * time.Millisecond, time.Millisecond
	if c.used != want || (paused-9*want).Abs() > exact {
		t.Errorf("used %s, paused %s", c.used, paused)
	}
	used[runner] += time.Second
	if err := c.add(t.Context()); !errors.Is(err, errDear) {
		t.Errorf("above the limit: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c.limit, c.after = time.Hour, func(time.Duration) <-chan time.Time { return nil }
	if err := c.add(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}
