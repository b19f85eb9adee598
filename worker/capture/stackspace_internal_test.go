package capture

import (
	"os"
	"slices"
	"testing"

	"pg_stat_backtrace/ptrace/process"
)

// TestRereadOfReusedPID checks that the mappings of a process do not replace those of an earlier process with its id.
func TestRereadOfReusedPID(t *testing.T) {
	t.Parallel()
	stat, err := process.ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	c := newCapturer(t)
	maps := []process.Mapping{{Start: 0x1000, End: 0x2000, Path: "/earlier"}}
	sp := NewStackSpace(os.Getpid(), stat.StartTime+1, maps)
	if sp.reread(c) || !slices.Equal(sp.Maps, maps) {
		t.Errorf("another process's mappings: %d", len(sp.Maps))
	}
	sp = NewStackSpace(os.Getpid(), stat.StartTime, maps)
	if !sp.reread(c) || slices.Equal(sp.Maps, maps) {
		t.Error("the process's own mappings were not read")
	}
}
