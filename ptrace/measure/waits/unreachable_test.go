package waits

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childEnv says what this program does as a child: see TestChild.
const childEnv = "PGSB_TEST_WAITS_CHILD"

// variableAt is where each child maps the page with its variable my_wait_event_info.
const variableAt = 0x7e00_0000_0000

// TestChild is no test. It is the program of a child that the other tests start.
func TestChild(t *testing.T) {
	text := os.Getenv(childEnv)
	if text == "" {
		t.Skip("for children")
	}
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	at := unsafe.Add(nil, variableAt) // a fixed address
	page, err := unix.MmapPtr(-1, 0, at, uintptr(os.Getpagesize()),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	if err != nil {
		t.Fatal(err)
	}
	if value == 0 {
		err = provideNothing(uint64(uintptr(page)))
	} else {
		*(*uint64)(page) = value
	}
	if err != nil {
		t.Skip(err)
	}
	_, _ = os.Stdout.WriteString("ready\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// provideNothing makes the kernel wait for a page that no process provides, whenever the page is read.
func provideNothing(page uint64) error {
	const (
		api, apiCall, registerCall = 0xaa, 0xc018aa3f, 0xc020aa00
		missing                    = 1
	)
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		return errno
	}
	agree := [3]uint64{api}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, apiCall, uintptr(unsafe.Pointer(&agree))); errno != 0 {
		return errno
	}
	register := [4]uint64{page, uint64(os.Getpagesize()), missing}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, registerCall, uintptr(unsafe.Pointer(&register))); errno != 0 {
		return errno
	}
	return nil
}

// startWaiter starts a child whose variable has a value. With 0, the variable cannot be read.
func startWaiter(t *testing.T, value uint64) int {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^TestChild$")
	c.Env = append(os.Environ(), childEnv+"="+strconv.FormatUint(value, 10))
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close(); _ = c.Process.Kill(); _ = c.Wait() })
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Skipf("userfaultfd(2) does not work here: %q, %v", line, err)
	}
	return c.Process.Pid
}

// TestOpenWithUnreachable opens a server with a process whose memory the kernel cannot read. It must be left out, and
// the waits of the others must be there. This process is the postmaster.
func TestOpenWithUnreachable(t *testing.T) {
	const size, event, pid, count, header = 64, 8, 4, 4, 16
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(page) })
	base := uint64(uintptr(unsafe.Pointer(&page[0])))
	procs := base + 1024
	put := func(at int, value uint64) { binary.NativeEndian.PutUint64(page[at:], value) }
	put(0, base+16)                                        // ProcGlobal
	put(16, procs)                                         // PROC_HDR.allProcs
	binary.NativeEndian.PutUint32(page[16+header:], count) // PROC_HDR.allProcCount
	stuck := startWaiter(t, 0)
	good := startWaiter(t, procs+size+event)
	binary.NativeEndian.PutUint32(page[1024+size+pid:], uint32(good))
	binary.NativeEndian.PutUint32(page[1024+size+event:], 7)
	s := Server{
		Postmaster: os.Getpid(), WaitPointer: variableAt, ProcGlobal: base,
		Layout: Layout{ProcSize: size, WaitEvent: event, PID: pid, ProcCount: header},
	}
	for _, method := range []Method{Sampled, Blocked} {
		provider := openInTime(t, s, method)
		if provider == nil {
			continue
		}
		if got := provider.Info().Unreachable; !slices.Equal(got, []int{stuck}) {
			t.Errorf("%s: unreachable are %v, want %d", method, got, stuck)
		}
		for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
			snapshot, err := provider.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(snapshot.Processes, func(p Process) bool {
				return p.PID == good && len(p.Events) == 1 && p.Events[0].ID == 7
			}) {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: process %d is missing: %+v", method, good, snapshot.Processes)
				break
			}
		}
		provider.Close()
	}
}

// openInTime calls Open. It returns nil if the method is impossible here.
func openInTime(t *testing.T, s Server, method Method) Provider {
	t.Helper()
	type result struct {
		provider Provider
		err      error
	}
	opened := make(chan result, 1)
	go func() {
		p, err := Open(s, Options{Method: method})
		opened <- result{p, err}
	}()
	select {
	case r := <-opened:
		if method != Sampled && (errors.Is(r.err, ErrUnsupported) || errors.Is(r.err, fs.ErrPermission)) {
			t.Logf("%s: %v", method, r.err)
			return nil
		}
		if r.err != nil {
			t.Fatal(r.err)
		}
		return r.provider
	case <-time.After(3 * time.Minute):
		t.Fatalf("%s: Open does not return", method)
	}
	return nil
}
