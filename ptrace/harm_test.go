package ptrace

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// storm queues real-time signals to a process while do runs, and checks that all arrived in order.
func storm(t *testing.T, nap string, do func(pid int) (stop func() int)) {
	t.Helper()
	signals := strconv.Itoa(full(20_000, 100_000))
	c := startTarget(t, "storm", signals)
	stop := do(c.pid)
	startTarget(t, "send", strconv.Itoa(c.pid), signals, nap)
	line := c.line(t)
	n := stop()
	figure.Printf(t, "%s, in %d captures", line, n)
	if line != "received "+signals+" disorder 0" {
		t.Error(line)
	}
	if n == 0 {
		t.Error("no captures")
	}
}

// TestSignalStorm checks that no signal is lost, doubled or reordered.
func TestSignalStorm(t *testing.T) {
	for _, nap := range []string{"0", "200"} { // after every 20 signals
		storm(t, nap, func(pid int) func() int { return captureContinuously(t, pid, 2) })
	}
}

// captureRole captures a process endlessly, and prints a line after every ten captures.
func captureRole(args []string) int {
	pid, _ := strconv.Atoi(args[0])
	os.Stdout.WriteString("ready\n")
	for {
		for i := range 10 {
			_, err := Capture(context.Background(), anyTarget(pid), snapshot.Options{AllThreads: i%2 == 1, Deadline: patience})
			if err != nil && !errors.Is(err, process.ErrTraced) && !errors.Is(err, process.ErrExited) {
				os.Stdout.WriteString(err.Error() + "\n")
				return 1
			}
		}
		os.Stdout.WriteString("10\n")
	}
}

// onceRole captures a process once and prints the result.
func onceRole(args []string) int {
	pid, _ := strconv.Atoi(args[0])
	_, err := Capture(context.Background(), anyTarget(pid), snapshot.Options{})
	var denied *process.PermissionError
	if errors.As(err, &denied) {
		os.Stdout.WriteString(string(denied.Reason) + "\n")
	}
	os.Stdout.WriteString(strings.ReplaceAll(errorText(err), "\n", " ") + "\n")
	return 0
}

func errorText(err error) string {
	if err == nil {
		return "captured"
	}
	return err.Error()
}

// actor is this test binary in another role.
func actor(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// killCapturers repeatedly starts capturing processes and kills them with SIGKILL, until stopped.
func killCapturers(t *testing.T, pid int) func() int {
	t.Helper()
	quit, result := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for ; ; n++ {
			select {
			case <-quit:
				result <- n
				return
			default:
			}
			cmd := actor("capture", strconv.Itoa(pid))
			stdout, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Error(err)
				continue
			}
			var b [6]byte
			_, _ = stdout.Read(b[:])
			time.Sleep(time.Duration(n%20) * 100 * time.Microsecond) // any moment will do
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}()
	return func() int { close(quit); return <-result }
}

// TestKilledCapturer kills the capturing process at any moment. The target must continue to run.
func TestKilledCapturer(t *testing.T) {
	for _, what := range []string{"sleep", "busy", "busythreads"} {
		t.Run(what, func(t *testing.T) {
			c := startTarget(t, what, "3")
			for range 20 {
				tracer := startChild(t, actor("capture", strconv.Itoa(c.pid)))
				if line := tracer.line(t); line != "10" {
					t.Fatal(line)
				}
				_ = tracer.Process.Kill()
				_ = tracer.Wait()
				checkUnharmed(t, c.pid)
			}
			mustCapture(t, c.pid, snapshot.Options{})
		})
	}
}

// TestSignalStormAndKilledCapturer: not even a capturer that is killed loses a signal.
func TestSignalStormAndKilledCapturer(t *testing.T) {
	storm(t, "2000", func(pid int) func() int { return killCapturers(t, pid) })
}

// frozen starts a process that is in uninterruptible sleep.
func frozen(t *testing.T) *child {
	t.Helper()
	c := startTarget(t, "frozen")
	untilState(t, c.pid, 'D')
	return c
}

func TestUninterruptible(t *testing.T) {
	t.Run("deadline", func(t *testing.T) {
		c := frozen(t)
		begin := time.Now()
		_, err := Capture(context.Background(), anyTarget(c.pid), snapshot.Options{Deadline: 50 * time.Millisecond})
		var late *DeadlineError
		if !errors.As(err, &late) || late.State != 'D' {
			t.Fatal(err)
		}
		t.Log(err, "after", time.Since(begin))
		checkDetached(t, c.pid)
		if stateOf(t, c.pid) != 'D' {
			t.Errorf("state %c", stateOf(t, c.pid))
		}
		thaw(t, c)
	})
	t.Run("cancel", func(t *testing.T) {
		c := frozen(t)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		_, err := captureWith(ctx, anyTarget(c.pid), snapshot.Options{Deadline: patience}, func(s step) {
			if s == stepWaiting {
				cancel()
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		checkDetached(t, c.pid)
		thaw(t, c)
	})
	t.Run("panic", func(t *testing.T) {
		c := frozen(t)
		_, err := captureWith(context.Background(), anyTarget(c.pid), snapshot.Options{Deadline: patience}, func(s step) {
			if s == stepWaiting {
				panic("test")
			}
		})
		if err == nil {
			t.Fatal("no error")
		}
		checkDetached(t, c.pid)
		thaw(t, c)
	})
	t.Run("wakes up", func(t *testing.T) {
		c := frozen(t)
		s, err := captureWith(context.Background(), anyTarget(c.pid), snapshot.Options{Deadline: patience}, func(s step) {
			if s == stepWaiting {
				_ = c.stdin.Close()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		checkSnapshot(t, s)
		checkUnharmed(t, c.pid)
	})
}

// TestReleaseNeedsNoProcessor checks that a target which stops only after the deadline of its capture is detached even if
// other goroutines use all processors of the Go scheduler.
func TestReleaseNeedsNoProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const attempts = 10 // a thread of an attempt may wait for a processor of a busy machine for too long
	for range attempts {
		if lateStop(t) {
			return
		}
	}
	t.Errorf("in %d attempts, the target stayed stopped until its capture got a processor", attempts)
}

// lateStop captures a process that stops shortly after the deadline, while the calling goroutine keeps the scheduler's only
// processor. It reports whether the process runs meanwhile.
func lateStop(t *testing.T) bool {
	t.Helper()
	c := frozen(t)
	stdin, ok := c.stdin.(interface{ Fd() uintptr })
	if !ok {
		t.Fatalf("%T has no descriptor", c.stdin)
	}
	fd := stdin.Fd()
	ended := make(chan error, 1)
	go func() {
		_, err := Capture(context.Background(), anyTarget(c.pid), snapshot.Options{Deadline: 200 * time.Millisecond})
		ended <- err
	}()
	var call *captureCall
	until(t, "the capture waits for the stop, or has ended", func() bool {
		activeCaptures.Lock()
		defer activeCaptures.Unlock()
		if now := activeCaptures.byPID[c.pid]; now != nil {
			call = now
		}
		// Naps before the scheduler sees a system call keep the only processor, so this goroutine does not see them.
		status, err := process.ReadStatus(c.pid)
		doing, _ := os.ReadFile("/proc/self/task/" + strconv.Itoa(status.TracerPID) + "/syscall")
		return err == nil && strings.HasPrefix(string(doing), strconv.Itoa(unix.SYS_NANOSLEEP)+" ") || len(ended) > 0
	})
	if call == nil {
		return false // it ended before it was seen
	}
	runtime.LockOSThread()
	s := &session{mask: blocked}
	deadline := s.clock() + int64(call.limit-time.Since(call.started))
	runs := s.thawAt(deadline+int64(10*time.Millisecond), c.pid, fd)
	s.release()
	runtime.UnlockOSThread()
	if err := <-ended; !errors.Is(err, ErrDeadline) {
		t.Errorf("the capture: %v", err)
	}
	checkUnharmed(t, c.pid)
	return runs
}

// thawAt waits for a time of the method clock, and then resumes a frozen process through its standard input. It reports
// whether the process then comes to rest. Because signals are blocked, and the function is nosplit, the Go scheduler
// cannot give the processor of this goroutine to another one.
//
//go:nosplit
//go:norace
func (s *session) thawAt(at int64, pid int, stdin uintptr) (runs bool) {
	s.block()
	for s.clock() < at {
		s.doze(lastNap)
	}
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, stdin, uintptr(unsafe.Pointer(&s.file.text)), 1)
	for end := at + int64(300*time.Millisecond); !runs && s.clock() < end; s.doze(lastNap) {
		runs = s.file.state(pid, pid) == 'S'
	}
	s.unblock()
	return runs
}

// thaw resumes a frozen process, and checks that it runs.
func thaw(t *testing.T, c *child) {
	t.Helper()
	_ = c.stdin.Close()
	untilState(t, c.pid, 'S')
	mustCapture(t, c.pid, snapshot.Options{})
}

func TestTraced(t *testing.T) {
	c := startTarget(t, "sleep")
	tracer := startTarget(t, "tracer", strconv.Itoa(c.pid))
	_, err := Capture(context.Background(), anyTarget(c.pid), snapshot.Options{Deadline: patience})
	var traced *process.TracedError
	if !errors.As(err, &traced) || traced.Tracer != tracer.pid || traced.Name != "target" {
		t.Errorf("%v, tracer is %d", err, tracer.pid)
	}
	t.Log(err)
	status, err := process.ReadStatus(c.pid)
	if err != nil || status.TracerPID != tracer.pid {
		t.Errorf("traced by %d, %v", status.TracerPID, err)
	}
	_ = tracer.Process.Kill()
	_ = tracer.Wait()
	mustCapture(t, c.pid, snapshot.Options{})
}

// TestRefused checks that errors explain why the kernel denies access.
func TestRefused(t *testing.T) {
	if unix.Getuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	const nobody = 65534
	ordinary := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	for _, test := range []struct {
		what   string
		as     *syscall.SysProcAttr // the target's user
		reason process.Reason
	}{
		{"sleep", nil, process.ReasonUID},
		{"undumpable", ordinary, process.ReasonDumpable},
		{"sleep", ordinary, ""},
	} {
		t.Run(test.what+" "+string(test.reason), func(t *testing.T) {
			if targetProgram == "" {
				t.Skip("no gcc to compile testdata/target.c with")
			}
			cmd := exec.Command(targetProgram, test.what)
			cmd.SysProcAttr = test.as
			c := startChild(t, cmd)
			tracer := actor("once", strconv.Itoa(c.pid))
			tracer.SysProcAttr = ordinary
			out, err := tracer.CombinedOutput()
			if err != nil || (test.reason != "" && !strings.HasPrefix(string(out), string(test.reason)+"\n")) ||
				(test.reason == "" && string(out) != "captured\n") {
				t.Errorf("%v: %s", err, out)
			}
			t.Logf("%s", out)
			checkUnharmed(t, c.pid)
		})
	}
}
