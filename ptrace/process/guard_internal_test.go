package process

import (
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestWithTimeout checks that a read which blocks is left behind, and that its place is freed when it ends. Until
// then no other read of the process begins.
func TestWithTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pid, other = -1, -2
		var looked, late atomic.Int32
		look, tooLate := func() { looked.Add(1) }, func() { late.Add(1) }
		if !WithTimeout(pid, look, tooLate) || looked.Load() != 1 || late.Load() != 0 {
			t.Errorf("one that comes back: looked %d times, late %d times", looked.Load(), late.Load())
		}
		back := make(chan struct{})
		if WithTimeout(pid, func() { <-back; look() }, tooLate) || looked.Load() != 1 {
			t.Error("one that does not come back was waited for")
		}
		began := time.Now()
		for range 100 {
			if WithTimeout(pid, look, tooLate) || Guard.Begin(pid) {
				t.Fatal("another look was begun")
			}
		}
		if looked.Load() != 1 || late.Load() != 100 || time.Since(began) > 0 {
			t.Errorf("while it has not come back: looked %d times, late %d times, after %v", looked.Load(), late.Load(),
				time.Since(began))
		}
		if !WithTimeout(other, look, tooLate) || looked.Load() != 2 {
			t.Error("another process was not looked at")
		}
		close(back)
		synctest.Wait()
		if looked.Load() != 3 || late.Load() != 101 {
			t.Errorf("one that comes back late: looked %d times, late %d times", looked.Load(), late.Load())
		}
		if !WithTimeout(pid, look, tooLate) || looked.Load() != 4 {
			t.Error("a process that answers again was not looked at")
		}
	})
}

// TestReadsTakeTurns checks that reads of a process wait for each other, for a while.
func TestReadsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pid = -3
		var inside, turns atomic.Int32
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if !Guard.Begin(pid) {
					t.Error("not waited for")
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two at a time")
				}
				time.Sleep(ReadTimeout / 40)
				inside.Add(-1)
				turns.Add(1)
				Guard.End(pid)
			})
		}
		wg.Wait()
		if turns.Load() != 20 || len(Guard.ByPID) != 0 {
			t.Errorf("%d turns, left %v", turns.Load(), Guard.ByPID)
		}
	})
}

// TestPanicsWithTimeout checks that a panic in a read reaches the caller while it waits, and that one which comes later, in
// the read or after it, ends nothing. In each case the process can be read again.
func TestPanicsWithTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pid = -3
		caught := func(read, late func()) (ended bool, value any) {
			defer func() { value = recover() }()
			return WithTimeout(pid, read, late), nil
		}
		broken, nothing := func() { panic("broken") }, func() {}
		ended, value := caught(broken, broken)
		if text, _ := value.(string); ended || !strings.Contains(text, "broken\n") {
			t.Errorf("ended %v, %v", ended, value)
		}
		for _, f := range []struct{ read, late func() }{{broken, nothing}, {nothing, broken}, {broken, broken}} {
			back := make(chan struct{})
			if ended, value := caught(func() { <-back; f.read() }, f.late); ended || value != nil {
				t.Errorf("ended %v, %v", ended, value)
			}
			close(back)
			synctest.Wait()
			if ended, value := caught(nothing, broken); !ended || value != nil {
				t.Errorf("the next read: ended %v, %v", ended, value)
			}
		}
	})
}

// TestBusyIsNotBlocked checks that a read is waited for while it needs a processor or another goroutine, and that a read
// which sleeps in a system call is left behind.
func TestBusyIsNotBlocked(t *testing.T) {
	const pid = -4
	deadline := func() time.Time { return time.Now().Add(3 * ReadTimeout) }
	for what, read := range map[string]func(){
		"computes": func() {
			for end := deadline(); time.Now().Before(end); { // the loop is the work
			}
		},
		"sleeps outside of the kernel's calls": func() { time.Sleep(3 * ReadTimeout) },
	} {
		if !WithTimeout(pid, read, func() { t.Error("called although the read was waited for") }) {
			t.Errorf("a read that %s was left behind", what)
		}
	}
	ended := make(chan struct{})
	began := time.Now()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	if WithTimeout(pid, func() { _, _ = unix.Read(pipe[0], make([]byte, 1)) }, func() { close(ended) }) {
		t.Errorf("a read that sleeps in a system call was waited for, for %v", time.Since(began))
	}
	if Guard.Begin(pid) {
		t.Error("a second read began beside one that sleeps")
	}
	unix.Close(pipe[1]) // ends the read
	<-ended
	if !Guard.Begin(pid) {
		t.Error("no read begins after one that slept")
	}
	Guard.End(pid)
}

// TestBlockedCallerIsNotWaitedFor checks that Begin soon gives up if a caller of Begin sleeps in a system call.
func TestBlockedCallerIsNotWaitedFor(t *testing.T) {
	const pid = -5
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	begun, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the read must be on the thread that Begin has recorded
		defer runtime.UnlockOSThread()
		if !Guard.Begin(pid) {
			t.Error("the first read did not begin")
		}
		close(begun)
		_, _ = unix.Read(pipe[0], make([]byte, 1))
		Guard.End(pid)
	}()
	<-begun
	began := time.Now()
	if Guard.Begin(pid) {
		t.Error("a second read began beside one that sleeps")
	}
	if waited := time.Since(began); waited >= busyTimeout {
		t.Errorf("waited %v", waited)
	}
	unix.Close(pipe[1]) // ends the read
	<-ended
}

// TestOtherWorkIsNoBlockedRead checks that a thread which waits for a file, another process or an event does not count as a
// thread that reads memory: its goroutine may be on another thread meanwhile.
func TestOtherWorkIsNoBlockedRead(t *testing.T) {
	for _, number := range []int{unix.SYS_FUTEX, unix.SYS_EPOLL_PWAIT, unix.SYS_NANOSLEEP, unix.SYS_WRITE, unix.SYS_PWRITE64,
		unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_PPOLL, unix.SYS_WAITID, unix.SYS_PTRACE} {
		if call := strconv.Itoa(number) + " 0x9 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x40a0\n"; sleepsInCall(call) {
			t.Error(call)
		}
	}
	for _, number := range []int{unix.SYS_PROCESS_VM_READV, unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_IOCTL, unix.SYS_OPENAT} {
		if call := strconv.Itoa(number) + " 0x9 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x40a0\n"; !sleepsInCall(call) {
			t.Error(call)
		}
	}
	for call, want := range map[string]bool{"running\n": false, "-1 0x7ffd 0x40a0\n": false, "unknown": true} {
		if sleepsInCall(call) != want {
			t.Error(call)
		}
	}
}
