package cli

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestCollectLate: only a command that captures once lets the heap grow, until it ends, and not if GOGC says how far it may.
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
		restore := collectLate(tt.rounds)
		if got := debug.SetGCPercent(tt.percent); got != tt.percent {
			t.Errorf("%+v: %d per cent", tt, got)
		}
		restore()
		if got := debug.SetGCPercent(100); got != 100 {
			t.Errorf("%+v: %d per cent after the command", tt, got)
		}
	}
}
