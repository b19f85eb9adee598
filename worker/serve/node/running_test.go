package node

import (
	"slices"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestRunning finds a server once, without its children.
func TestRunning(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	found, _, err := Running()
	if err != nil {
		t.Fatal(err)
	}
	found = slices.DeleteFunc(found, func(p Process) bool { return p.DataDir != s.DataDir })
	if len(found) != 1 || found[0].PID != s.PostmasterPID() {
		t.Errorf("found %+v, want process %d of %s", found, s.PostmasterPID(), s.DataDir)
	}
}
