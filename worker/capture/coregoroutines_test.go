package capture_test

import (
	"errors"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming"
)

// TestCoreGoroutines compares the goroutines in a core file of the kernel with the list that the program has printed
// before.
func TestCoreGoroutines(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(buildGoProgram(t, "goroutines", "0", "-ldflags=-s -w"), "spin")
	cmd.Dir, cmd.Env = t.TempDir(), []string{"GOTRACEBACK=crash"}
	dump := startReading(t, cmd)
	var limit unix.Rlimit
	err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_CORE, nil, &limit)
	if err == nil {
		limit.Cur = limit.Max
		err = unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_CORE, &limit, nil)
	}
	if err == nil {
		err = cmd.Process.Signal(syscall.SIGQUIT)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	cores, err := filepath.Glob(filepath.Join(cmd.Dir, "core*"))
	if err != nil || len(cores) != 1 {
		t.Skipf("the kernel writes no core file into the working directory: %s", cmd.ProcessState)
	}
	c, err := capture.ReadCore(cores[0], capture.CoreOptions{MaxFrames: 5000, Goroutines: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Trace.Threads) > 0 || len(c.Refused) > 0 {
		t.Errorf("%d threads, refused %v", len(c.Trace.Threads), c.Refused)
	}
	compareWithDump(t, c.Trace, dump)
}

// TestCoreWithoutGo checks the error for the goroutines of a C program's core.
func TestCoreWithoutGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := capture.ReadCore(unpack(t, dir, "x86_64-cfi.core"),
		capture.CoreOptions{Exe: unpack(t, dir, "x86_64-cfi"), Goroutines: true})
	if !errors.Is(err, naming.ErrNotGo) {
		t.Errorf("error %v", err)
	}
}
