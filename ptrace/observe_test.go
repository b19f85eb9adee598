package ptrace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// sampled reports whether running threads are sampled on this architecture.
const sampled = runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64"

// mustObserve observes a process, which must not notice.
func mustObserve(t testing.TB, pid int, o snapshot.Options) *snapshot.Snapshot {
	t.Helper()
	if o.Deadline == 0 {
		o.Deadline = patience
	}
	s, err := observe.Observe(t.Context(), anyTarget(pid), o)
	if err != nil {
		t.Fatal(err)
	}
	if s.Pause != 0 || len(s.Maps) == 0 || len(s.Threads) == 0 {
		t.Errorf("pause %v, %d maps, %d threads", s.Pause, len(s.Maps), len(s.Threads))
	}
	return s
}

// checkAsleep compares the observation of a sleeping thread with a stop.
func checkAsleep(t testing.TB, seen, stopped *snapshot.Thread) {
	t.Helper()
	if seen.Syscall == nil || seen.Registers != nil || seen.Err != nil {
		t.Fatalf("thread %+v", seen)
	}
	var registers [snapshot.MaxRegisters]byte
	sp, _ := snapshot.StackPointer(&registers, copy(registers[:], stopped.Registers))
	if seen.Syscall.SP != sp {
		t.Errorf("stack pointer 0x%x instead of 0x%x", seen.Syscall.SP, sp)
	}
	if seen.Stack.Start != stopped.Stack.Start || !bytes.Equal(seen.Stack.Data, stopped.Stack.Data) {
		t.Errorf("stack of %d bytes from 0x%x instead of %d from 0x%x",
			len(seen.Stack.Data), seen.Stack.Start, len(stopped.Stack.Data), stopped.Stack.Start)
	}
}

func TestObserveAsleep(t *testing.T) {
	c := startTarget(t, "sleep")
	untilState(t, c.pid, 'S')
	before, err := process.ReadStatus(c.pid)
	if err != nil {
		t.Fatal(err)
	}
	var s *snapshot.Snapshot
	for range 300 {
		if s = mustObserve(t, c.pid, snapshot.Options{}); s.Engine != snapshot.EngineBlocked {
			t.Fatalf("engine %q", s.Engine)
		}
	}
	after, err := process.ReadStatus(c.pid)
	if err != nil || after.VoluntarySwitches != before.VoluntarySwitches ||
		after.InvoluntarySwitches != before.InvoluntarySwitches {
		t.Errorf("the process noticed: %+v, then %+v, %v", before, after, err)
	}
	checkAsleep(t, &s.Threads[0], &mustCapture(t, c.pid, snapshot.Options{}).Threads[0])
	if s.Threads[0].Syscall.Number != sysPause {
		t.Errorf("system call %d", s.Threads[0].Syscall.Number)
	}
}

// TestObserveStopped checks that a group stop counts as a sleep.
func TestObserveStopped(t *testing.T) {
	c := startTarget(t, "busy")
	kill(t, c.pid, unix.SIGSTOP)
	untilState(t, c.pid, 'T')
	s := mustObserve(t, c.pid, snapshot.Options{})
	if s.Engine != snapshot.EngineBlocked || s.Threads[0].Syscall == nil || len(s.Threads[0].Stack.Data) == 0 {
		t.Errorf("engine %q, %+v", s.Engine, s.Threads[0].Syscall)
	}
	kill(t, c.pid, unix.SIGCONT)
	untilState(t, c.pid, 'R')
}

func TestObserveRunning(t *testing.T) {
	needSampling(t)
	c := startTarget(t, "busy")
	untilState(t, c.pid, 'R')
	// Not right after a capture: until the thread is on a processor again, it shows its old state.
	stopped := mustCapture(t, startTarget(t, "busy").pid, snapshot.Options{})
	for range 100 {
		s := mustObserve(t, c.pid, snapshot.Options{})
		if s.Engine != snapshot.EngineRunning {
			t.Fatalf("engine %q", s.Engine)
		}
		checkThread(t, &s.Threads[0], s.Maps)
		if len(stopped.Threads[0].Registers) != len(s.Threads[0].Registers) {
			t.Fatalf("%d bytes of registers instead of %d", len(s.Threads[0].Registers), len(stopped.Threads[0].Registers))
		}
	}
}

// TestObserveInKernel checks a thread that is almost always in the kernel. It has the registers of its entry into the
// kernel.
func TestObserveInKernel(t *testing.T) {
	needSampling(t)
	c := startTarget(t, "zero")
	untilState(t, c.pid, 'R')
	for range 20 {
		if s := mustObserve(t, c.pid, snapshot.Options{}); s.Threads[0].Err != nil || len(s.Threads[0].Stack.Data) == 0 {
			t.Fatalf("engine %q, %v", s.Engine, s.Threads[0].Err)
		}
	}
}

// TestObserveRestless observes a process that sleeps and runs for about 100 µs each.
func TestObserveRestless(t *testing.T) {
	c := startTarget(t, "restless")
	count := map[string]int{}
	for range 300 {
		count[mustObserve(t, c.pid, snapshot.Options{}).Engine]++
	}
	t.Logf("engines: %v", count)
	if count[snapshot.EngineBlocked]+count[snapshot.EngineRunning] != 300 {
		t.Errorf("engines: %v", count)
	}
}

func TestObserveDeepStack(t *testing.T) {
	c := startTarget(t, "deep", "4000")
	untilState(t, c.pid, 'S')
	s := mustObserve(t, c.pid, snapshot.Options{MaxStack: 16 << 20})
	if n := len(s.Threads[0].Stack.Data); n < 4000<<10 || s.Threads[0].Stack.Cut {
		t.Errorf("%d bytes, cut %v", n, s.Threads[0].Stack.Cut)
	}
	s = mustObserve(t, c.pid, snapshot.Options{MaxStack: 1 << 20})
	if n := len(s.Threads[0].Stack.Data); n != 1<<20 || !s.Threads[0].Stack.Cut {
		t.Errorf("%d bytes, cut %v", n, s.Threads[0].Stack.Cut)
	}
	needSampling(t)
	c = startTarget(t, "deepbusy", "4000")
	s = mustObserve(t, c.pid, snapshot.Options{})
	if n := len(s.Threads[0].Stack.Data); s.Engine != snapshot.EngineRunning || n < 60<<10 || n > 64<<10 ||
		!s.Threads[0].Stack.Cut {
		t.Errorf("engine %q, %d bytes, cut %v", s.Engine, n, s.Threads[0].Stack.Cut)
	}
}

// TestObserveUninterruptible observes the parent of a vfork child, which no signal and no tracer can stop.
func TestObserveUninterruptible(t *testing.T) {
	c := startTarget(t, "frozen")
	untilState(t, c.pid, 'D')
	_, err := Capture(t.Context(), anyTarget(c.pid), snapshot.Options{Deadline: 50 * time.Millisecond})
	if !errors.Is(err, ErrDeadline) {
		t.Errorf("stop: %v", err)
	}
	s := mustObserve(t, c.pid, snapshot.Options{})
	th := &s.Threads[0]
	if s.Engine != snapshot.EngineBlocked || th.State != 'D' || len(th.Stack.Data) == 0 {
		t.Errorf("engine %q, state %c, %d bytes of stack", s.Engine, th.State, len(th.Stack.Data))
	}
	t.Logf("in kernel: %s, %q", th.WaitChannel, th.KernelStack)
	if th.WaitChannel == "" {
		t.Error("no wait channel")
	}
	// Not all architectures have vfork, and kernels before 5.10 call the function _do_fork.
	if stack := strings.Join(th.KernelStack, " "); os.Geteuid() == 0 && !strings.Contains(stack, "kernel_clone") &&
		!strings.Contains(stack, "fork") {
		t.Errorf("kernel stack %q", th.KernelStack)
	}
}

// TestObserveTraced observes processes of another tracer, running and stopped by it.
func TestObserveTraced(t *testing.T) {
	for _, name := range []string{"strace", "gdb"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Logf("no %s: not tested with it", name)
			continue
		}
		c := startTarget(t, "sleep")
		untilState(t, c.pid, 'S')
		want := mustCapture(t, c.pid, snapshot.Options{})
		log := filepath.Join(t.TempDir(), "strace.log")
		args := []string{"-o", log, "-p", strconv.Itoa(c.pid)}
		if name == "gdb" {
			args = []string{"-nx", "-q", "-p", strconv.Itoa(c.pid)}
		}
		tracer := exec.Command(program, args...)
		stdin, err := tracer.StdinPipe()
		if err := errors.Join(err, tracer.Start()); err != nil {
			t.Fatal(err)
		}
		until(t, name+" traces", func() bool { return traced(t, c.pid) })
		if name == "strace" {
			kill(t, c.pid, unix.SIGWINCH) // only strace gets it
			until(t, "strace has reported the signal and waits", func() bool {
				reported, err := os.ReadFile(log)
				return err == nil && strings.Contains(string(reported), "SIGWINCH") && stateOf(t, tracer.Process.Pid) == 'S' &&
					stateOf(t, c.pid) == 'S'
			})
		} else {
			untilState(t, c.pid, 't') // gdb does not resume it
		}
		if _, err := Capture(t.Context(), anyTarget(c.pid), snapshot.Options{Deadline: patience}); !errors.Is(err, process.ErrTraced) {
			t.Errorf("%s: stop: %v", name, err)
		}
		s := mustObserve(t, c.pid, snapshot.Options{})
		if s.Engine != snapshot.EngineBlocked {
			t.Errorf("%s: engine %q", name, s.Engine)
		}
		checkAsleep(t, &s.Threads[0], &want.Threads[0])
		_ = stdin.Close() // gdb detaches at the end of its input
		if name == "strace" {
			_ = tracer.Process.Signal(syscall.SIGTERM)
		}
		_ = tracer.Wait()
		until(t, name+" has gone", func() bool { return !traced(t, c.pid) })
	}
}

func TestObserveThreads(t *testing.T) {
	const n = 20
	const slow = time.Minute // for an emulated machine with one processor
	c := startTarget(t, "threads", strconv.Itoa(n))
	s := mustObserve(t, c.pid, snapshot.Options{AllThreads: true, Deadline: slow})
	if len(s.Threads) != n+1 || s.Threads[0].TID != c.pid {
		t.Fatalf("%d threads", len(s.Threads))
	}
	for i := range s.Threads {
		if s.Threads[i].Err != nil || len(s.Threads[i].Stack.Data) == 0 {
			t.Errorf("thread %+v", s.Threads[i].Err)
		}
	}
	if !sampled {
		t.Log("no sampling on this architecture: threads that come and go, which may always be awake, are not tried")
		return
	}
	c = startTarget(t, "churn")
	ended, gone := 0, 0
	for range 100 {
		for _, th := range mustObserve(t, c.pid, snapshot.Options{AllThreads: true, Deadline: slow}).Threads {
			switch {
			case errors.Is(th.Err, process.ErrExited):
				ended++
			case errors.Is(th.Err, snapshot.ErrNoStack):
				gone++ // it ended between its registers and its stack
			case th.Err != nil:
				t.Errorf("thread %d: %v", th.TID, th.Err)
			}
		}
	}
	t.Logf("%d threads ended before they were seen, %d while they were", ended, gone)
	if gone > 5 {
		t.Errorf("%d threads have no stack", gone)
	}
}

func TestObserveRefuses(t *testing.T) {
	c := startTarget(t, "sleep")
	untilState(t, c.pid, 'S')
	stat, err := process.ReadStat(c.pid)
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		target process.Target
		want   error
	}{
		"start time": {process.Target{PID: c.pid, StartTime: stat.StartTime + 1, UID: -1}, process.ErrRecycled},
		"parent":     {process.Target{PID: c.pid, PPID: 1, UID: -1}, process.ErrRecycled},
		"user":       {process.Target{PID: c.pid, UID: 4242}, process.ErrRecycled},
		"itself":     {anyTarget(os.Getpid()), process.ErrSelf},
		"nothing":    {anyTarget(0), process.ErrInvalidPID},
	} {
		if _, err := observe.Observe(t.Context(), tt.target, snapshot.Options{Deadline: patience}); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := observe.Observe(canceled, anyTarget(c.pid), snapshot.Options{Deadline: patience}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if _, err := observe.Observe(t.Context(), anyTarget(c.pid), snapshot.Options{Deadline: patience}); !errors.Is(err, process.ErrExited) {
		t.Errorf("dead: %v", err)
	}
}

// TestObserveWithoutPermission observes as a user without permission.
func TestObserveWithoutPermission(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	for _, what := range []string{"sleep", "busy"} {
		c := startTarget(t, what)
		cmd := actor("observe", strconv.Itoa(c.pid))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "not permitted to trace: it runs as user 0") {
			t.Errorf("%s: %v: %s", what, err, out)
		}
	}
}

// observeRole prints the result of an observation.
func observeRole(args []string) int {
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return 2
	}
	_, err = observe.Observe(context.Background(), anyTarget(pid), snapshot.Options{})
	fmt.Fprintln(os.Stdout, err)
	return 0
}

// needSampling skips a test of running threads if they cannot be sampled.
func needSampling(t testing.TB) {
	t.Helper()
	if !sampled {
		t.Skip("no sampling on this architecture")
	}
}

func BenchmarkObserve(b *testing.B) {
	for _, what := range []string{"sleep", "busy"} {
		b.Run(what, func(b *testing.B) {
			c := startTarget(b, what)
			for b.Loop() {
				if _, err := observe.Observe(b.Context(), anyTarget(c.pid), snapshot.Options{Deadline: patience}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
