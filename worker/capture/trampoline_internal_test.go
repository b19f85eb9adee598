package capture

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"pg_stat_backtrace/ptrace"
)

// TestTrampolineIsNotLookedUp: of the frames of one image, only the signal trampoline is not looked for in the
// debugging information, which has nothing of it: to find that out takes reading all of it.
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
	trace, err := c.Capture(t.Context(), ptrace.Target{PID: startReady(t, exe, "altstack"), UID: -1}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var m *module
	for _, m = range c.images.byID {
		if m.name == "nest" {
			break
		}
	}
	m.lines.mu.Lock()
	defer m.lines.mu.Unlock()
	trampolines, others := 0, 0
	for i := range trace.Threads[0].Frames {
		f := &trace.Threads[0].Frames[i]
		if f.Module != "nest" {
			continue
		}
		_, exactly := m.lines.answers[f.ModuleOffset]
		_, asCaller := m.lines.answers[f.ModuleOffset-1]
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
