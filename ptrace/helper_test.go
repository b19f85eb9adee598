package ptrace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// redZone is the default of snapshot.Options.RedZone.
const redZone = 128

// targetProgram is testdata/target.c, compiled; "" if there is no C compiler.
var targetProgram string

// patience is how long the tests wait for what must happen, however busy the machine is.
const patience = 3 * time.Minute

// roleVariable makes the test binary play another role in a child process: it is a key of roles.
const roleVariable = "PTRACE_TEST_ROLE"

var roles = map[string]func(args []string) int{
	"capture": captureRole, "once": onceRole, "observe": observeRole, "reuse": reuseRole,
	"ending": endingRole, "suspend": suspendRole, "namespace": namespaceRole,
}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(roles[role](os.Args[1:]))
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	directory, err := os.MkdirTemp("", "ptrace-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(directory)
	if err := os.Chmod(directory, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	program := filepath.Join(directory, "target")
	out, err := exec.Command("gcc", "-O1", "-pthread", "-o", program, "testdata/target.c").CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		fmt.Fprintln(os.Stderr, "no gcc: tests with target processes are skipped")
	case err != nil:
		fmt.Fprintf(os.Stderr, "testdata/target.c: %v\n%s", err, out)
		return 1
	default:
		targetProgram = program
	}
	return m.Run()
}

// child is a process of testdata/target.c.
type child struct {
	*exec.Cmd

	pid    int
	first  string // the line that reported that it is ready
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

// startTarget starts a target and waits until it is ready. It is killed at the end of the test.
func startTarget(t testing.TB, args ...string) *child {
	t.Helper()
	if targetProgram == "" {
		t.Skip("no gcc to compile testdata/target.c with")
	}
	return startChild(t, exec.Command(targetProgram, args...))
}

func startChild(t testing.TB, cmd *exec.Cmd) *child {
	t.Helper()
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	// Use a separate process group whose parent is in the session. The tests may run in an orphaned process group,
	// whose processes the kernel does not stop by the terminal's stop signals.
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	c := &child{Cmd: cmd, pid: cmd.Process.Pid, stdin: stdin, stdout: bufio.NewReader(stdout)}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	if c.first = c.line(t); c.first != "ready" && !strings.HasPrefix(c.first, "ready ") {
		t.Fatalf("%v said %q", cmd.Args, c.first)
	}
	return c
}

func (c *child) line(t testing.TB) string {
	t.Helper()
	line, err := c.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %v", c.Args, err)
	}
	return strings.TrimSuffix(line, "\n")
}

// anyTarget accepts any process with this id.
func anyTarget(pid int) process.Target { return process.Target{PID: pid, UID: -1} }

// until waits for a condition.
func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for begin := time.Now(); !condition(); time.Sleep(100 * time.Microsecond) {
		if time.Since(begin) > patience {
			t.Fatalf("waited too long: %s", what)
		}
	}
}

func stateOf(t testing.TB, pid int) byte {
	t.Helper()
	stat, err := process.ReadStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	return stat.State
}

func untilState(t testing.TB, pid int, state byte) {
	t.Helper()
	until(t, "state "+string(state), func() bool { return stateOf(t, pid) == state })
}

// checkUnharmed verifies that no thread of the process is stopped or traced.
func checkUnharmed(t testing.TB, pid int) {
	t.Helper()
	checkDetached(t, pid)
	tids, err := process.Threads(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, tid := range tids {
		status, err := process.ReadTaskStatus(pid, tid)
		if errors.Is(err, process.ErrGone) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if status.State == 'T' || status.State == 't' {
			t.Errorf("thread %d is in state %c", tid, status.State)
		}
	}
}

// traced reports whether any thread of the process has a tracer.
func traced(t testing.TB, pid int) bool {
	t.Helper()
	tids, err := process.Threads(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, tid := range tids {
		if status, err := process.ReadTaskStatus(pid, tid); err == nil && status.TracerPID != 0 {
			return true
		}
	}
	return false
}

// checkDetached verifies that no thread of the process is traced.
func checkDetached(t testing.TB, pid int) {
	t.Helper()
	tids, err := process.Threads(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, tid := range tids {
		status, err := process.ReadTaskStatus(pid, tid)
		if err == nil && status.TracerPID != 0 {
			t.Errorf("thread %d is traced by %d", tid, status.TracerPID)
		}
	}
}

// checkSnapshot verifies conditions for every complete capture of a process with a valid stack.
func checkSnapshot(t testing.TB, s *snapshot.Snapshot) {
	t.Helper()
	if s.Engine != snapshot.EngineStop || s.Pause <= 0 || s.Pause > patience || len(s.Maps) == 0 ||
		len(s.Threads) == 0 {
		t.Errorf("engine %q, pause %v, %d maps, %d threads", s.Engine, s.Pause, len(s.Maps), len(s.Threads))
	}
	for i := range s.Threads {
		if thread := &s.Threads[i]; thread.Err == nil {
			checkThread(t, thread, s.Maps)
		}
	}
}

func checkThread(t testing.TB, thread *snapshot.Thread, maps []process.Mapping) {
	t.Helper()
	var registers [snapshot.MaxRegisters]byte
	sp, ok := snapshot.StackPointer(&registers, copy(registers[:], thread.Registers))
	if !ok {
		t.Fatalf("thread %d: no stack pointer in %d bytes of registers", thread.TID, len(thread.Registers))
	}
	end := thread.Stack.Start + uint64(len(thread.Stack.Data))
	if sp < thread.Stack.Start || sp-thread.Stack.Start > redZone || end <= sp {
		t.Errorf("thread %d: stack 0x%x to 0x%x does not hold the stack pointer 0x%x",
			thread.TID, thread.Stack.Start, end, sp)
	}
	top := false
	for _, m := range maps {
		top = top || m.End == end
	}
	if !top && !thread.Stack.Cut {
		t.Errorf("thread %d: stack ends at 0x%x, where no mapping does", thread.TID, end)
	}
}

// engine is Capture or observe.Observe.
type engine func(context.Context, process.Target, snapshot.Options) (*snapshot.Snapshot, error)

// mustCapture captures a process that must be unharmed afterwards.
func mustCapture(t testing.TB, pid int, o snapshot.Options) *snapshot.Snapshot {
	t.Helper()
	if o.Deadline == 0 {
		o.Deadline = patience
	}
	s, err := Capture(context.Background(), anyTarget(pid), o)
	if err != nil {
		t.Fatal(err)
	}
	checkSnapshot(t, s)
	checkUnharmed(t, pid)
	return s
}

// kill sends a signal to a process that the test started.
func kill(t testing.TB, pid int, sig unix.Signal) {
	t.Helper()
	if err := unix.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}
