package ptrace

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestOtherRightsAfterCheck checks that a process is not captured if it executes a setgid program after its rights were
// compared and before it stops.
func TestOtherRightsAfterCheck(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a setgid program")
	}
	var mounted unix.Statfs_t
	if err := unix.Statfs(os.TempDir(), &mounted); err == nil && mounted.Flags&unix.ST_NOSUID != 0 {
		t.Skip("the temporary directory is mounted with nosuid")
	}
	const user, group = 65534, 65533
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	code, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := errors.Join(os.WriteFile(program, code, 0o755), os.Chown(program, 0, group),
		os.Chmod(program, 0o755|os.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	// The temporary directory of a test is closed to other users: the descriptor leads to the program.
	file, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c := exec.Command("sh", "-c", "read line; exec /proc/self/fd/3 1000")
	c.ExtraFiles = []*os.File{file}
	c.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: user, Gid: user}, Pdeathsig: syscall.SIGKILL,
	}
	stdin, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	pid := c.Process.Pid
	rights, err := process.ReadRights(pid)
	if err != nil {
		t.Fatal(err)
	}
	target := process.Target{PID: pid, UID: -1, Rights: &rights}
	ctx := t.Context()
	if _, err := Capture(ctx, target, snapshot.Options{Deadline: patience}); err != nil {
		t.Fatalf("before the process executes the program: %v", err)
	}
	executed := func() bool {
		status, err := process.ReadStatus(pid)
		return err == nil && status.GID[1] == group
	}
	snap, err := captureWith(ctx, target, snapshot.Options{Deadline: patience}, func(at step) {
		if at != stepSeized {
			return
		}
		_, _ = stdin.Write([]byte("go\n"))
		for until := time.Now().Add(patience); !executed() && time.Now().Before(until); {
			time.Sleep(time.Millisecond)
		}
	})
	var denied *process.PermissionError
	if !errors.As(err, &denied) || denied.Reason != process.ReasonRights {
		t.Errorf("got %+v, %v", snap, err)
	}
	if !executed() {
		t.Fatal("the process has not executed the program")
	}
	for name, look := range map[string]func() error{
		"Observe": func() error { _, err := observe.Observe(ctx, target, snapshot.Options{Deadline: patience}); return err },
		"Capture": func() error { _, err := Capture(ctx, target, snapshot.Options{Deadline: patience}); return err },
	} {
		if err := look(); !errors.As(err, &denied) || denied.Reason != process.ReasonRights {
			t.Errorf("%s: %v", name, err)
		}
	}
	target.Rights = nil // as in a request for the process itself, by root
	if _, err := Capture(ctx, target, snapshot.Options{Deadline: patience}); err != nil {
		t.Errorf("without a comparison: %v", err)
	}
}
