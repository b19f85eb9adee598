package functrace_test

import (
	"context"
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/measure/functrace"
	"pg_stat_backtrace/worker/pg/cluster"
)

// program is the path of the built program.
var program string

// envProgram names the built program where there is no Go to build it: in a virtual machine.
const envProgram = "PGSB_ARCH_PROGRAM"

func TestMain(m *testing.M) {
	program = os.Getenv(envProgram)
	os.Exit(pgtest.RunWithProgram(m, &program))
}

// needProbes skips a test where the kernel refuses the programs.
func needProbes(t *testing.T) {
	t.Helper()
	_, err := probe.Calibrate()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, probe.ErrUnsupported) {
		t.Skipf("this host cannot run the programs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// newCapturer returns the capturer that all tests share: it keeps the names of a server's functions.
func newCapturer(t *testing.T) *capture.Capturer {
	t.Helper()
	c, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var shared = sync.OnceValues(func() (*capture.Capturer, error) {
	return capture.New(capture.Config{AwaitNames: true, LinesWait: time.Minute})
})

// open makes a Tracer with the options, which finds the functions, and attaches the probes.
func open(t *testing.T, o functrace.Options) *functrace.Tracer {
	t.Helper()
	o.Title = cluster.Title
	tracer, err := functrace.New(newCapturer(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tracer.Close)
	switch err := tracer.Attach(probe.Cost{}); {
	case o.Calls && errors.Is(err, probe.ErrUnsupported):
		t.Skipf("this kernel cannot time calls: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	return tracer
}

// during traces while the function work runs, and returns the result.
func during(t *testing.T, tracer *functrace.Tracer, each func(*functrace.Event) error, work func()) *functrace.Result {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type outcome struct {
		result *functrace.Result
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		r, err := tracer.Run(ctx, 0, each)
		done <- outcome{r, err}
	}()
	work()
	cancel()
	o := <-done
	if o.err != nil {
		t.Fatal(o.err)
	}
	return o.result
}

// checkSums verifies that every hit with a stack is accounted for.
func checkSums(t *testing.T, r *functrace.Result) {
	t.Helper()
	for i := range r.Functions {
		f := &r.Functions[i]
		sum := f.Total()
		var listed uint64
		for j := range f.Stacks {
			listed += f.Stacks[j].Count
		}
		if sum.Hits != sum.Stacks+sum.Lost+sum.Skipped || listed+f.Unread != sum.Stacks {
			t.Errorf("%s: %d hits are not %d stacks + %d lost + %d skipped; %d stacks are listed, %d unread", f.Name,
				sum.Hits, sum.Stacks, sum.Lost, sum.Skipped, listed, f.Unread)
		}
	}
}

// number reads a number of rounds from the environment.
func number(name string, fallback int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return fallback
}

// binDirs returns Debian's server, and servers with symbols of two versions, as far as there are some.
func binDirs(t *testing.T) (dirs []string) {
	t.Helper()
	seen := make(map[string]bool)
	for _, dir := range pgtest.BinDirs(t) {
		kind := strconv.Itoa(pgtest.Major(t, dir))
		if stripped(t, dir) {
			kind += "stripped"
		}
		switch kind {
		case "15", "18", "15stripped":
			if !seen[kind] {
				dirs = append(dirs, dir)
			}
			seen[kind] = true
		}
	}
	if len(dirs) == 0 {
		dirs = pgtest.BinDirs(t)[:1]
	}
	return dirs
}

// backend starts a connection and returns its process id.
func backend(t *testing.T, s *pgtest.Server) (pid int, exec func(sql string)) {
	t.Helper()
	conn := s.Connect(t, s.User, "postgres")
	return int(conn.PgConn().PID()), func(sql string) {
		t.Helper()
		if _, err := conn.Exec(context.WithoutCancel(t.Context()), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// stripped reports whether a server has no symbol table.
func stripped(t *testing.T, dir string) bool {
	t.Helper()
	file, err := elf.Open(filepath.Join(dir, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	return file.Section(".symtab") == nil
}
