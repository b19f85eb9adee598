package ptrace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/procfs"
)

// mustObserve observes a process, which must not notice.
func mustObserve(t testing.TB, pid int, o Options) *Snapshot {
	t.Helper()
	s, err := Observe(t.Context(), anyTarget(pid), o)
	if err != nil {
		t.Fatal(err)
	}
	if s.Pause != 0 || len(s.Maps) == 0 || len(s.Threads) == 0 {
		t.Errorf("pause %v, %d maps, %d threads", s.Pause, len(s.Maps), len(s.Threads))
	}
	return s
}

// checkAsleep compares the observation of a sleeping thread with a stop.
func checkAsleep(t testing.TB, seen, stopped *Thread) {
	t.Helper()
	if seen.Syscall == nil || seen.Registers != nil || seen.Err != nil {
		t.Fatalf("thread %+v", seen)
	}
	var registers [maxRegisters]byte
	sp, _ := spOf(&registers, copy(registers[:], stopped.Registers))
	if seen.Syscall.SP != sp {
		t.Errorf("stack pointer 0x%x instead of 0x%x", seen.Syscall.SP, sp)
	}
	if !same(seen.Stack, stopped.Stack) {
		t.Errorf("stack of %d bytes from 0x%x instead of %d from 0x%x",
			len(seen.Stack.Data), seen.Stack.Start, len(stopped.Stack.Data), stopped.Stack.Start)
	}
}

func TestObserveAsleep(t *testing.T) {
	c := startTarget(t, "sleep")
	untilState(t, c.pid, 'S')
	before, err := procfs.ReadStatus(c.pid)
	if err != nil {
		t.Fatal(err)
	}
	var s *Snapshot
	for range 300 {
		if s = mustObserve(t, c.pid, Options{}); s.Engine != EngineBlocked {
			t.Fatalf("engine %q", s.Engine)
		}
	}
	after, err := procfs.ReadStatus(c.pid)
	if err != nil || after.VoluntarySwitches != before.VoluntarySwitches ||
		after.InvoluntarySwitches != before.InvoluntarySwitches {
		t.Errorf("the process noticed: %+v, then %+v, %v", before, after, err)
	}
	checkAsleep(t, &s.Threads[0], &mustCapture(t, c.pid, Options{}).Threads[0])
	if s.Threads[0].Syscall.Number != sysPause {
		t.Errorf("system call %d", s.Threads[0].Syscall.Number)
	}
}

// TestObserveStopped checks that a group stop counts as a sleep.
func TestObserveStopped(t *testing.T) {
	c := startTarget(t, "busy")
	kill(t, c.pid, unix.SIGSTOP)
	untilState(t, c.pid, 'T')
	s := mustObserve(t, c.pid, Options{})
	if s.Engine != EngineBlocked || s.Threads[0].Syscall == nil || len(s.Threads[0].Stack.Data) == 0 {
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
	stopped := mustCapture(t, startTarget(t, "busy").pid, Options{})
	for range 100 {
		s := mustObserve(t, c.pid, Options{})
		if s.Engine != EngineRunning {
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
		if s := mustObserve(t, c.pid, Options{}); s.Threads[0].Err != nil || len(s.Threads[0].Stack.Data) == 0 {
			t.Fatalf("engine %q, %v", s.Engine, s.Threads[0].Err)
		}
	}
}

// TestObserveRestless observes a process that sleeps and runs for about 100 µs each.
func TestObserveRestless(t *testing.T) {
	c := startTarget(t, "restless")
	count := map[string]int{}
	for range 300 {
		count[mustObserve(t, c.pid, Options{}).Engine]++
	}
	t.Logf("engines: %v", count)
	if count[EngineBlocked]+count[EngineRunning] != 300 {
		t.Errorf("engines: %v", count)
	}
}

func TestObserveDeepStack(t *testing.T) {
	c := startTarget(t, "deep", "4000")
	untilState(t, c.pid, 'S')
	s := mustObserve(t, c.pid, Options{MaxStack: 16 << 20})
	if n := len(s.Threads[0].Stack.Data); n < 4000<<10 || s.Threads[0].Stack.Cut {
		t.Errorf("%d bytes, cut %v", n, s.Threads[0].Stack.Cut)
	}
	s = mustObserve(t, c.pid, Options{MaxStack: 1 << 20})
	if n := len(s.Threads[0].Stack.Data); n != 1<<20 || !s.Threads[0].Stack.Cut {
		t.Errorf("%d bytes, cut %v", n, s.Threads[0].Stack.Cut)
	}
	needSampling(t)
	c = startTarget(t, "deepbusy", "4000")
	s = mustObserve(t, c.pid, Options{})
	if n := len(s.Threads[0].Stack.Data); s.Engine != EngineRunning || n < 60<<10 || n > 64<<10 ||
		!s.Threads[0].Stack.Cut {
		t.Errorf("engine %q, %d bytes, cut %v", s.Engine, n, s.Threads[0].Stack.Cut)
	}
}

// TestObserveUninterruptible observes the parent of a vfork child, which no signal and no tracer can stop.
func TestObserveUninterruptible(t *testing.T) {
	c := startTarget(t, "frozen")
	untilState(t, c.pid, 'D')
	_, err := Capture(t.Context(), anyTarget(c.pid), Options{Deadline: 50 * time.Millisecond})
	if !errors.Is(err, ErrDeadline) {
		t.Errorf("stop: %v", err)
	}
	s := mustObserve(t, c.pid, Options{})
	th := &s.Threads[0]
	if s.Engine != EngineBlocked || th.State != 'D' || len(th.Stack.Data) == 0 {
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
		want := mustCapture(t, c.pid, Options{})
		args := []string{"-o", "/dev/null", "-p", strconv.Itoa(c.pid)}
		if name == "gdb" {
			args = []string{"-nx", "-q", "-p", strconv.Itoa(c.pid)}
		}
		tracer := exec.Command(program, args...)
		stdin, err := tracer.StdinPipe()
		if err := errors.Join(err, tracer.Start()); err != nil {
			t.Fatal(err)
		}
		until(t, name+" traces", func() bool { return traced(t, c.pid) && stateOf(t, c.pid) != 'R' })
		if _, err := Capture(t.Context(), anyTarget(c.pid), Options{}); !errors.Is(err, ErrTraced) {
			t.Errorf("%s: stop: %v", name, err)
		}
		s := mustObserve(t, c.pid, Options{})
		if s.Engine != EngineBlocked {
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
	c := startTarget(t, "threads", strconv.Itoa(n))
	s := mustObserve(t, c.pid, Options{AllThreads: true})
	if len(s.Threads) != n+1 || s.Threads[0].TID != c.pid {
		t.Fatalf("%d threads", len(s.Threads))
	}
	for i := range s.Threads {
		if s.Threads[i].Err != nil || len(s.Threads[i].Stack.Data) == 0 {
			t.Errorf("thread %+v", s.Threads[i].Err)
		}
	}
	if perfRegisters == nil {
		t.Log("no sampling on this architecture: threads that come and go, which may always be awake, are not tried")
		return
	}
	c = startTarget(t, "churn")
	ended := 0
	for range 100 {
		for _, th := range mustObserve(t, c.pid, Options{AllThreads: true}).Threads {
			switch {
			case errors.Is(th.Err, ErrExited):
				ended++
			case th.Err != nil:
				t.Errorf("thread %d: %v", th.TID, th.Err)
			}
		}
	}
	t.Logf("%d threads ended before they were seen", ended)
}

func TestObserveRefuses(t *testing.T) {
	c := startTarget(t, "sleep")
	untilState(t, c.pid, 'S')
	stat, err := procfs.ReadStat(c.pid)
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		target Target
		want   error
	}{
		"start time": {Target{PID: c.pid, StartTime: stat.StartTime + 1, UID: -1}, ErrRecycled},
		"parent":     {Target{PID: c.pid, PPID: 1, UID: -1}, ErrRecycled},
		"user":       {Target{PID: c.pid, UID: 4242}, ErrRecycled},
		"itself":     {anyTarget(os.Getpid()), ErrSelf},
		"nothing":    {anyTarget(0), ErrInvalidPID},
	} {
		if _, err := Observe(t.Context(), tt.target, Options{}); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Observe(canceled, anyTarget(c.pid), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if _, err := Observe(t.Context(), anyTarget(c.pid), Options{}); !errors.Is(err, ErrExited) {
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
	_, err = Observe(context.Background(), anyTarget(pid), Options{})
	fmt.Fprintln(os.Stdout, err)
	return 0
}

func TestMapsBetween(t *testing.T) {
	code := func(start uint64, inode uint64) procfs.Mapping {
		return procfs.Mapping{Start: start, End: start + 0x1000, Perms: procfs.Read | procfs.Exec, Inode: inode}
	}
	data := procfs.Mapping{Start: 0x9000, End: 0xa000, Perms: procfs.Read}
	grown := data
	grown.Start = 0x8000
	before := []procfs.Mapping{code(0x1000, 1), code(0x2000, 2), code(0x4000, 4), data}
	after := []procfs.Mapping{code(0x1000, 1), code(0x2000, 3), code(0x3000, 5), grown}
	want := []procfs.Mapping{code(0x1000, 1), code(0x3000, 5), grown}
	if got := mapsBetween(before, after); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// TestParseRing parses a hand-made sample, and its beginnings after truncation.
func TestParseRing(t *testing.T) {
	record := makeSample(t, 16)
	ring := slices.Concat([]byte{2, 0, 0, 0, 0, 0, 16, 0, 1, 1, 1, 1, 1, 1, 1, 1}, record)
	s, err := parseRing(ring)
	if err != nil || s == nil || len(s.stack) != 16 || len(s.registers) != prStatusSize {
		t.Fatalf("%+v, %v", s, err)
	}
	for n := range ring {
		if s, err := parseRing(ring[:n]); s != nil || err == nil {
			t.Errorf("%d bytes: %+v, %v", n, s, err)
		}
	}
}

// needSampling skips a test of running threads if they cannot be sampled.
func needSampling(t testing.TB) {
	t.Helper()
	if perfRegisters == nil {
		t.Skip("no sampling on this architecture")
	}
}

// makeSample makes a record as the kernel does.
func makeSample(t testing.TB, stack int) []byte {
	t.Helper()
	needSampling(t)
	p := binary.NativeEndian.AppendUint32(nil, unix.PERF_RECORD_SAMPLE)
	p = append(p, 0, 0, 0, 0)
	p = binary.NativeEndian.AppendUint64(p, 0)
	p = binary.NativeEndian.AppendUint64(p, unix.PERF_SAMPLE_REGS_ABI_64)
	for i := range perfRegisters {
		p = binary.NativeEndian.AppendUint64(p, uint64(i))
	}
	p = binary.NativeEndian.AppendUint64(p, uint64(stack+8))
	p = append(p, make([]byte, stack+8)...)
	p = binary.NativeEndian.AppendUint64(p, uint64(stack))
	binary.NativeEndian.PutUint16(p[6:], uint16(len(p)))
	return p
}

func FuzzParseRing(f *testing.F) {
	f.Add(makeSample(f, 16))
	f.Add([]byte{9, 0, 0, 0, 0, 0, 8, 0})
	f.Fuzz(func(t *testing.T, p []byte) {
		if s, err := parseRing(p); (s != nil) != (err == nil) {
			t.Errorf("%v and %v", s, err)
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	for _, what := range []string{"sleep", "busy"} {
		b.Run(what, func(b *testing.B) {
			c := startTarget(b, what)
			for b.Loop() {
				if _, err := Observe(b.Context(), anyTarget(c.pid), Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
