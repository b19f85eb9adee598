package ptrace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// resetOnFork is SCHED_RESET_ON_FORK (sched(7)).
const resetOnFork = 0x40000000

// crowd keeps more threads busy than there are processors.
func crowd(t *testing.T) {
	t.Helper()
	for range 3*runtime.NumCPU() + 2 { // more than this program's threads could explain
		startTarget(t, "busy")
	}
	until(t, "the machine is crowded", func() bool { crowd, _ := cpuContended(); return crowd })
}

// TestRunnable parses valid and invalid contents of /proc/loadavg.
func TestRunnable(t *testing.T) {
	for text, want := range map[string]int{"0.83 7.63 13.78 2/162 9393\n": 2, "0 0 0 4100/5000 1": 4100, "7/1": 7} {
		if got, ok := parseRunnable([]byte(text)); got != want || !ok {
			t.Errorf("%q: %d, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "/", "1 2 3 x/5 1", "1 2 3 4"} {
		if got, ok := parseRunnable([]byte(text)); ok {
			t.Errorf("%q: %d", text, got)
		}
	}
	text, err := os.ReadFile("/proc/loadavg")
	if n, ok := parseRunnable(text); err != nil || !ok || n < 1 {
		t.Errorf("%q: %d, %v, %v", text, n, ok, err)
	}
}

// TestProcessorContention checks when the machine counts as contended, and when a processor is free for the target.
func TestProcessorContention(t *testing.T) {
	for _, tt := range []struct {
		runnable, processors, used int
		crowd, room                bool
	}{
		{1, 2, 1, false, true},   // only this thread
		{2, 2, 1, false, true},   // and the runtime's monitor, or the target
		{3, 2, 1, true, false},   // one thread must wait
		{2, 2, 2, false, false},  // two captures side by side
		{4, 2, 2, false, false},  // and the threads that they woke
		{5, 2, 2, true, false},   // and another thread
		{4, 64, 16, false, true}, // few on a large machine
		{64, 64, 16, false, false},
		{1, 1, 1, false, true},
		{2, 1, 1, true, false},
	} {
		if crowd, room := judge(tt.runnable, tt.processors, tt.used); crowd != tt.crowd || room != tt.room {
			t.Errorf("%+v: %v, %v", tt, crowd, room)
		}
	}
}

// mostUrgent captures a process that cannot stop, and returns how many threads had real-time priority at the same time until the
// deadline.
func mostUrgent(t *testing.T, pid int, deadline time.Duration) (most int) {
	t.Helper()
	done := make(chan error)
	go func() {
		_, err := Capture(t.Context(), anyTarget(pid), snapshot.Options{Deadline: deadline})
		done <- err
	}()
	for {
		select {
		case err := <-done:
			if !errors.Is(err, ErrDeadline) {
				t.Fatalf("a process that cannot stop: %v", err)
			}
			return most
		default:
			most = max(most, urgentThreads(t))
		}
	}
}

// urgentThreads returns how many threads of this process have real-time priority now.
func urgentThreads(t *testing.T) (n int) {
	t.Helper()
	threads, err := process.Threads(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, tid := range threads {
		policy, _, errno := unix.RawSyscall(unix.SYS_SCHED_GETSCHEDULER, uintptr(tid), 0, 0)
		if errno == 0 && int(policy&^resetOnFork) == unix.SCHED_FIFO {
			n++
		}
	}
	return n
}

// TestPriorityDuringStop checks that the thread has real-time priority while it waits for the stop, if permitted. It
// must be an ordinary thread again before the Go scheduler regains control, whether the target stopped or not. The
// parent of a vfork child is a target that does not stop.
func TestPriorityDuringStop(t *testing.T) {
	may := MayHurry()
	crowd(t)
	hook := func(at step) {
		policy, _, errno := unix.RawSyscall(unix.SYS_SCHED_GETSCHEDULER, 0, 0, 0)
		if got := policy &^ resetOnFork; errno != 0 || got != 0 {
			t.Errorf("%s with policy %d, %v", at, got, errno)
		}
	}
	quick := startTarget(t, "sleep")
	for range 50 {
		if _, err := captureWith(t.Context(), anyTarget(quick.pid), snapshot.Options{Deadline: patience}, hook); err != nil {
			t.Fatal(err)
		}
	}
	never := startTarget(t, "frozen")
	untilState(t, never.pid, 'D')
	until(t, "real-time priority", func() bool { // where the crowd is not kept from running just then
		urgent := mostUrgent(t, never.pid, 50*time.Millisecond)
		if urgent > 0 && !may || urgent > 1 {
			t.Errorf("%d threads with real-time priority", urgent)
		}
		return urgent > 0 || !may
	})
	if n := urgentThreads(t); n > 0 {
		t.Errorf("%d threads with real-time priority after the capture", n)
	}
	for range 50 { // by the same threads
		if _, err := captureWith(t.Context(), anyTarget(quick.pid), snapshot.Options{Deadline: patience}, hook); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("may have real-time priority: %v", may)
	if os.Getenv("PGSB_TEST_ORDINARY") != "" || !may || os.Geteuid() != 0 {
		return
	}
	t.Run("where it may not", func(t *testing.T) { priorityWithLimit(t, 0) })
	t.Run("by the resource limit alone", func(t *testing.T) { priorityWithLimit(t, 1) })
}

// TestPriorityWithQuota checks that a thread with a quota of processor time has real-time priority during a stop,
// although processors are free.
func TestPriorityWithQuota(t *testing.T) {
	if !MayHurry() {
		t.Skip("this process may not have real-time priority")
	}
	idle, err := os.Create(filepath.Join(t.TempDir(), "loadavg"))
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	if _, err := idle.WriteString("0.00 0.00 0.00 1/100 1\n"); err != nil {
		t.Fatal(err)
	}
	defer func(load func() int, quota func() bool) { loadFile, hasQuota = load, quota }(loadFile, hasQuota)
	loadFile, hasQuota = func() int { return int(idle.Fd()) }, func() bool { return true }
	never := startTarget(t, "frozen")
	untilState(t, never.pid, 'D')
	until(t, "real-time priority", func() bool { // this test may get no processor just then
		urgent := mostUrgent(t, never.pid, time.Second)
		if crowd, _ := cpuContended(); urgent > 1 || crowd {
			t.Errorf("%d threads with real-time priority; the machine is crowded: %v", urgent, crowd)
		}
		return urgent == 1
	})
}

// priorityWithLimit runs the same test in a process that has only the limit.
func priorityWithLimit(t *testing.T, limit uint64) {
	version, err := exec.CommandContext(t.Context(), "setpriv", "--version").Output()
	if err != nil || !strings.Contains(string(version), "util-linux") {
		t.Skip("no setpriv of util-linux here") // busybox's setpriv does not support bounding sets
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_RTPRIO, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_RTPRIO, &unix.Rlimit{Cur: limit, Max: max(limit, before.Max)}); err != nil {
		t.Skipf("root may not raise RLIMIT_RTPRIO here, for want of CAP_SYS_RESOURCE: %v", err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_RTPRIO, &before) }()
	cmd := exec.CommandContext(t.Context(), "setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice", self,
		"-test.run=^TestPriorityDuringStop$", "-test.v")
	cmd.Env = append(os.Environ(), "PGSB_TEST_ORDINARY=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), fmt.Sprintf("may have real-time priority: %v", limit > 0)) {
		t.Errorf("%v\n%s", err, out)
	}
}
