package host

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestMoments checks that periodic work of several intervals shares its moments, keeps its interval, and is not run twice
// at one moment, however late the program wakes up.
func TestMoments(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{AlignedInterval, 5 * time.Second, 10 * time.Second, 15 * time.Second} {
		var now time.Duration
		const times = 1000
		for range times {
			pause := alignedDelay(now, interval)
			if pause < interval-AlignedInterval || pause > interval+AlignedInterval || pause <= 0 {
				t.Fatalf("a pause of %s becomes %s", interval, pause)
			}
			now += pause
			if now%AlignedInterval != 0 {
				t.Fatalf("work of each %s is due at %s", interval, now)
			}
			now += rand.N(AlignedInterval / 4)
		}
		if mean := now / times; mean < interval-AlignedInterval/2 || mean > interval+AlignedInterval {
			t.Errorf("work of each %s runs each %s", interval, mean)
		}
	}
	for _, short := range []time.Duration{0, time.Millisecond, time.Second} {
		if got := alignedDelay(AlignedInterval/3, short); got != short {
			t.Errorf("a pause of %s becomes %s", short, got)
		}
	}
	if got := AlignedDelay(time.Minute); got < time.Minute-AlignedInterval || got > time.Minute+AlignedInterval {
		t.Errorf("a pause of a minute becomes %s", got)
	}
}
