package ptrace

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestKernelWorker captures all threads of a process that has a worker thread of the kernel. The worker must not be
// stopped, and its work must not fail. The snapshot shows where in the kernel it is.
func TestKernelWorker(t *testing.T) {
	t.Parallel()
	for name, capture := range map[string]engine{
		"stop": Capture, "nonstop": observe.Observe,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pipe, c := startUring(t)
			for range 20 {
				snap, err := capture(t.Context(), anyTarget(c.pid), snapshot.Options{AllThreads: true, Deadline: patience})
				if err != nil {
					t.Fatal(err)
				}
				i := slices.IndexFunc(snap.Threads, func(th snapshot.Thread) bool { return strings.HasPrefix(th.Name, "iou-wrk") })
				if i <= 0 || !errors.Is(snap.Threads[i].Err, snapshot.ErrKernelWorker) || snap.Threads[0].Err != nil {
					t.Fatalf("%+v", snap.Threads)
				}
				w := &snap.Threads[i]
				asleep := w.State == 'S' || w.State == 'R' // or about to be
				if w.Registers != nil || w.Syscall != nil || !asleep || w.WaitChannel == "" && len(w.KernelStack) == 0 {
					t.Errorf("%+v", w)
				}
				snap.Release()
			}
			f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			if fd, err := strconv.Atoi(c.line(t)); err != nil || fd < 0 {
				t.Errorf("the request ended with %d, %v", fd, err)
			}
		})
	}
}

// startUring starts a process with a request that waits for another process to open the pipe.
func startUring(t *testing.T) (pipe string, c *child) {
	t.Helper()
	dir := t.TempDir()
	program, pipe := filepath.Join(dir, "uring"), filepath.Join(dir, "pipe")
	if out, err := exec.Command("gcc", "-O1", "-Wall", "-o", program, "testdata/uring.c").CombinedOutput(); err != nil {
		t.Skipf("no C compiler, or no io_uring for it: %v\n%s", err, out)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 0, 0, 0); errno == unix.ENOSYS || errno == unix.EPERM {
		t.Skipf("no io_uring here: %v", errno)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	c = startChild(t, exec.Command(program, pipe))
	for deadline := time.Now().Add(3 * time.Minute); ; {
		tids, err := process.Threads(c.pid)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("no worker: %v, %v", tids, err)
		}
		for _, tid := range tids {
			if stat, err := process.ReadTaskStat(c.pid, tid); err == nil && stat.Worker() && stat.State == 'S' {
				return pipe, c
			}
		}
	}
}
