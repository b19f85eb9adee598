package capture_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

func TestMain(m *testing.M) { os.Exit(pgtest.RunOr(m, slowFSVariable, serveSlowFS)) }

// split moves a program's symbols, and its call frame information that is not needed at run time, into a debug file.
// It returns the folder below which the debug file is found.
func split(t *testing.T, exe string) string {
	t.Helper()
	folder := t.TempDir()
	id := buildID(t, exe)
	debug := filepath.Join(folder, ".build-id", id[:2], id[2:]+".debug")
	if err := os.MkdirAll(filepath.Dir(debug), 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, "objcopy", "--only-keep-debug", exe, debug)
	command(t, "strip", "--strip-all", exe)
	return folder
}

// inTime captures a process whose debug files are on a disk that does not respond. The capture must end in time.
func inTime(t *testing.T, c *capture.Capturer, pid int) (*backtrace.Trace, error) {
	t.Helper()
	const patience = 300 * time.Millisecond
	began := time.Now()
	tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{Deadline: patience})
	if took := time.Since(began); took < patience || took > pgtest.Patience/2 {
		t.Errorf("answered after %v", took)
	}
	checkUntouched(t, pid)
	return tr, err
}

// TestSlowSymbols checks that frames whose names cannot be read in time have a note instead. Later captures have the
// names.
func TestSlowSymbols(t *testing.T) {
	t.Parallel()
	exe := build(t, "-Wl,--build-id")
	disk := mountSlowFS(t, split(t, exe))
	pid := start(t, exe)
	c, err := capture.New(capture.Config{DebugDirs: []string{disk.Dir}})
	if err != nil {
		t.Fatal(err)
	}
	var tr *backtrace.Trace
	pgtest.Wait(t, "the other files read", func() bool { // on a busy machine, a capture ends before that
		tr, err = inTime(t, c, pid)
		return err == nil && slices.Contains(names(&tr.Threads[0]), "__libc_start_main") // libc has its symbols elsewhere
	})
	unnamed := 0
	for _, f := range tr.Threads[0].Frames {
		if f.Note == "its symbols are being read" {
			unnamed++
		}
		if f.Module == "nest" && f.Function != "" {
			t.Errorf("%s has come from nowhere", f.Function)
		}
	}
	if want := 6; unnamed != want { // ready, inner, middle, outer, main, _start
		t.Errorf("%d frames say that their names are to come, of %d", unnamed, want)
	}
	disk.Answer()
	pgtest.Wait(t, "names", func() bool {
		tr, err = c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{})
		return err == nil && slices.Contains(names(&tr.Threads[0]), "ready")
	})
	checkOrder(t, &tr.Threads[0], "ready", "inner", "middle", "outer", "main", "_start")
}

// TestSlowUnwinding checks that a stack which cannot be read in time gives an error with the file's name. Later it
// can be read.
func TestSlowUnwinding(t *testing.T) {
	t.Parallel()
	exe := build(t, "-Wl,--build-id", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
	command(t, "objcopy", "--remove-section=.eh_frame", "--remove-section=.eh_frame_hdr", exe)
	disk := mountSlowFS(t, split(t, exe))
	pid := start(t, exe)
	c, err := capture.New(capture.Config{DebugDirs: []string{disk.Dir}})
	if err != nil {
		t.Fatal(err)
	}
	var unread *backtrace.ReadingError
	pgtest.Wait(t, "the other files read", func() bool { // on a busy machine, a capture ends before that
		_, err = inTime(t, c, pid)
		return err == nil || errors.As(err, &unread) && unread.File == "nest"
	})
	for range 3 { // a later caller waits no longer
		if _, err := inTime(t, c, pid); !errors.As(err, &unread) || unread.File != "nest" {
			t.Fatal(err)
		}
	}
	disk.Answer()
	var tr *backtrace.Trace
	pgtest.Wait(t, "the stack", func() bool {
		var err error
		tr, err = c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{})
		return err == nil
	})
	want := []string{"ready", "inner", "middle", "outer", "main"} // _start has no call frame information left
	if got := names(&tr.Threads[0]); len(got) < 6 || !slices.Equal(got[1:6], want) {
		t.Errorf("%q instead of %q", got, want)
	}
}
