package ptrace

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// TestStopNotMistakenForExit checks that the reaper does not take a stopped tracee for a dead one, and does not
// consume its stop. The kernel reports a stop only once, even to a caller that waits only for ends. A tracee that
// ends must be reaped.
func TestStopNotMistakenForExit(t *testing.T) {
	c := startTarget(t, "threads", "2")
	tids, err := process.Threads(c.pid)
	if err != nil || len(tids) < 3 {
		t.Fatalf("threads %v, %v", tids, err)
	}
	runtime.LockOSThread() // this one is the tracer
	defer runtime.UnlockOSThread()
	one, other := &tracee{tid: tids[1], phase: seized}, &tracee{tid: tids[2], phase: seized}
	defer endTracees(c.pid, one.tid, other.tid)
	u := newUndertaker()
	defer u.leave()
	for _, held := range []*tracee{one, other} {
		if err := seize(c.pid, held.tid); err != nil {
			t.Fatal(err)
		}
		held.interrupt()
		until(t, "a stop", func() bool { held.look(); return held.phase == stopped })
	}

	u.hold(other.tid)
	u.call()
	one.phase = exited // simulate a thread that looked dead
	if one.reap(false); one.phase != exited {
		t.Errorf("phase of a stopped thread: %d", one.phase)
	}
	for _, held := range []*tracee{one, other} {
		held.phase = seized
		if held.look(); held.phase != stopped {
			t.Errorf("phase %d: the stop has been taken away", held.phase)
		}
	}

	kill(t, c.pid, unix.SIGKILL)
	until(t, "an end", func() bool { one.reap(false); return one.phase == reaped })
	until(t, "another", func() bool { u.call(); u.mu.Lock(); defer u.mu.Unlock(); return len(u.reaped) > 0 })
	if reaped := u.leave(); len(reaped) != 1 || reaped[0] != other.tid {
		t.Errorf("reaped %v, not %d", reaped, other.tid)
	}
}

// endTracees kills a process and reaps the threads that this thread traces. Otherwise the process's parent would wait
// for them.
func endTracees(pid int, tids ...int) {
	_ = unix.Kill(pid, unix.SIGKILL)
	for _, tid := range tids {
		for {
			if _, err := unix.Wait4(tid, nil, unix.WALL, nil); err != nil && !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
}
