package capture_test

import (
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
)

// TestDerivedNamesComeLater captures the postmaster of a stripped server again and again. Its loop is a static
// function, which gets its name in an answer after the scan of the code has ended.
func TestDerivedNamesComeLater(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server: not with -short")
	}
	tables := map[int]bool{15: true, 18: true}
	pgtest.One(t, func(t *testing.T, binDir string) {
		if !tables[pgtest.Major(t, binDir)] {
			t.Skip("there is no table for this version")
		}
		server := pgtest.Start(t, strippedTree(t, binDir), pgtest.Options{})
		c := capturer(t)
		pgtest.Wait(t, "the derived name of the postmaster's loop", func() bool {
			tr, err := c.Capture(t.Context(), process.Target{PID: server.PostmasterPID(), UID: -1}, capture.Options{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range tr.Threads[0].Frames {
				if f := &tr.Threads[0].Frames[i]; f.Derived && f.Function == "ServerLoop" {
					return true
				}
			}
			return false
		})
	})
}
