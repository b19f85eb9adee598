package activity

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
	osexec "os/exec"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/levels"
)

// childEnv makes this program a child of TestReadUnreachable: "entry" or "nothing".
const childEnv = "PGSB_TEST_ACTIVITY_CHILD"

// The addresses in each child. The page has the server's two variables, and in a child with an entry what they point to.
const (
	pageAt  = 0x7e00_0000_0000
	waitAt  = 64
	entryAt = 128
	stateAt = 232
)

// TestChild is no test. It is the program of the children.
func TestChild(t *testing.T) {
	kind, child := os.LookupEnv(childEnv)
	if !child {
		t.Skip("for children")
	}
	page, err := unix.MmapPtr(-1, 0, unsafe.Add(nil, pageAt), uintptr(os.Getpagesize()),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	if err != nil {
		t.Fatal(err)
	}
	memory := unsafe.Slice((*byte)(page), os.Getpagesize())
	if kind == "nothing" {
		if err := provideNothing(memory); err != nil {
			t.Skip(err)
		}
	} else {
		binary.NativeEndian.PutUint64(memory, pageAt+waitAt)
		binary.NativeEndian.PutUint64(memory[8:], pageAt+entryAt)
		binary.NativeEndian.PutUint32(memory[entryAt+processID:], uint32(os.Getpid()))
		client := slices.Index(BackendTypes(15), ClientBackend)
		binary.NativeEndian.PutUint32(memory[entryAt+typeNumber:], uint32(client))
		binary.NativeEndian.PutUint32(memory[entryAt+stateAt:], uint32(slices.Index(States(15), "active")))
	}
	_, _ = os.Stdout.WriteString("ready\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// provideNothing makes every read of the memory wait for a page that never arrives (userfaultfd(2)).
func provideNothing(memory []byte) error {
	const api, apiCall, registerCall, missing = 0xaa, 0xc018aa3f, 0xc020aa00, 1
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	agree := [3]uint64{api}
	register := [4]uint64{uint64(uintptr(unsafe.Pointer(&memory[0]))), uint64(len(memory)), missing}
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

func startChild(t *testing.T, kind string) int {
	t.Helper()
	c := osexec.Command(os.Args[0], "-test.run=^TestChild$")
	c.Env = append(os.Environ(), childEnv+"="+kind)
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

// TestReadUnreachable reads a server of which one process has a page that never arrives. The others must be read, now
// and at the next call. This process is the postmaster.
func TestReadUnreachable(t *testing.T) {
	first := startChild(t, "entry")
	stuck := startChild(t, "nothing")
	last := startChild(t, "entry")
	self, err := process.IDOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	names, err := levels.NewWaitNames(15)
	if err != nil {
		t.Fatal(err)
	}
	r := &Reader{types: BackendTypes(15), states: States(15), server: &waitevent.Server{
		Names: names,
		Cluster: cluster.Cluster{
			PostmasterPID: self.PID, PostmasterStart: self.StartTime, UID: os.Geteuid(), GID: os.Getegid(), Version: 15,
		},
		Target: waits.Server{
			Postmaster: self.PID, WaitPointer: pageAt, Status: pageAt + 8, Layout: waits.Layout{State: stateAt},
		},
	}}
	for range 2 {
		type answer struct {
			processes []Process
			err       error
		}
		answers := make(chan answer, 1)
		go func() {
			processes, err := r.Read()
			answers <- answer{processes, err}
		}()
		select {
		case a := <-answers:
			var got []int
			for _, p := range a.processes {
				got = append(got, p.PID)
				if p.BackendType != ClientBackend || p.State != Active {
					t.Errorf("process %d: %+v", p.PID, p)
				}
			}
			want := []int{first, last}
			slices.Sort(want)
			if slices.Sort(got); a.err != nil || !slices.Equal(got, want) {
				t.Errorf("read %v, %v, want %v without %d", got, a.err, want, stuck)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a page that never arrives stopped the reading of all processes")
		}
	}
}
