package hostile

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/unwind/budget"
)

var program = flag.String("program", "", "test this program instead of one built from this source")

// envChild makes this test program run its arguments, and write the largest resident size of that command in kilobytes
// to descriptor 3. The kernel counts the memory of the process that starts a command as the command's own, and this test
// program is large after a while.
const envChild = "HOSTILE_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		os.Exit(child())
	}
	if reader := os.Getenv(envReader); reader != "" {
		os.Exit(read(reader, os.Args[1]))
	}
	flag.Parse()
	os.Exit(pgtest.RunWithProgram(m, program))
}

// child runs the command, and returns its exit status. A signal gives 255.
func child() int {
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the signal comes at the end of the thread
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, envChild+"=") })
	_ = cmd.Run()
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		_, _ = fmt.Fprint(os.NewFile(3, "result"), usage.Maxrss)
	}
	return cmd.ProcessState.ExitCode() & 255
}

// full reports whether every case runs.
func full() bool { return os.Getenv("PGSB_TEST_FULL") != "" }

// onlyFull skips a test that would take long, and makes it a parallel one.
func onlyFull(t *testing.T) {
	t.Helper()
	if !full() {
		t.Skip("PGSB_TEST_FULL is not set")
	}
	t.Parallel()
}

// cases returns the number of cases: few, or all.
func cases(few, all int) int {
	if full() {
		return all
	}
	return few
}

// deadline is how long a command may take on a crowded machine.
const deadline = 5 * time.Minute

// The program's own memory, which does not depend on the input, and the garbage of its collector, which is at most as
// much as the memory that package budget allows. doc/internals/defences.md states both.
const (
	ownMemory = 64 << 20
	garbage   = 2
)

// A counter counts what a command prints, and keeps the beginning.
type counter struct {
	n    int64
	head bytes.Buffer
}

func (c *counter) Write(p []byte) (int, error) {
	const most = 4 << 10
	c.n += int64(len(p))
	c.head.Write(p[:min(len(p), max(0, most-c.head.Len()))])
	return len(p), nil
}

// result is the outcome of a command.
type result struct {
	status   int
	memory   int64 // the largest resident size
	out, err counter
	took     time.Duration
}

// execute runs the program. It fails the test if the program does not end, or is killed by a signal.
func execute(t *testing.T, args ...string) *result {
	t.Helper()
	return run(t, nil, append([]string{*program}, args...)...)
}

// run executes a command with further variables in its environment.
func run(t *testing.T, env []string, args ...string) *result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	peak, err := os.CreateTemp(t.TempDir(), "peak")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = peak.Close() }()
	r := new(result)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &r.out, &r.err, []*os.File{peak}
	cmd.Env = append(os.Environ(), envChild+"=1", "TMPDIR="+t.TempDir(), "DEBUGINFOD_URLS=", "GOMEMLIMIT=", "GOGC=")
	cmd.Env = append(cmd.Env, env...)
	began := time.Now()
	_ = cmd.Run() // its status is examined below
	r.took, r.status = time.Since(began), cmd.ProcessState.ExitCode()
	text, readErr := os.ReadFile(peak.Name())
	kilobytes, parseErr := strconv.ParseInt(string(text), 10, 64)
	if err := errors.Join(readErr, parseErr); err != nil || r.status < 0 || r.status > 2 {
		t.Fatalf("%v: status %d (%v) after %s\n%s", args, r.status, err, r.took, r.err.head.String())
	}
	r.memory = kilobytes << 10
	return r
}

// measure runs the program on files, and compares its memory and its output with the sizes of the files. The program
// must not crash.
func measure(t *testing.T, rate budget.Rate, files []string, args ...string) *result {
	t.Helper()
	r := execute(t, args...)
	compare(t, r, rate, files, args...)
	return r
}

// readerMemory is the most that one of the readers may use. The largest file that any of them accepts has 16 MB.
const readerMemory = 160 << 20

// measureReader runs one of the readers on a file in a new process, and compares as measure does.
func measureReader(t *testing.T, reader, file string) *result {
	t.Helper()
	r := run(t, []string{envReader + "=" + reader}, os.Args[0], file)
	compare(t, r, budget.Image, []string{file}, reader)
	if r.memory > readerMemory {
		t.Errorf("%s: %d MB of memory, the limit is %d MB", reader, r.memory>>20, readerMemory>>20)
	}
	return r
}

// compare compares the memory and the output of a command with the sizes of the files.
func compare(t *testing.T, r *result, rate budget.Rate, files []string, args ...string) {
	t.Helper()
	var input int64
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		input += info.Size()
	}
	t.Logf("%d bytes of input: status %d, %d MB, %d bytes of output, %s: %.300s", input, r.status, r.memory>>20,
		r.out.n+r.err.n, r.took.Round(time.Millisecond), r.err.head.String())
	if limit := ownMemory + garbage*rate.Of(input); r.memory > limit {
		t.Errorf("%v: %d MB of memory for %d bytes of input, the limit is %d MB", args, r.memory>>20, input, limit>>20)
	}
	if limit := budget.Output.Of(input); r.out.n+r.err.n > limit {
		t.Errorf("%v: %d bytes of output for %d bytes of input, the limit is %d", args, r.out.n+r.err.n, input, limit)
	}
	if bytes.Contains(r.err.head.Bytes(), []byte("goroutine ")) {
		t.Errorf("%v: a crash:\n%s", args, r.err.head.String())
	}
}

// write makes a file of the test.
func write(t *testing.T, name string, data []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
