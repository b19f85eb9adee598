package cli

import (
	"testing"
	"time"
)

// TestStackRate: more stacks in a second than allowed are noticed, and as many in a longer time are not.
func TestStackRate(t *testing.T) {
	start := time.Now()
	var steady, burst stackRate
	for i := range 100 {
		if steady.add(maxStackRate/20, start.Add(time.Duration(i)*60*time.Millisecond)) {
			t.Fatalf("too many after %d steps", i)
		}
	}
	soon, later := start.Add(time.Millisecond), start.Add(time.Hour)
	if burst.add(maxStackRate, start) || !burst.add(1, soon) || !burst.add(0, later) {
		t.Error("a burst was not noticed, or was forgotten")
	}
}
