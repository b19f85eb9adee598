package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
)

const logTail = 2000 // bytes of the worker's log shown when a test failed

// programs are built once for all tests, in a directory that the servers' user can enter.
var programs struct {
	dir string // removed at the end
	// worker is the program as `make build` makes it, other the same one with another protocol version.
	worker, other string
	// self is a copy of this test program, see helper_test.go.
	self string
	// preload is a library for LD_PRELOAD, see testdata/preload.c; empty without a C compiler.
	preload string
}

func TestMain(m *testing.M) {
	switch os.Getenv(envHelper) {
	case "":
		os.Exit(runAll(m))
	case helperTracer:
		os.Exit(tracer())
	case helperFilter:
		os.Exit(filter())
	}
}

func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "e2e")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "building what the tests run:", err)
		return 1
	}
	defer pgtest.CloseIdle()
	return m.Run()
}

func build(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	programs.dir, programs.worker, programs.other = dir, filepath.Join(dir, "worker"), filepath.Join(dir, "other")
	programs.self = filepath.Join(dir, "self")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := os.WriteFile(programs.self, self, 0o755); err != nil {
		return err
	}
	if err := pgtest.BuildProgram(programs.worker); err != nil {
		return err
	}
	overlay, err := otherProtocol(dir)
	if err != nil {
		return err
	}
	if err := compile("go", "build", "-ldflags=-s -w", "-overlay", overlay, "-o", programs.other, "pg_stat_backtrace"); err != nil {
		return err
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return nil //nolint:nilerr // tests that need it report its absence
	}
	library := filepath.Join(dir, "preload.so")
	if err := compile(gcc, "-shared", "-fPIC", "-O1", "-o", library, "testdata/preload.c"); err != nil {
		return err
	}
	programs.preload = library
	return nil
}

// otherProtocol makes an overlay for the go command with a worker of another protocol version.
func otherProtocol(dir string) (string, error) {
	const file, constant = "../../worker/serve/spool/request.go", "const Protocol = "
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	before, after, found := strings.Cut(string(source), constant)
	if !found {
		return "", fmt.Errorf("%s has no %q", file, constant)
	}
	changed, overlay := filepath.Join(dir, "request.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(changed, []byte(before+constant+"7 + "+after), 0o600); err != nil {
		return "", err
	}
	text := fmt.Sprintf(`{"Replace": {%q: %q}}`, path, changed)
	return overlay, os.WriteFile(overlay, []byte(text), 0o600)
}

func compile(name string, arguments ...string) error {
	command := exec.Command(name, arguments...)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return nil
}

// site is a server with the extension, and perhaps a worker.
type site struct {
	*pgtest.Server

	*record

	worker *worker // the worker that serves, nil for none
}

// start gets a server, see pgtest.Lend, and creates the extension in database postgres.
func start(t *testing.T, binDir string, o pgtest.Options) *site {
	t.Helper()
	s := &site{Server: pgtest.Lend(t, binDir, o), record: &record{}}
	if !o.Standby && !o.Stopped {
		s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
	}
	return s
}

// worker is a process of the worker's program.
type worker struct {
	*exec.Cmd

	log  string // path
	once sync.Once
	err  error
}

// work starts a worker for the server and waits until it serves. It ends with the test.
func (s *site) work(t *testing.T, arguments ...string) *worker {
	t.Helper()
	w := s.launch(t, s.AsServerUser(exec.Command(programs.worker, s.workerArguments(arguments)...)))
	s.ready(t, w)
	s.worker = w
	return w
}

// The limit on requests is out of the way unless a test sets it, and no calibration opens sessions in the background.
func (s *site) workerArguments(more []string) []string {
	return append([]string{
		"worker", "-D", s.DataDir, "--rate", "100000", "--burst", "100000", "--no-calibrate", s.DSN(s.User, "postgres"),
	}, more...)
}

// launch starts a worker's command.
func (s *site) launch(t *testing.T, command *exec.Cmd) *worker {
	t.Helper()
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL // it ends also when this process is killed
	w := &worker{Cmd: command, log: filepath.Join(t.TempDir(), "worker.log")}
	log, err := os.Create(w.log)
	if err != nil {
		t.Fatal(err)
	}
	w.Stdout, w.Stderr = log, log
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	_ = log.Close()
	t.Cleanup(func() {
		_ = w.end(syscall.SIGTERM)
		if t.Failed() {
			text := w.text()
			t.Logf("the end of the worker's log:\n%s", text[max(0, len(text)-logTail):])
		}
	})
	return w
}

// ready waits until the worker's pid file is in place and the worker has a session. It needs the session to answer
// callers that are not superusers.
func (s *site) ready(t *testing.T, w *worker) {
	t.Helper()
	pgtest.Wait(t, "the worker is ready", func() bool {
		if w.gone() {
			t.Fatalf("the worker ended:\n%s", w.text())
		}
		lines := s.pidFile()
		return len(lines) > 1 && lines[1] == strconv.Itoa(w.Process.Pid) && strings.Contains(w.text(), `"connected"`)
	})
}

func (w *worker) text() string {
	text, err := os.ReadFile(w.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// gone says whether the process has ended, reaped or not.
func (w *worker) gone() bool {
	stat := procStat(w.Process.Pid)
	return len(stat) == 0 || stat[0] == "Z"
}

// end sends a signal and waits for the end of the process; SIGTERM ends a worker in order.
func (w *worker) end(signal syscall.Signal) error {
	w.once.Do(func() {
		_ = w.Process.Signal(signal)
		_ = w.Process.Signal(syscall.SIGCONT)
		watchdog := time.AfterFunc(pgtest.Patience, func() { _ = w.Process.Kill() })
		w.err = w.Wait()
		watchdog.Stop()
	})
	return w.err
}

// signal sends a signal to the worker, and for SIGSTOP waits until it has stopped.
func (w *worker) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if signal == syscall.SIGSTOP {
		pgtest.Suspend(t, w.Process)
	} else if err := w.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// pidFile returns the lines of the worker's file in the data directory.
func (s *site) pidFile() []string {
	data, err := os.ReadFile(s.pidPath())
	if err != nil {
		return nil
	}
	return strings.Split(string(data), "\n")
}

func (s *site) pidPath() string { return filepath.Join(s.DataDir, "pg_stat_backtrace.pid") }

// spool returns the worker's private directory.
func (s *site) spool(t *testing.T) string {
	t.Helper()
	lines := s.pidFile()
	if len(lines) < 6 || !filepath.IsAbs(lines[5]) {
		t.Fatalf("the worker's file has the lines %q", lines)
	}
	return lines[5]
}

// procStat returns the fields of /proc/PID/stat from the state on. It is empty if there is no such process.
func procStat(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	text := string(data)
	return strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
}

// procState is the letter of a process's state, "" when it is gone.
func procState(pid int) string {
	if stat := procStat(pid); len(stat) > 0 {
		return stat[0]
	}
	return ""
}

// children returns the processes whose parent is pid.
func children(pid int) []int {
	var found []int
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, entry := range entries {
		var child int
		_, _ = fmt.Sscan(filepath.Base(entry), &child)
		if stat := procStat(child); len(stat) > 1 && stat[1] == strconv.Itoa(pid) {
			found = append(found, child)
		}
	}
	slices.Sort(found)
	return found
}
