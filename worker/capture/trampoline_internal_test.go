package capture

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
)

// TestTrampolineIsNotLookedUp checks that a signal trampoline is not looked up in the debugging information, which
// has nothing about it. A lookup would read all of it.
func TestTrampolineIsNotLookedUp(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("signals are returned from in the kernel's own image here")
	}
	exe := filepath.Join(t.TempDir(), "nest")
	// Static, so that the C library's trampoline is in an image with debugging information wherever this runs.
	if out, err := exec.Command("gcc", "-static", "-g", "-o", exe, "testdata/nest.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	pid := startReady(t, exe, "altstack")
	trace, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, Options{Deadline: pgtest.Patience})
	if err != nil {
		t.Fatal(err)
	}
	maps, err := process.Maps(pid)
	if err != nil {
		t.Fatal(err)
	}
	space := c.processes.Open(pid, 0, maps)
	_, where, _ := space.Lookup(trace.Threads[0].Frames[len(trace.Threads[0].Frames)-1].Address)
	for i := range trace.Threads[0].Frames {
		if trace.Threads[0].Frames[i].Module == "nest" {
			_, where, _ = space.Lookup(trace.Threads[0].Frames[i].Address)
		}
	}
	m := where.Module
	trampolines, others := 0, 0
	for i := range trace.Threads[0].Frames {
		f := &trace.Threads[0].Frames[i]
		if f.Module != "nest" {
			continue
		}
		exactly, asCaller := m.LinesRequested(f.ModuleOffset), m.LinesRequested(f.ModuleOffset-1)
		if f.Note != "signal handler called" {
			others++
			if !exactly && !asCaller {
				t.Errorf("%s was not looked up", f.Function)
			}
			continue
		}
		trampolines++
		if exactly || asCaller || f.File != "" {
			t.Errorf("the trampoline was looked up: %+v", f)
		}
	}
	if trampolines != 1 || others < 4 {
		t.Errorf("%d trampolines and %d others: %+v", trampolines, others, trace.Threads[0].Frames)
	}
}
