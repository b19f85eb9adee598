package capture_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// TestPerfMap names the functions of a JavaScript program by the perf map that node writes, unless the file belongs to
// another user than the process.
func TestPerfMap(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node (package nodejs)")
	}
	const program = `function spinInScript() { let n = 0; for (;;) n = (n * 7 + 1) % 1000003; } spinInScript();`
	cmd := exec.Command(node, "--perf-basic-prof", "--no-opt", "-e", program)
	cmd.Dir = t.TempDir() // node leaves a log in its working directory
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	file := fmt.Sprintf("/tmp/perf-%d.map", cmd.Process.Pid)
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); _ = os.Remove(file) })
	c := capturer(t)
	find := func() *backtrace.Frame {
		target := process.Target{PID: cmd.Process.Pid, UID: -1}
		tr, err := c.Capture(t.Context(), target, capture.Options{Deadline: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		frames := tr.Threads[0].Frames
		i := slices.IndexFunc(frames, func(f backtrace.Frame) bool { return strings.Contains(f.Function, "spinInScript") })
		if i < 0 {
			return nil
		}
		return &frames[i]
	}
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if f := find(); f != nil {
			if !strings.Contains(f.Note, "perf map") || f.Offset == 0 {
				t.Errorf("%+v", *f)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no name of the script's function")
		}
	}
	if os.Getuid() != 0 {
		t.Log("not root: a file of another user is not tried")
		return
	}
	if err := os.Chown(file, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if f := find(); f != nil {
		t.Errorf("by a file of another user: %+v", *f)
	}
}
