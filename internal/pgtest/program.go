package pgtest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// envPrograms is the environment variable for a directory in which the test programs of one run share the worker's program. The
// directory must be new for each run, because a program that is there is not built again.
const envPrograms = "PGSB_TEST_PROGRAMS"

// BuildProgram builds the worker's program at path, static and with the entry point of `make build`. If PGSB_TEST_PROGRAMS is
// set, the first caller builds the program in that directory, and path becomes a copy.
func BuildProgram(path string) error {
	dir := os.Getenv(envPrograms)
	if dir == "" {
		return buildProgram(path)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	shared := filepath.Join(dir, "pg_stat_backtrace")
	if _, err := os.Stat(shared); errors.Is(err, fs.ErrNotExist) {
		unfinished := shared + ".new"
		if err := buildProgram(unfinished); err != nil {
			return err
		}
		if err := os.Rename(unfinished, shared); err != nil {
			return err
		}
	}
	program, err := os.ReadFile(shared)
	if err != nil {
		return err
	}
	return WriteProgram(path, program)
}

func buildProgram(path string) error {
	build := exec.Command("go", "build", "-ldflags=-E=pg_stat_backtrace_start", "-o", path, "pg_stat_backtrace")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the program: %w\n%s", err, out)
	}
	return nil
}

// RunWithProgram is for TestMain. It builds the worker's program in a temporary directory that the servers' user can enter,
// sets *program to its path, runs the tests, and returns the exit status. If *program is set already, as in a virtual machine
// without Go, it builds nothing.
func RunWithProgram(m *testing.M, program *string) int {
	defer CloseIdle()
	if *program != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "pgtest")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		*program = filepath.Join(dir, "pg_stat_backtrace")
		err = BuildProgram(*program)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// RunOr is for TestMain of a test program that also starts itself as another process, such as a worker that runs as the
// server's user and may be killed. If the environment has a value for name, RunOr calls the callback other with this
// value instead of running the tests. It returns the exit status.
func RunOr(m *testing.M, name string, other func(value string) error) int {
	value := os.Getenv(name)
	if value == "" {
		defer CloseIdle()
		return m.Run()
	}
	if err := other(value); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Self copies the test program to a path at which the server's user can execute it, and returns this path.
func (s *Server) Self(t testing.TB) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(s.DataDir), "self")
	if _, err := os.Stat(path); err == nil {
		return path // an earlier test with this server has made the copy
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = WriteProgram(path, self)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// WriteProgram writes a program for execution. While the file is open for writing, no other test of the process can
// start processes. A new process inherits the open file until it executes its own program. Until then, executing this
// file would fail with "busy".
func WriteProgram(path string, data []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, data, 0o755)
}

// Suspend stops a process by SIGSTOP and returns when all its threads are stopped. Without the wait, the threads would run on
// until the thread that the kernel has chosen for the signal runs. On a busy machine, this takes long enough for the process
// to answer a request.
func Suspend(t testing.TB, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	Wait(t, "the process is stopped", func() bool {
		stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid))
		running := slices.ContainsFunc(stats, func(path string) bool {
			stat, err := os.ReadFile(path)
			_, rest, ok := bytes.Cut(stat, []byte(") "))
			return err == nil && (!ok || rest[0] != 'T')
		})
		return len(stats) > 0 && !running
	})
}
