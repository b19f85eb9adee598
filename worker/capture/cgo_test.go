package capture_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// needC skips a test without a C compiler.
func needC(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no C compiler: Go code that calls C cannot be built")
	}
}

// between matches the frames between Go and C. Functions that cgo makes have a random name, or none in a stripped
// program.
var between = regexp.MustCompile(
	`^(runtime\.(asmcgocall|cgocallback|systemstack_switch|cgocallbackg1?)|crosscall2|_cgo.*|)$`)

// TestCgo checks that the walk follows a stack which changes from Go to C and back three times. Its Go frames must
// equal the program's output.
func TestCgo(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a build of Go's own library: not with -short")
	}
	t.Parallel()
	needC(t)
	for _, tt := range []struct {
		name  string
		flags []string
	}{
		{"debugging information", nil},
		{"stripped", []string{"-ldflags=-s -w"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			compareCgo(t, buildGoProgram(t, "cgo", "1", tt.flags...))
		})
	}
}

// compareCgo compares the stack of testdata/cgo with the program's output.
func compareCgo(t *testing.T, exe string) {
	t.Helper()
	cmd, dump := startGo(t, exe)
	tr, err := patient(t, capture.Config{}).Capture(t.Context(), process.Target{PID: cmd.Process.Pid, UID: -1},
		capture.Options{Deadline: pgtest.Patience})
	if err != nil {
		t.Fatal(err)
	}
	all, err := patient(t, capture.Config{}).Goroutines(t.Context(),
		process.Target{PID: cmd.Process.Pid, UID: -1}, capture.Options{Deadline: pgtest.Patience})
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	th := &tr.Threads[0]
	got, want := goOnly(goNames(th)), goOnly(parseDump(t, dump.String())[1].frames)
	if !th.Whole || !slices.Equal(got, want) || len(want) < 10 {
		t.Errorf("%s\n got %q\nwant %q\n%s", th.Stop, got, want, dump)
	}
	if n := count(th, "crosscall2"); n != 3 {
		t.Errorf("C calls Go %d times, not 3: %q", n, goNames(th))
	}
	if n := count(th, "runtime.asmcgocall"); n != 4 {
		t.Errorf("Go calls C %d times, not 4: %q", n, goNames(th))
	}
	i := slices.IndexFunc(all.Goroutines, func(g backtrace.Goroutine) bool { return g.ID == 1 })
	if i < 0 || !slices.Equal(goNames(&all.Goroutines[i].Thread), goNames(th)) {
		t.Errorf("goroutine 1 is not the first thread: %+v", all.Goroutines)
	}
	figure.Printf(t, "%d frames, %d of Go", len(th.Frames), len(want))
}

// goOnly removes C functions, and the functions between Go and C.
func goOnly(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		return between.MatchString(name) || !strings.Contains(name, ".") || strings.HasPrefix(name, "_cgoexp")
	})
}

func count(th *backtrace.Thread, name string) (n int) {
	for _, f := range goNames(th) {
		if f == name {
			n++
		}
	}
	return n
}

// buildLibrary makes a C library of testdata/golib, for a version of PostgreSQL or, with 0, for none.
func buildLibrary(t *testing.T, version int) string {
	t.Helper()
	needC(t)
	dir, err := os.MkdirTemp("", "golib") // the test's own is not for the server's user
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(dir, "golib.so")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", library, "./testdata/golib")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=")
	if version > 0 {
		cmd.Env = append(cmd.Env, fmt.Sprintf("CGO_CFLAGS=-DPGVERSION=%d", version))
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return library
}

// checkLibrary checks the stack of a C program that has called goWait(3).
func checkLibrary(t *testing.T, th *backtrace.Thread, below string) {
	t.Helper()
	names := goNames(th)
	want := []string{
		"main._Cfunc_cSleep", "main.descend", "main.descend", "main.descend", "main.descend", "main.goWait",
	}
	got := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.HasPrefix(name, "main.") })
	if !slices.Equal(got, want) {
		t.Errorf("Go's frames are %q, not %q, in %q", got, want, names)
	}
	at := slices.Index(names, "crosscall2")
	if i := slices.Index(names, below); at < 0 || i < at || !th.Whole {
		t.Errorf("%s is not below crosscall2: %q, %s", below, names, th.Stop)
	}
}

// TestGoLibrary checks a Go library in a C program.
func TestGoLibrary(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes a build of Go's own library")
	}
	library := buildLibrary(t, 0)
	exe := filepath.Join(t.TempDir(), "use")
	if out, err := exec.Command("gcc", "-O1", "-o", exe, "testdata/golib/use.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command(exe, library)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	c := patient(t, capture.Config{})
	var th backtrace.Thread
	pgtest.Wait(t, "the program to sleep", func() bool {
		th = take(t, c, cmd.Process.Pid, capture.Options{})
		return slices.Contains(goNames(&th), "main._Cfunc_cSleep")
	})
	checkLibrary(t, &th, "enter")
	tr, err := c.Goroutines(t.Context(), process.Target{PID: cmd.Process.Pid, UID: -1}, capture.Options{Deadline: pgtest.Patience})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for i := range tr.Goroutines {
		if g := &tr.Goroutines[i]; g.TID == cmd.Process.Pid {
			found = true
			checkLibrary(t, &g.Thread, "enter")
		}
	}
	if !found {
		t.Errorf("no goroutine is on the first thread: %+v", tr.Goroutines)
	}
	busy := exec.Command(exe, library, "spin")
	got := captureBusy(t, busy, spinning("enter"), capture.Options{})
	got.check(t, "a library of a C program")
}

// spinOf captures a backend that is in goSpin of testdata/golib all the time.
func spinOf(t *testing.T, conn *pgx.Conn, c *capture.Capturer) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = conn.Exec(t.Context(), "SELECT go_spin()") // until it is cancelled, unless it has just returned
	}()
	pid := int(conn.PgConn().PID())
	got := captureRunning(t, c, pid, spinning("PostgresMain"), capture.Options{})
	got.check(t, "a library in a backend")
	if err := unix.Tgkill(pid, pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-done
}

// spinning matches the Go functions of a C program in testdata/golib, and the function that calls them.
func spinning(below string) *regexp.Regexp {
	return regexp.MustCompile(`^((main\._Cfunc_cWork )?(main\.spin ){0,4}(main\.goSpin )?_cgoexp_\w+ )?` + below + " $")
}

// TestGoInPostgres checks a Go library in a backend.
func TestGoInPostgres(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes a build of Go's own library")
	}
	dirs := pgtest.BinDirs(t)
	server := pgtest.Start(t, dirs[len(dirs)-1], pgtest.Options{})
	conn := server.Connect(t, server.User, "postgres")
	var version string
	if err := conn.QueryRow(t.Context(), "SHOW server_version_num").Scan(&version); err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(version)
	if err != nil {
		t.Fatal(err)
	}
	library := buildLibrary(t, number/10000)
	server.Exec(t, "CREATE FUNCTION go_wait() RETURNS int LANGUAGE c AS '"+library+"', 'go_wait'")
	server.Exec(t, "CREATE FUNCTION go_spin() RETURNS int LANGUAGE c AS '"+library+"', 'go_spin'")
	pid := int(conn.PgConn().PID())
	c := patient(t, capture.Config{})
	spinOf(t, conn, c)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = conn.Exec(t.Context(), "SELECT go_wait()") // until the server is stopped
	}()
	var th backtrace.Thread
	pgtest.Wait(t, "the function to sleep", func() bool {
		th = take(t, c, pid, capture.Options{})
		return slices.Contains(goNames(&th), "main._Cfunc_cSleep")
	})
	checkLibrary(t, &th, "PostgresMain")
	// SIGTERM ends the sleep and then the backend, if this thread gets the signal.
	if err := unix.Tgkill(pid, pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-done
	figure.Printf(t, "PostgreSQL %d: %d frames", number, len(th.Frames))
}
