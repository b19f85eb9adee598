package capture_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/worker/capture"
)

// jailed starts a program with another root directory, and waits until it has written a byte.
func jailed(t *testing.T, root, exe string) int {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: no process can be given another root directory")
	}
	cmd := exec.Command(exe)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: root}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	awaitState(t, cmd.Process.Pid, 'S')
	return cmd.Process.Pid
}

// TestDebugFilesInTheTargetsRoot captures a process with another root directory. Its debug file, and the supplementary
// file of dwz, are only below that root directory. Files of another build at the same paths outside must not be used.
func TestDebugFilesInTheTargetsRoot(t *testing.T) {
	a := imagetest.BuildSplit(t, "testdata/inlined.c", "-O2", "-gdwarf-4", "-static")
	b := imagetest.BuildSplit(t, "testdata/inlined.c", "-O3", "-gdwarf-4", "-static", "-DOTHER")
	sup, _ := imagetest.Share(t, a, b)
	root, outside := t.TempDir(), t.TempDir()
	place := filepath.Join(".build-id", a.BuildID[:2], a.BuildID[2:]+".debug")
	put := func(from, to string) {
		command(t, "mkdir", "-p", filepath.Dir(to))
		command(t, "cp", from, to)
	}
	put(a.Exe, filepath.Join(root, "opt/inlined"))
	put(a.Debug, filepath.Join(root, outside, place))
	put(sup, filepath.Join(root, outside, ".dwz", filepath.Base(sup)))
	put(b.Debug, filepath.Join(outside, place))
	put(b.Debug, filepath.Join(outside, ".dwz", filepath.Base(sup)))
	pid := jailed(t, root, "/opt/inlined")
	c := patient(t, capture.Config{DebugDirs: []string{outside}, Report: func(err error) {
		if !strings.Contains(err.Error(), "another build") {
			t.Errorf("told %v", err)
		}
	}})
	th := take(t, c, pid, capture.Options{})
	// The innermost one is the C library's, which is in the program.
	if got := places(&th); len(got) < 5 || !slices.Equal(got[1:5], inlinedStack[:4]) {
		t.Errorf("got  %q\nwant %q", got, inlinedStack[:4])
	}
}
