package observe

import (
	"testing"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestExecutedBetweenAttempts checks that an attempt does not use the mappings of the program that the process
// executed at the attempt before.
func TestExecutedBetweenAttempts(t *testing.T) {
	pid := started(t, "sleep", "1000")
	layout, err := Maps(pid)
	if err != nil {
		t.Fatal(err)
	}
	stat := *layout.Stat()
	stat.StackStart++ // as execve(2) changes it
	stale := snapshot.NewMapsSnapshot(layout.Maps(), &stat)
	w := &observer{
		ctx: t.Context(), target: process.Target{PID: pid, UID: -1},
		options: snapshot.Options{MapsSnapshot: stale}.WithDefaults(), started: time.Now(),
		layout: stale, maps: stale.Maps(),
	}
	if s, err := w.observe(); err != nil || s.MapsSnapshot == stale {
		t.Errorf("the layout of the program before was taken, or %v", err)
	}
}
