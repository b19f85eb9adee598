package ptrace

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestLocked captures a process whose memory cannot be read. One thread locks the address space while it waits for a
// file system, and another thread waits to change the address space. All ways of capturing must return an error in
// time. The capturing program must be able to end. After the file system has answered, capturing must work again.
func TestLocked(t *testing.T) {
	c, lock, answer := startLockable(t)
	target := anyTarget(c.pid)
	mappings := mappingsOf(t, c.pid)
	lock()
	const most = 20 * time.Second // with much to spare on a busy machine
	for _, o := range []snapshot.Options{{}, {AllThreads: true}} {
		o.Deadline = 200 * time.Millisecond
		began := time.Now()
		if _, err := Capture(t.Context(), target, o); !errors.Is(err, ErrDeadline) || time.Since(began) > most {
			t.Errorf("%+v: after %s: %v", o, time.Since(began), err)
		}
		checkDetached(t, c.pid)
		_, err := observe.Observe(t.Context(), target, o)
		if !errors.Is(err, process.ErrUnreachable) || time.Since(began) > most {
			t.Errorf("%+v, without a stop: after %s: %v", o, time.Since(began), err)
		}
	}
	began := time.Now()
	mappings()
	if took := time.Since(began); took > most {
		t.Errorf("reads of mappings took %s", took)
	}
	for _, role := range []string{"once", "observe"} {
		actor := actor(role, strconv.Itoa(c.pid))
		if err := actor.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- actor.Wait() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%s: %v", role, err)
			}
		case <-time.After(most):
			t.Errorf("%s: the program cannot end", role)
		}
	}
	checkDetached(t, c.pid)
	answer()
	if text := c.line(t); text != "done" {
		t.Errorf("it said %q", text)
	}
	until(t, "it can be captured again", func() bool {
		s, err := Capture(t.Context(), target, snapshot.Options{AllThreads: true})
		return err == nil && s.Threads[0].Err == nil
	})
}

// mappingsOf returns a function that reads the mappings of a process as users of programs in the kernel do. If the
// process is locked then, they must say so.
func mappingsOf(t *testing.T, pid int) (read func()) {
	t.Helper()
	target := anyTarget(pid)
	copied, err := observe.NewCopiedProcess(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(copied.Release)
	return func() {
		_, held := observe.NewCopiedProcess(target)
		read := map[string]error{"held": held, "read again": copied.Refresh()}
		var want error
		if mapsBlock(pid) {
			want = process.ErrUnreachable
		} else {
			t.Log("this kernel reads mappings without the lock") // since Linux 6.17
		}
		for what, err := range read {
			if !errors.Is(err, want) {
				t.Errorf("mappings are %s: %v", what, err)
			}
		}
	}
}

// mapsBlock reports whether the kernel does not return from reading the mappings of a process.
func mapsBlock(pid int) bool {
	read := make(chan struct{})
	go func() {
		_, _ = process.Maps(pid)
		close(read)
	}()
	select {
	case <-read:
		return false
	case <-time.After(process.ReadTimeout):
		return true
	}
}

// startLockable starts such a process. Its memory is locked from when lock is called until answer is.
func startLockable(t *testing.T) (c *child, lock, answer func()) {
	t.Helper()
	dir := t.TempDir()
	program, source, mount := filepath.Join(dir, "locked"), filepath.Join(dir, "source"), filepath.Join(dir, "mount")
	if os.Getenv("PGSB_TEST_LOCKED") == "" {
		t.Skip("PGSB_TEST_LOCKED is not set: whoever looks at the process meanwhile, as ps does, waits for it")
	}
	server := exec.Command("bindfs", "-f", source, mount)
	if _, err := exec.LookPath("bindfs"); err != nil {
		t.Skipf("a file system in user space is needed: %v", err)
	}
	out, err := exec.Command("gcc", "-O1", "-pthread", "-o", program, "testdata/locked.c").CombinedOutput()
	if err != nil {
		t.Skipf("no C compiler: %v\n%s", err, out)
	}
	if err := errors.Join(os.Mkdir(source, 0o700), os.Mkdir(mount, 0o700), server.Start()); err != nil {
		t.Fatal(err)
	}
	answer = func() { _ = server.Process.Signal(unix.SIGCONT) }
	ended := make(chan struct{})
	go func() { _ = server.Wait(); close(ended) }()
	t.Cleanup(func() { // after the process's own, which is killed first
		answer()
		_ = unix.Unmount(mount, unix.MNT_DETACH)
		_ = server.Process.Kill()
		<-ended
	})
	var before, now unix.Stat_t
	if err := unix.Stat(source, &before); err != nil {
		t.Fatal(err)
	}
	until(t, "the file system is mounted, or cannot be", func() bool {
		select {
		case <-ended:
			t.Skip("no file system in user space may be mounted here")
		default:
		}
		return unix.Stat(mount, &now) == nil && now.Dev != before.Dev
	})
	c = startChild(t, exec.Command(program, filepath.Join(mount, "file")))
	t.Cleanup(answer) // before that, else it could not be killed
	lock = func() {
		if err := server.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if _, err := c.stdin.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
		until(t, "two threads wait in the kernel, and one rests", func() bool {
			tids, err := process.Threads(c.pid)
			states := make(map[byte]int)
			for _, tid := range tids {
				stat, _ := process.ReadTaskStat(c.pid, tid)
				states[stat.State]++
			}
			return err == nil && states['D'] == 2 && states['S'] == 1
		})
	}
	return c, lock, answer
}
