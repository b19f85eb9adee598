package rlimits_test

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/host/rlimits"
)

// setting names a limit in the environment: this test sets it for itself and executes its arguments.
const setting = "RLIMITS_TEST_SETTING"

func TestMain(m *testing.M) {
	status := pgtest.RunOr(m, setting, executeWith)
	if os.Getenv(setting) == "" {
		removeProgram()
	}
	os.Exit(status)
}

// removeProgram removes the program if a test has built it.
func removeProgram() {
	if wasBuilt.Load() {
		dir, _ := built()
		_ = os.RemoveAll(dir)
	}
}

// executeWith sets the limit "RESOURCE=VALUE", with the names of prlimit(1), and executes the arguments. The resource
// "free" is the number of descriptors that are left below a limit of 64. "closed" is a set of standard descriptors to
// close, by their bits, in a root directory that has only the program.
func executeWith(limit string) error {
	name, value, _ := strings.Cut(limit, "=")
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return err
	}
	environment := append(os.Environ(), setting+"=")
	if name == "closed" {
		return executeClosed(n, environment)
	}
	switch {
	case name == "noproc":
		if err := unix.Unmount("/proc", unix.MNT_DETACH); err != nil {
			return err
		}
	case name == "free":
		for fd := 3; fd < 64-int(n); fd++ {
			if err := unix.Dup3(0, fd, 0); err != nil {
				return err
			}
		}
		name, n = "nofile", 64
	case name == "nproc" && os.Getuid() == 0: // the kernel does not limit root
		if err := errors.Join(unix.Setgroups(nil), syscall.Setgid(54321), syscall.Setuid(54321)); err != nil {
			return err
		}
	}
	if name == "noproc" {
		return unix.Exec(os.Args[1], os.Args[1:], environment)
	}
	// A Go program cannot set the limit for itself: its runtime may need memory or a thread before it executes the other
	// program, and would end with a dump. prlimit is not one.
	prlimit, err := exec.LookPath("prlimit")
	if err != nil {
		return err
	}
	arguments := append([]string{prlimit, fmt.Sprintf("--%s=%d:%d", name, n, n), "--"}, os.Args[1:]...)
	return unix.Exec(prlimit, arguments, environment)
}

// executeClosed executes the program in the root directory that contains it, without the standard descriptors in set.
func executeClosed(set uint64, environment []string) error {
	if err := unix.Chroot(filepath.Dir(os.Args[1])); err != nil {
		return err
	}
	for fd := range 3 {
		if set&(1<<fd) != 0 {
			if err := unix.Close(fd); err != nil {
				return err
			}
		}
	}
	return unix.Exec("/"+filepath.Base(os.Args[1]), os.Args[1:], environment)
}

// result is the output of a program under a limit.
type result struct {
	status         int
	stdout, stderr string
}

// run executes a program under a limit.
func run(t *testing.T, limit string, arguments ...string) result {
	t.Helper()
	if _, err := exec.LookPath("prlimit"); err != nil {
		t.Skip("prlimit, of util-linux, is not installed")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, arguments...)
	cmd.Env = append(os.Environ(), setting+"="+limit)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	finish(t, cmd)
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// finish waits for the end of a command, whatever its status.
func finish(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
}

// refused reports whether a program printed one line about a limit and nothing else.
func (r result) refused() bool {
	return r.status == 1 && r.stdout == "" && strings.Count(r.stderr, "\n") == 1 &&
		strings.HasPrefix(r.stderr, "pg_stat_backtrace: limit is too low: ") && strings.Contains(r.stderr, "raise")
}

// TestProgramSize adds up the parts of the program that are loaded. A stripped program, as "make build" makes it, has
// little else. A call of slices.SortFunc adds some 10 kB for each type of elements: sort.Slice has the same code for all types. If
// the program has grown by megabytes at once, look for "ReflectMethod" in the output of
// go build -ldflags=-dumpdep: a call of a method by name (text/template has one) keeps every method of every type.
func TestProgramSize(t *testing.T) {
	const limit = 32 << 20 // 32 MB as PostgreSQL counts them
	program, err := elf.Open(builtProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Close() }()
	size := uint64(0)
	for _, p := range program.Progs {
		if p.Type == elf.PT_LOAD {
			size += p.Filesz
		}
	}
	t.Logf("%.1f MB", float64(size)/1e6)
	if program.Machine == elf.EM_X86_64 && size > limit {
		t.Errorf("the program has %d bytes, more than %d", size, limit)
	}
}

// limits are the tested values of each limit, and the least one with which the program works. With less address space
// than the program itself has, the kernel ends it (SIGKILL) before its first instruction.
var limits = []struct {
	name              string
	from, to, step    uint64
	unit, works       uint64
	anyValueMayRefuse bool
}{
	{"as", 128, 2048, 64, 1 << 20, 1536, false}, // Go's library alone has 32 MB of variables
	{"data", 64, 512, 32, 1 << 20, 256, false},
	{"stack", 64, 512, 56, 1 << 10, 256, false},
	{"nofile", 0, 32, 1, 1, 32, true},                     // the caller may leave descriptors to the program
	{"free", 0, 32, 1, 1, rlimits.Descriptors + 4, false}, // the runtime keeps some open
	{"nproc", 1, 48, 1, 1, 40, true},                      // the user may have other threads
}

// TestRefusedOrWorks runs the real program under each limit. It must work, or print one line that names the limit. Each
// value has one of the four commands by default, neighbouring values different ones.
func TestRefusedOrWorks(t *testing.T) {
	program := builtProgram(t)
	input := filepath.Join(filepath.Dir(program), "input")
	if err := os.WriteFile(input, []byte("~m#CAUCgAAG\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	selected := figure.Share(t, 4)
	for _, l := range limits {
		t.Run(l.name, func(t *testing.T) {
			worked, step := 0, l.step
			if !pgtest.Full() && l.to > 100 {
				step *= 3
			}
			for i, value := 0, l.from; value <= l.to; i, value = i+1, value+step {
				limit := l.name + "=" + strconv.FormatUint(value*l.unit, 10)
				for j, arguments := range [][]string{
					{"--version"}, {"--help"}, {"decode", input}, {"capture", strconv.Itoa(os.Getpid())},
				} {
					if !selected(i + j) {
						continue
					}
					r := run(t, limit, append([]string{program}, arguments...)...)
					switch {
					case r.refused() && (value < l.works || l.anyValueMayRefuse):
					case r.stderr == "" && r.status == 0 || worksAsUser(l.name, r):
						worked++
					default:
						t.Errorf("%s, %v: status %d\n%s%s", limit, arguments, r.status, r.stdout, first(r.stderr))
					}
				}
			}
			if worked == 0 && l.to >= l.works && !l.anyValueMayRefuse {
				t.Errorf("the program never worked")
			}
		})
	}
}

// worksAsUser accepts that a user without privileges cannot capture the test.
func worksAsUser(limit string, r result) bool {
	return limit == "nproc" && r.status == 1 && (strings.Contains(r.stderr, "refuses to let process") ||
		strings.Contains(r.stderr, "may not read it. Run the command as that user or as root"))
}

// first shortens the dump of a program.
func first(text string) string { return text[:min(len(text), 800)] }

var wasBuilt atomic.Bool

// built is the directory of the real program, with the entry point of `make build`.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "rlimits")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		err = pgtest.BuildProgram(filepath.Join(dir, "pg_stat_backtrace"))
	}
	return dir, err
})

// builtProgram builds the program once and returns its path.
func builtProgram(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("this test builds the program; run it without -short")
	}
	wasBuilt.Store(true)
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "pg_stat_backtrace")
}

// TestInitRefuses is about a program without the entry point: this test. Its init verifies the same limits.
func TestInitRefuses(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for free := 4; free < rlimits.Descriptors; free++ { // the C library of a test needs some to load it
		r := run(t, "free="+strconv.Itoa(free), self, "-test.list", "none")
		if !r.refused() || !strings.Contains(r.stderr, "cannot open 24 more files") {
			t.Errorf("%d descriptors left: status %d\n%s", free, r.status, first(r.stderr))
		}
	}
	if r := run(t, "stack=200000", self, "-test.list", "none"); !r.refused() {
		t.Errorf("stack of 200,000 bytes: status %d\n%s", r.status, first(r.stderr))
	}
}
