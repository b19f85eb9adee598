package cli

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestCollectLate: only a program that captures once lets its heap grow, and not if GOGC says how far it may.
func TestCollectLate(t *testing.T) {
	restore := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(restore) })
	for _, tt := range []struct {
		rounds, percent int
		gogc            string
	}{{1, 800, ""}, {2, 100, ""}, {1, 100, "100"}} {
		t.Setenv("GOGC", tt.gogc)
		if tt.gogc == "" {
			_ = os.Unsetenv("GOGC")
		}
		collectLate(tt.rounds)
		if got := debug.SetGCPercent(100); got != tt.percent {
			t.Errorf("%+v: %d per cent", tt, got)
		}
	}
}
