package process_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// providerEnv makes this program a child of a test: see TestProvider.
const providerEnv = "PGSB_TEST_PROCESS_CHILD"

// wordAt is where each child maps a page with a word.
const wordAt = 0x7e00_0000_0000

// TestProvider is no test. It is the program of a child: its word has the value in the environment. Without a value,
// the kernel waits for a page that never arrives when the word is read.
func TestProvider(t *testing.T) {
	text, child := os.LookupEnv(providerEnv)
	if !child {
		t.Skip("for children")
	}
	page, err := unix.MmapPtr(-1, 0, unsafe.Add(nil, wordAt), uintptr(os.Getpagesize()),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	if err != nil {
		t.Fatal(err)
	}
	if value, err := strconv.ParseUint(text, 10, 64); err == nil {
		*(*uint64)(page) = value
	} else if err := neverArrives(uint64(uintptr(page))); err != nil {
		t.Skip(err)
	}
	_, _ = os.Stdout.WriteString("ready\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// neverArrives registers a page with userfaultfd(2), which no thread of the process reads.
func neverArrives(page uint64) error {
	const api, apiCall, registerCall, missing = 0xaa, 0xc018aa3f, 0xc020aa00, 1
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	agree := [3]uint64{api}
	register := [4]uint64{page, uint64(os.Getpagesize()), missing}
	if errno == 0 {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, apiCall, uintptr(unsafe.Pointer(&agree)))
	}
	if errno == 0 {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, registerCall, uintptr(unsafe.Pointer(&register)))
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// start starts a child. With the value "", its word never arrives.
func start(t *testing.T, value string) int {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^TestProvider$")
	c.Env = append(os.Environ(), providerEnv+"="+value)
	stdin, err1 := c.StdinPipe()
	stdout, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2, c.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close(); _ = c.Process.Kill(); _ = c.Wait() })
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Skipf("userfaultfd(2) does not work here: %q, %v", line, err)
	}
	return c.Process.Pid
}

// inTime fails the test at once if f does not return.
func inTime(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s did not return", what)
	}
}

// TestMemoryNeverArrives reads a page that never arrives. Each read must return with ErrUnreachable, and a Memory that
// has waited once must not wait again.
func TestMemoryNeverArrives(t *testing.T) {
	pid := start(t, "")
	var word [8]byte
	inTime(t, "the reads of a page that never arrives", func() {
		m := process.NewMemory(pid)
		_, err1 := m.Read(wordAt, word[:])
		for range 1000 { // with the timeout, they would take five minutes
			if err := m.ReadPieces(word[:], []process.Piece{{Address: wordAt, Length: 8}}); !errors.Is(err, process.ErrUnreachable) {
				t.Errorf("a later read: %v", err)
				break
			}
		}
		_, err2 := process.ReadMemoryWithTimeout(pid, wordAt, word[:])
		if !errors.Is(err1, process.ErrUnreachable) || !errors.Is(err2, process.ErrUnreachable) {
			t.Errorf("errors %v and %v", err1, err2)
		}
	})
}

// TestEach reads processes of which some never answer. The others must be read, in the order of the list.
func TestEach(t *testing.T) {
	one, stuck, two, gone := start(t, "1"), start(t, ""), start(t, "2"), start(t, "3")
	three := start(t, "3")
	if err := unix.Kill(gone, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); !(process.ID{PID: gone}).Ended(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a killed process has not ended")
		}
	}
	type value struct {
		word uint64
		err  error
	}
	read := func(_ int, memory process.MemoryOf) value {
		var word [8]byte
		err := memory.ReadPieces(word[:], []process.Piece{{Address: wordAt, Length: 4}, {Address: wordAt + 4, Length: 4}})
		return value{binary.NativeEndian.Uint64(word[:]), err}
	}
	for range 2 { // the second time, the first read still hangs
		var got []uint64
		var unreachable []int
		inTime(t, "Each", func() {
			unreachable = process.Each([]int{one, stuck, two, gone, three}, read, func(pid int, v value) {
				if (v.err != nil) != (pid == gone) {
					t.Errorf("process %d: %v", pid, v.err)
				}
				if v.err == nil {
					got = append(got, v.word)
				}
			})
		})
		if !slices.Equal(got, []uint64{1, 2, 3}) || !slices.Equal(unreachable, []int{stuck}) {
			t.Errorf("values %v, unreachable %v, want 1, 2, 3 and %d", got, unreachable, stuck)
		}
	}
}

// TestEachIsBounded gives up when many processes do not answer, and does not wait for each of them.
func TestEachIsBounded(t *testing.T) {
	pids := make([]int, 12)
	for i := range pids {
		pids[i] = start(t, "")
	}
	var begun atomic.Int32
	inTime(t, "Each", func() {
		left := process.Each(pids, func(_ int, memory process.MemoryOf) error {
			begun.Add(1)
			_, err := memory.Read(wordAt, make([]byte, 8))
			return err
		}, func(pid int, err error) { t.Errorf("process %d was read: %v", pid, err) })
		if !slices.Equal(left, pids) {
			t.Errorf("left out %v of %v", left, pids)
		}
	})
	if n := begun.Load(); n > 4 {
		t.Errorf("waited for %d of %d processes that do not answer", n, len(pids))
	}
}

// TestEachPanics passes on a panic of a read, and leaves the process readable.
func TestEachPanics(t *testing.T) {
	pid := start(t, "5")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was lost")
			}
		}()
		process.Each([]int{pid}, func(int, process.MemoryOf) int { panic("a fault") }, func(int, int) {})
	}()
	var word [8]byte
	if _, err := process.NewMemory(pid).Read(wordAt, word[:]); err != nil || word[0] != 5 {
		t.Errorf("read %v, %v", word, err)
	}
}

// TestEnded checks the identity of a process: it has ended when it is a zombie, has been reaped, or another process has
// its id. It has not ended while it only cannot be read.
func TestEnded(t *testing.T) {
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	id, err := process.IDOf(c.Process.Pid)
	if err != nil || id.Ended() {
		t.Fatalf("a process that runs: %v, %v", id, err)
	}
	if !(process.ID{PID: id.PID, StartTime: id.StartTime - 1}).Ended() {
		t.Error("an earlier process with this id has not ended")
	}
	if err := unix.Kill(id.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); !id.Ended(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a zombie has not ended")
		}
	}
	if _, err := process.IDOf(id.PID); !errors.Is(err, process.ErrExited) {
		t.Errorf("the identity of a zombie: %v", err)
	}
	_ = c.Wait()
	if !id.Ended() {
		t.Error("a process that was reaped has not ended")
	}
}
