package capture

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/pg/memctx"
)

// TestLockedProcessIsRemembered captures a process with a locked address space many times. Each call must end with an
// error in time. All calls together may block only as many threads as one of them.
func TestLockedProcessIsRemembered(t *testing.T) {
	pid, answer := startLocked(t)
	c, err := New(Config{Concurrency: 4})
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	for n := range 12 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		o := Options{Deadline: 100 * time.Millisecond, MaxFrames: 100 + n, NonStop: n%2 == 0}
		if _, err := c.Capture(ctx, process.Target{PID: pid, UID: -1}, o); err == nil || ctx.Err() != nil {
			t.Errorf("call %d: %v", n, err)
		}
		cancel()
	}
	if left := runtime.NumGoroutine() - before; left > 6 {
		t.Errorf("%d goroutines are left behind", left)
	}
	answer()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, Options{}); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("once it answers: %v", err)
		}
	}
}

// TestLockedProcessLeavesPlacesToCaptures reads the memory contexts of a process with a locked address space more
// often than captures may run at once. Captures of other processes must still work. Only the first of these reads may
// wait for the process.
func TestLockedProcessLeavesPlacesToCaptures(t *testing.T) {
	pid, _ := startLocked(t)
	const concurrency = 4
	c, err := New(Config{Concurrency: concurrency})
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	for n := range concurrency + 1 {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := c.MemoryContexts(ctx, process.Target{PID: pid, UID: -1}, memctx.Options{})
		if !errors.Is(err, process.ErrUnreachable) {
			t.Errorf("call %d: %v", n, err)
		}
		if n > 0 && time.Since(began) >= lastReads {
			t.Errorf("call %d took %s", n, time.Since(began))
		}
		cancel()
	}
	if left := runtime.NumGoroutine() - before; left > 1 {
		t.Errorf("%d goroutines are left behind", left)
	}
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := c.Capture(ctx, process.Target{PID: other.Process.Pid, UID: -1}, Options{}); err != nil {
		t.Errorf("another process: %v", err)
	}
}

// startLocked starts a process with one thread that waits for a file system and another that waits for the address
// space. The file system responds when answer is called.
func startLocked(t *testing.T) (pid int, answer func()) {
	t.Helper()
	if os.Getenv("PGSB_TEST_LOCKED") == "" {
		t.Skip("PGSB_TEST_LOCKED is not set: whoever looks at the process meanwhile, as ps does, waits for it")
	}
	dir := t.TempDir()
	program, source, mount := filepath.Join(dir, "locked"), filepath.Join(dir, "source"), filepath.Join(dir, "mount")
	if _, err := exec.LookPath("bindfs"); err != nil {
		t.Skipf("a file system in user space is needed: %v", err)
	}
	out, err := exec.Command("gcc", "-O1", "-pthread", "-o", program, "../../ptrace/testdata/locked.c").CombinedOutput()
	if err != nil {
		t.Skipf("no C compiler: %v\n%s", err, out)
	}
	for _, d := range []string{source, mount} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("bindfs", source, mount).CombinedOutput(); err != nil {
		t.Skipf("no file system in user space may be mounted here: %v\n%s", err, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	server := fileServer(t, mount)
	child := exec.Command(program, filepath.Join(mount, "file"))
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	answer = func() { _ = unix.Kill(server, unix.SIGCONT) }
	t.Cleanup(func() { answer(); _ = child.Process.Kill(); _ = child.Wait() })
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(server, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := stdin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(3 * time.Minute); waiting(child.Process.Pid) < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no two threads wait in the kernel")
		}
	}
	return child.Process.Pid, answer
}

// waiting counts the threads in uninterruptible sleep.
func waiting(pid int) (n int) {
	tids, _ := process.Threads(pid)
	for _, tid := range tids {
		if stat, err := process.ReadTaskStat(pid, tid); err == nil && stat.State == 'D' {
			n++
		}
	}
	return n
}

// fileServer finds the process that serves a mount.
func fileServer(t *testing.T, mount string) int {
	t.Helper()
	out, err := exec.Command("pgrep", "-f", "^bindfs .*"+mount+"$").Output()
	pid := 0
	for _, c := range out {
		if c < '0' || c > '9' {
			break
		}
		pid = 10*pid + int(c-'0')
	}
	if err != nil || pid == 0 {
		t.Fatalf("no server of %s: %v", mount, err)
	}
	return pid
}
