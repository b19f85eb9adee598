package capture_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// reloader is a running testdata/reload.c.
type reloader struct {
	pid int
	in  io.Writer
	out io.Reader
}

// next lets it go on to its next stop.
func (r *reloader) next(t *testing.T) {
	t.Helper()
	if _, err := r.in.Write([]byte{'x'}); err != nil {
		t.Fatal(err)
	}
	r.await(t)
}

func (r *reloader) await(t *testing.T) {
	t.Helper()
	if _, err := io.ReadFull(r.out, make([]byte, 1)); err != nil {
		t.Fatalf("the program did not get to its spot: %v", err)
	}
	awaitState(t, r.pid, 'S')
}

func startReloader(t *testing.T, args ...string) *reloader {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "reload")
	if out, err := exec.CommandContext(t.Context(), "gcc", "-O1", "-Wall", "-Wextra", "-o", exe, "testdata/reload.c",
		"-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	cmd := exec.Command(exe, args...)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	r := &reloader{pid: cmd.Process.Pid, in: in, out: out}
	r.await(t)
	return r
}

// library compiles testdata/library.c with a function of the given name.
func library(t *testing.T, file, name string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "gcc", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC",
		"-Wl,--build-id", "-DNAME="+name, "-o", file, "testdata/library.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
}

func hasFrame(th *backtrace.Thread, name string) bool { return slices.Contains(names(th), name) }

// frameOf is the address of a function's frame.
func frameOf(t *testing.T, th *backtrace.Thread, name string) uint64 {
	t.Helper()
	i := slices.Index(names(th), name)
	if i < 0 || !th.Whole {
		t.Fatalf("no %s in %q (%s)", name, names(th), th.Stop)
	}
	return th.Frames[i].Address
}

// TestAnotherLibraryAtTheSamePlace checks that names never come from an unloaded library, even if another library has
// its addresses and the cache still has the old one.
func TestAnotherLibraryAtTheSamePlace(t *testing.T) {
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "one.so"), filepath.Join(dir, "two.so")}
	library(t, files[0], "first")
	library(t, files[1], "other")
	for _, nonStop := range []bool{false, true} {
		r := startReloader(t, files[0], files[1], files[0])
		c := capturer(t)
		at := make([]uint64, 3)
		for i, name := range []string{"first_inner", "other_inner", "first_inner"} {
			if i > 0 {
				r.next(t)
			}
			for range 3 { // the later ones use the cache
				th := take(t, c, r.pid, capture.Options{NonStop: nonStop})
				at[i] = frameOf(t, &th, name)
			}
		}
		if at[0] != at[1] || at[1] != at[2] {
			t.Logf("the libraries were mapped at different places (%#x): nothing was proved", at)
		}
	}
}

// TestLibraryWrittenOver checks the same file, inode and address with other contents.
func TestLibraryWrittenOver(t *testing.T) {
	dir := t.TempDir()
	file, second := filepath.Join(dir, "one.so"), filepath.Join(dir, "two.so")
	library(t, file, "first")
	library(t, second, "other")
	r := startReloader(t, file)
	c := capturer(t)
	for range 2 {
		th := take(t, c, r.pid, capture.Options{})
		frameOf(t, &th, "first_inner")
	}
	contents, err := os.ReadFile(second)
	if err != nil {
		t.Fatal(err)
	}
	// Both files differ only in names and build-id, so the program can continue to run the mapped code.
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(contents); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r.next(t)
	for _, o := range []capture.Options{{}, {AllThreads: true}, {NonStop: true}, {}} {
		th := take(t, c, r.pid, o)
		if hasFrame(&th, "first_inner") {
			t.Errorf("the old library's name: %q", names(&th))
		}
		frameOf(t, &th, "other_inner")
	}
}

// TestLayoutOfAnotherProgram checks a process that has executed another program, with the same id and start time.
func TestLayoutOfAnotherProgram(t *testing.T) {
	exe := build(t)
	cmd := exec.Command("sh", "-c", "read x; exec "+exe+" deep 5")
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	awaitState(t, cmd.Process.Pid, 'S')
	c := capturer(t)
	for range 3 {
		if th := take(t, c, cmd.Process.Pid, capture.Options{}); !th.Whole {
			t.Errorf("the shell's stack: %s %q", th.Stop, names(&th))
		}
	}
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	awaitState(t, cmd.Process.Pid, 'S')
	for _, nonStop := range []bool{false, true, false} {
		th := take(t, c, cmd.Process.Pid, capture.Options{NonStop: nonStop})
		checkOrder(t, &th, "main")
	}
}

// TestLayoutOfAnEndedProcess checks that cached mappings do not make an ended process appear alive.
func TestLayoutOfAnEndedProcess(t *testing.T) {
	r := startReloader(t, func() string {
		file := filepath.Join(t.TempDir(), "one.so")
		library(t, file, "first")
		return file
	}())
	c := capturer(t)
	take(t, c, r.pid, capture.Options{})
	if err := kill(r.pid); err != nil {
		t.Fatal(err)
	}
	awaitState(t, r.pid, 'Z')
	_, err := c.Capture(t.Context(), process.Target{PID: r.pid, UID: -1}, capture.Options{})
	if err == nil || !strings.Contains(err.Error(), process.ErrExited.Error()) {
		t.Errorf("of a dead process: %v", err)
	}
}

func kill(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}
