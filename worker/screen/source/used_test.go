package source

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/moment"
)

// usedBy asks until the answer passes.
func usedBy(t *testing.T, k *uses, s *moment.Session, between func(), passes func(*Used) bool) {
	t.Helper()
	var u *Used
	for deadline := time.Now().Add(pgtest.Patience); time.Now().Before(deadline); {
		if u = k.of(s); u != nil && passes(u) {
			return
		}
		between()
		time.Sleep(leastUsedSpan + time.Millisecond)
	}
	t.Errorf("process %d used %+v", s.PID, u)
}

// TestUsedOnABusyHost: the kernel's answers come at an unknown moment between two times. The share is never too large.
func TestUsedOnABusyHost(t *testing.T) {
	t.Parallel()
	at := func(n time.Duration) time.Time { return noon.Add(n * time.Millisecond) }
	first := counted{from: at(0), to: at(300), knowsRan: true}
	second := counted{from: at(500), to: at(900), ran: 450 * time.Millisecond, knowsRan: true}
	if u := first.until(&second); u.Seconds != 0.9 || *u.ProcessorPercent != 50 {
		t.Errorf("%+v", u)
	}
	late := counted{from: at(500), to: at(505), ran: 510 * time.Millisecond, knowsRan: true} // counted late in the first answer
	if u := first.until(&late); *u.ProcessorPercent != 100 {
		t.Errorf("%g percent", *u.ProcessorPercent)
	}
}

// TestUsed expects the processor time of a busy process, and the bytes that this process writes to a disk.
func TestUsed(t *testing.T) {
	t.Parallel()
	busy := exec.Command("sh", "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Process.Kill(); _ = busy.Wait() }()
	var k uses
	s := &moment.Session{PID: busy.Process.Pid, ServerPID: 1}
	if u := k.of(s); u != nil {
		t.Errorf("the first answer is %+v", u)
	}
	usedBy(t, &k, s, func() {}, func(u *Used) bool {
		if p := u.ProcessorPercent; p == nil || *p < 0 || *p > 100 {
			t.Fatalf("%+v", u)
		}
		return *u.ProcessorPercent > 1 && u.ReadBytes != nil && *u.WrittenBytes == 0
	})
	for pid := range 2 * mostUsed {
		k.of(&moment.Session{PID: os.Getpid(), ServerPID: 100 + pid})
	}
	if len(k.known) > mostUsed {
		t.Errorf("%d processes are known", len(k.known))
	}
	k = uses{}
	if u := k.of(&moment.Session{PID: 1 << 30, ServerPID: 3}); u != nil {
		t.Errorf("a process that does not exist used %+v", u)
	}
	const size = 4 << 20
	dir := t.TempDir()
	if inMemory(t, dir) { // nothing that is written there is for a disk
		var err error
		if dir, err = os.MkdirTemp("/var/tmp", "pg_stat_backtrace"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		if inMemory(t, dir) {
			t.Skip("/var/tmp is in memory: what is written there is not for a disk")
		}
	}
	name := filepath.Join(dir, "file")
	own := &moment.Session{PID: os.Getpid(), ServerPID: 2}
	usedBy(t, &k, own, func() {
		if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}, func(u *Used) bool { return u.WrittenBytes != nil && *u.WrittenBytes*u.Seconds >= size })
	if again := k.of(own); again == nil || again.Seconds < leastUsedSpan.Seconds() {
		t.Errorf("a reader that asks soon after another one gets %+v", again)
	}
}

// inMemory reports whether a directory is in a file system in memory.
func inMemory(t *testing.T, dir string) bool {
	t.Helper()
	var file unix.Statfs_t
	if err := unix.Statfs(dir, &file); err != nil {
		t.Fatal(err)
	}
	return file.Type == unix.TMPFS_MAGIC
}
