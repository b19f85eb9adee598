package ptrace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestLeaderless checks a process whose main thread has ended while other threads run.
func TestLeaderless(t *testing.T) {
	c := startTarget(t, "leaderless", "3")
	untilState(t, c.pid, 'Z')
	if _, err := Capture(context.Background(), anyTarget(c.pid), snapshot.Options{Deadline: patience}); !errors.Is(err, process.ErrExited) {
		t.Error(err)
	}
	s, err := Capture(context.Background(), anyTarget(c.pid), snapshot.Options{AllThreads: true, Deadline: patience})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Threads) != 4 || !errors.Is(s.Threads[0].Err, process.ErrExited) {
		t.Fatalf("%d threads, %v", len(s.Threads), s.Threads[0].Err)
	}
	for i := range s.Threads[1:] {
		if thread := &s.Threads[i+1]; thread.Err != nil || len(thread.Stack.Data) == 0 {
			t.Error(thread.TID, thread.Err)
		}
	}
	checkDetached(t, c.pid)
}

// TestMapsByThreads checks that an ended thread without mappings does not hide the mappings of its process.
func TestMapsByThreads(t *testing.T) {
	c := startTarget(t, "leaderless", "3")
	untilState(t, c.pid, 'Z')
	tids, err := process.Threads(c.pid)
	if err != nil || len(tids) != 4 || tids[0] != c.pid {
		t.Fatalf("threads %d of %d: %v", tids, c.pid, err)
	}
	s := &session{call: &captureCall{target: anyTarget(c.pid)}}
	if err := s.readMapsBy(tids[:1]); err != nil || len(s.maps) != 0 {
		t.Fatalf("the mappings of a thread that has ended: %d, %v", len(s.maps), err)
	}
	if err := s.readMapsBy(tids); err != nil || len(s.maps) == 0 || len(s.spans) == 0 {
		t.Errorf("those of the others: %d, %v", len(s.maps), err)
	}
	kept := len(s.maps)
	if err := s.readMapsBy(tids[:1]); err != nil || len(s.maps) != kept || len(s.spans) == 0 {
		t.Errorf("%d of %d mappings are left, %d spans, %v", len(s.maps), kept, len(s.spans), err)
	}
}

// TestThreadsComeAndGo: threads that come and go are either captured or reported.
func TestThreadsComeAndGo(t *testing.T) {
	c := startTarget(t, "churn")
	for range 100 {
		s, err := Capture(context.Background(), anyTarget(c.pid), snapshot.Options{AllThreads: true, Deadline: patience})
		if err != nil {
			t.Fatal(err)
		}
		for i := range s.Threads {
			thread := &s.Threads[i]
			if (thread.Err == nil) != (len(thread.Stack.Data) > 0) {
				t.Errorf("thread %d: %v and %d bytes of stack", thread.TID, thread.Err, len(thread.Stack.Data))
			}
			switch err := thread.Err; {
			case err == nil, errors.Is(err, process.ErrExited), errors.Is(err, snapshot.ErrNoStack):
			case errors.Is(err, ErrDeadline):
				t.Log(err) // as in TestAllThreads
			default:
				t.Error(err)
			}
		}
		checkUnharmed(t, c.pid)
	}
}

// TestExecFromThread captures a process that executes itself from other threads. Each capture must succeed or report
// an error, and the process must be detached afterwards. The execution waits for the ends of all other threads. This
// must work even while they are seized.
func TestExecFromThread(t *testing.T) {
	for _, others := range []string{"0", "20"} {
		t.Run(others, func(t *testing.T) { execFromThread(t, others) })
	}
}

func execFromThread(t *testing.T, others string) {
	t.Helper()
	c := startTarget(t, "phoenix", "0", others)
	captured := 0
	for i := range 400 {
		s, err := Capture(context.Background(), anyTarget(c.pid), snapshot.Options{AllThreads: i%2 == 1, Deadline: patience})
		switch {
		case err == nil:
			captured++
			if s.Threads[0].TID != c.pid {
				t.Error(s.Threads[0].TID)
			}
		case !errors.Is(err, process.ErrRecycled) && !errors.Is(err, process.ErrExited):
			t.Error(err)
		}
		// A thread that executes a program at this moment takes over the process's id. It is detached when the
		// tracing thread ends.
		for deadline := time.Now().Add(3 * time.Minute); traced(t, c.pid); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("capture %d (%v) left a thread traced:\n%s", i, err, whoTraces(c.pid))
			}
		}
	}
	figure.Printf(t, "captured %d of 400", captured)
	if captured == 0 {
		t.Error("never captured")
	}
}

// whoTraces shows the threads of a process, and the state of this process's threads.
func whoTraces(pid int) string {
	var b strings.Builder
	for _, of := range []int{pid, os.Getpid()} {
		tids, _ := process.Threads(of)
		for _, tid := range tids {
			fmt.Fprintf(&b, "process %d thread %d:", of, tid)
			for _, name := range []string{"stat", "syscall", "wchan", "stack"} {
				text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/%s", of, tid, name))
				fmt.Fprintf(&b, "\n  %s: %s", name, bytes.TrimSpace(text))
			}
			status, _ := process.ReadTaskStatus(of, tid)
			fmt.Fprintf(&b, "\n  traced by %d\n", status.TracerPID)
		}
	}
	stacks := make([]byte, 1<<20)
	b.Write(stacks[:runtime.Stack(stacks, true)])
	return b.String()
}

// TestExitDuringCapture kills the target at every step.
func TestExitDuringCapture(t *testing.T) {
	for _, at := range []step{stepMapped, stepSeized, stepDone} {
		t.Run(string(at), func(t *testing.T) {
			for i := range 20 {
				c := startTarget(t, "threads", "3")
				kills := 0
				_, err := captureWith(context.Background(), anyTarget(c.pid), snapshot.Options{AllThreads: i%2 == 1, Deadline: patience}, func(s step) {
					if s == at {
						kill(t, c.pid, unix.SIGKILL)
						kills++
					}
				})
				if kills != 1 || (at != stepDone && !errors.Is(err, process.ErrExited)) || (at == stepDone && err != nil) {
					t.Errorf("%d kills: %v", kills, err)
				}
				state, err := c.Process.Wait()
				if err != nil || !isKilled(state) {
					t.Errorf("the parent sees %v, %v", state, err)
				}
			}
		})
	}
}
func isKilled(state *os.ProcessState) bool {
	status, ok := state.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// TestCanceled: before the start, and at every step.
func TestCanceled(t *testing.T) {
	c := startTarget(t, "sleep")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Capture(ctx, anyTarget(c.pid), snapshot.Options{Deadline: patience}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for _, at := range []step{stepMapped, stepSeized} {
		ctx, cancel := context.WithCancel(context.Background())
		_, err := captureWith(ctx, anyTarget(c.pid), snapshot.Options{Deadline: patience}, func(s step) {
			if s == at {
				cancel()
			}
		})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Error(at, err)
		}
		checkUnharmed(t, c.pid)
	}
	ctx, cancel = context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	_, err := Capture(ctx, anyTarget(c.pid), snapshot.Options{Deadline: patience})
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrDeadline) {
		t.Error(err)
	}
}

// TestPanic checks that a panic becomes an error, with the target detached.
func TestPanic(t *testing.T) {
	c := startTarget(t, "sleep")
	for _, at := range []step{stepMapped, stepSeized, stepDone} {
		s, err := captureWith(context.Background(), anyTarget(c.pid), snapshot.Options{Deadline: patience}, func(s step) {
			if s == at {
				panic("test")
			}
		})
		if s != nil || err == nil {
			t.Error(at, err)
		}
		checkUnharmed(t, c.pid)
	}
	mustCapture(t, c.pid, snapshot.Options{})
}

// TestNoDescriptorIsNoExit checks that a process whose threads cannot be listed, because this program has no file
// descriptor left, does not count as exited.
func TestNoDescriptorIsNoExit(t *testing.T) {
	c := startTarget(t, "threads", "2")
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	_, err := captureWith(context.Background(), anyTarget(c.pid), snapshot.Options{AllThreads: true, Deadline: patience},
		func(s step) {
			if s == stepMapped {
				_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: old.Max})
			}
		})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if errors.Is(err, process.ErrExited) || !errors.Is(err, unix.EMFILE) {
		t.Error(err)
	}
	checkUnharmed(t, c.pid)
}
