package ptrace

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestObserveBounded observes a process whose stack has a missing page, so that the kernel never returns from reading
// it. The caller must get an error in time, and later callers must get it at once. After the process has ended,
// observing must work again.
func TestObserveBounded(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Skip("needs root, to make the kernel wait for a page that no process provides")
	}
	c := startTarget(t, "missing")
	untilState(t, c.pid, 'S')
	look := func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		_, err := observe.Observe(ctx, anyTarget(c.pid), snapshot.Options{Deadline: 200 * time.Millisecond})
		return time.Since(began), err
	}
	const most = time.Minute // with much to spare on a busy machine
	took, err := look(t.Context())
	if !errors.Is(err, process.ErrUnreachable) || !errors.Is(err, observe.ErrNotObserved) || took > most {
		t.Fatalf("after %s: %v", took, err)
	}
	const more = 1000
	began := time.Now()
	for range more {
		if _, err := look(t.Context()); !errors.Is(err, process.ErrUnreachable) {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > more*100*time.Millisecond { // each that waits takes 200 ms
		t.Errorf("%d more after %s", more, took)
	}
	checkDetached(t, c.pid)
	kill(t, c.pid, unix.SIGKILL)
	until(t, "the first look is over", func() bool {
		_, err := look(t.Context())
		return !errors.Is(err, process.ErrUnreachable)
	})
}

// TestObserveCanceled checks the same for a caller that cancels.
func TestObserveCanceled(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Skip("needs root, to make the kernel wait for a page that no process provides")
	}
	c := startTarget(t, "missing")
	untilState(t, c.pid, 'S')
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	began := time.Now()
	_, err := observe.Observe(ctx, anyTarget(c.pid), snapshot.Options{Deadline: time.Hour})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
}

// TestCaptureRemoved captures a process with a stack page that nothing provides. The capture must not stop the
// process for unreadable memory.
func TestCaptureRemoved(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Skip("needs root, to make the kernel wait for a page that no process provides")
	}
	c := startTarget(t, "removed")
	untilState(t, c.pid, 'S')
	began := time.Now()
	_, err := Capture(t.Context(), anyTarget(c.pid), snapshot.Options{Deadline: 200 * time.Millisecond})
	if late := new(DeadlineError); !errors.As(err, &late) || time.Since(began) > 10*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
	checkDetached(t, c.pid)
	if stat, err := process.ReadStat(c.pid); err != nil || stat.State != 'S' {
		t.Errorf("state %c, %v", stat.State, err)
	}
}
