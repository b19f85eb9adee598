package capture

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/naming"
)

// TestMappedBeforeStop has a process map a library after its mappings were read and before it was stopped: another snapshot is
// taken, once.
func TestMappedBeforeStop(t *testing.T) {
	c, err := New(Config{})
	if err != nil {
		t.Skip(err)
	}
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := cmd.Process.Pid
	pgtest.Wait(t, "a sleeping process", func() bool {
		stat, err := process.ReadStat(pid)
		maps, _ := process.Maps(pid)
		return err == nil && stat.State == 'S' && slices.ContainsFunc(maps, isLibrary)
	})
	stat, err := process.ReadStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	maps, err := process.Maps(pid)
	if err != nil {
		t.Fatal(err)
	}
	early := snapshot.NewMapsSnapshot(slices.DeleteFunc(slices.Clone(maps), isLibrary), &stat)
	target := process.Target{PID: pid, StartTime: stat.StartTime}
	r := run{
		capturer: c, target: target, taken: func() {}, began: time.Now(), check: naming.NewCheck(pid),
		key: naming.ProcessKey{PID: pid, StartTime: stat.StartTime},
	}
	defer r.check.Close()
	for _, stale := range []bool{true, false} {
		snap, err := ptrace.Capture(t.Context(), target, snapshot.Options{MapsSnapshot: early})
		if err != nil {
			t.Fatal(err)
		}
		b, err := r.use(snap, snapshot.Options{})
		if err != nil || b.stale != stale {
			t.Errorf("stale: %v, not %v; %v", b.stale, stale, err)
		}
	}
}

// isLibrary reports whether a mapping is of libc.
func isLibrary(m process.Mapping) bool {
	return strings.Contains(m.Path, "libc.so") || strings.Contains(m.Path, "libc-2")
}
