package capture

import (
	"slices"
	"testing"

	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/worker/naming"
)

// TestMapsTrusted checks when a walk with cached mappings counts as correct. If the walk reached the end of the stack
// or the frame limit, unchanged mappings of its frames are enough. Otherwise all mappings are read again.
func TestMapsTrusted(t *testing.T) {
	t.Parallel()
	c, snap, sp := snapshotOf(t, "40")
	deep := snap.Threads[0]
	cut := deep
	cut.Stack.Data = cut.Stack.Data[:256]
	for _, tt := range []struct {
		what    string
		limit   int
		thread  snapshot.Thread
		trusted bool
	}{
		{"a whole stack", 0, deep, true},
		{"one frame", 1, deep, true},
		{"twenty frames", 20, deep, true},
		{"a stack that was not copied whole", 0, cut, false},
		{"two frames of that", 2, cut, true},
	} {
		snap := *snap
		snap.Threads = []snapshot.Thread{tt.thread}
		b := c.build(&snap, sp, Options{MaxFrames: tt.limit}, &serverProcess{})
		if b.mapsTrusted != tt.trusted {
			t.Errorf("%s: maps trusted: %v; %s", tt.what, b.mapsTrusted, b.trace.Threads[0].Stop)
		}
		// Of a process that does not exist no mapping can be read.
		missing := naming.Check{PID: 1 << 30, Before: slices.Clone(b.used)}
		if ok, err := missing.StillMapped(snap.Maps, b.used, b.mapsTrusted); ok != tt.trusted || (err == nil) != tt.trusted {
			t.Errorf("%s: its mappings hold: %v, %v", tt.what, ok, err)
		}
	}
}

// TestEndsInsideFrames checks that a walk which ends in code that never returns has used only the mappings of its
// frames.
func TestEndsInsideFrames(t *testing.T) {
	t.Parallel()
	for reason := unwind.EndOfStack; reason <= unwind.StackSwitch; reason++ {
		want := reason == unwind.EndOfStack || reason == unwind.MaxFrames || reason == unwind.NeverReturns
		if got := endsInsideFrames(reason); got != want {
			t.Errorf("%s: %t", reason, got)
		}
	}
}
