package state

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
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/levels"
)

// childEnv makes this program a child of TestReadUnreachable: "entry" or "nothing".
const childEnv = "PGSB_TEST_STATE_CHILD"

// The addresses in each child and in the parent. Word 0 of a child's page is its pointer to its entry, word 1 its pointer to the wait
// event in its PGPROC.
const (
	childAt  = 0x7e00_0000_0000
	sharedAt = 0x7d00_0000_0000
	headerAt = 64
	procsAt  = 128
	procSize = 64
	procPID  = 8
	entryAt  = 1024
	layoutAt = 16 // of the count of processes, in the header
)

func mapPage(t *testing.T, at uintptr) []byte {
	t.Helper()
	page, err := unix.MmapPtr(-1, 0, unsafe.Add(nil, at), uintptr(os.Getpagesize()),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.MunmapPtr(page, uintptr(os.Getpagesize())) })
	return unsafe.Slice((*byte)(page), os.Getpagesize())
}

// TestChild is no test. It is the program of the children.
func TestChild(t *testing.T) {
	kind, child := os.LookupEnv(childEnv)
	if !child {
		t.Skip("for children")
	}
	memory := mapPage(t, childAt)
	if kind == "nothing" {
		if err := provideNothing(memory); err != nil {
			t.Skip(err)
		}
	} else {
		slot := uint64(kind[0] - '0')
		binary.NativeEndian.PutUint64(memory, sharedAt+entryAt+slot*uint64(of15.size))
		binary.NativeEndian.PutUint64(memory[8:], sharedAt+procsAt+slot*procSize)
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

// of15 are the offsets of PostgreSQL 15.
var of15, _ = offsetsOf(15)

// fakeServer returns a reader of a server whose postmaster is the process with the id in the parameter postmaster.
func fakeServer(t *testing.T, postmaster int) *Reader {
	t.Helper()
	id, err1 := process.IDOf(postmaster)
	names, err2 := levels.NewWaitNames(15)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return &Reader{
		offsets: of15, size: of15.size, types: BackendTypes(15), states: States(15), workers: map[identity]string{},
		server: &waitevent.Server{
			Names: names,
			Cluster: cluster.Cluster{
				PostmasterPID: id.PID, PostmasterStart: id.StartTime, UID: os.Geteuid(), GID: os.Getegid(), Version: 15,
			},
			Target: waits.Server{
				Postmaster: id.PID, Status: childAt, WaitPointer: childAt + 8, ProcGlobal: sharedAt,
				Layout: waits.Layout{PID: procPID, ProcSize: procSize, ProcCount: layoutAt},
			},
		},
	}
}

// readInTime fails the test if a read does not end.
func readInTime(t *testing.T, r *Reader) (*moment.Moment, error) {
	t.Helper()
	type answer struct {
		m   *moment.Moment
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		m, err := r.Read(Options{})
		answers <- answer{m, err}
	}()
	select {
	case a := <-answers:
		return a.m, a.err
	case <-time.After(3 * time.Minute):
		t.Fatal("a page that never arrives stopped the reading of all processes")
		return nil, nil //nolint:nilnil // not reached
	}
}

// TestReadUnreachable reads a server of which one process has a page that never arrives. The others must be read, now
// and at the next call. This process is the postmaster.
func TestReadUnreachable(t *testing.T) {
	shared := mapPage(t, sharedAt)
	binary.NativeEndian.PutUint64(shared, sharedAt+headerAt)
	binary.NativeEndian.PutUint64(shared[headerAt:], sharedAt+procsAt)
	binary.NativeEndian.PutUint32(shared[headerAt+layoutAt:], 3)
	first, stuck, last := startChild(t, "0"), startChild(t, "nothing"), startChild(t, "1")
	for i, pid := range []int{first, last} {
		entry := shared[entryAt+i*of15.size:]
		binary.NativeEndian.PutUint32(entry[of15.stProcpid:], uint32(pid))
		binary.NativeEndian.PutUint32(entry[of15.stBackendType:], uint32(slices.Index(BackendTypes(15), ClientBackend)))
		binary.NativeEndian.PutUint32(entry[of15.stState:], uint32(slices.Index(States(15), "active")))
	}
	r := fakeServer(t, os.Getpid())
	for range 2 {
		m, err := readInTime(t, r)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, s := range m.Sessions {
			if got = append(got, s.PID); s.Type != ClientBackend || s.State != "active" {
				t.Errorf("process %d: %+v", s.PID, s)
			}
		}
		want := []int{first, last}
		slices.Sort(want)
		if !slices.Equal(got, want) || len(m.Missing) == 0 {
			t.Errorf("read %v, missing %q, want %v without %d", got, m.Missing, want, stuck)
		}
	}
}

// TestProcOfEndedProcess: a session has its own wait, also if the PGPROC of an ended process, before or after its own, has the same
// process id.
func TestProcOfEndedProcess(t *testing.T) {
	const clientRead = 0x06000000
	shared := mapPage(t, sharedAt)
	binary.NativeEndian.PutUint64(shared, sharedAt+headerAt)
	binary.NativeEndian.PutUint64(shared[headerAt:], sharedAt+procsAt)
	binary.NativeEndian.PutUint32(shared[headerAt+layoutAt:], 4)
	pids := []int{startChild(t, "1"), startChild(t, "2")}
	for before, pid := range pids {
		i := before + 1
		binary.NativeEndian.PutUint32(shared[procsAt+i*procSize:], clientRead)
		binary.NativeEndian.PutUint32(shared[procsAt+i*procSize+procPID:], uint32(pid))
		entry := shared[entryAt+i*of15.size:]
		binary.NativeEndian.PutUint32(entry[of15.stProcpid:], uint32(pid))
		binary.NativeEndian.PutUint32(entry[of15.stBackendType:], uint32(slices.Index(BackendTypes(15), ClientBackend)))
	}
	binary.NativeEndian.PutUint32(shared[procsAt+procPID:], uint32(pids[1]))
	binary.NativeEndian.PutUint32(shared[procsAt+3*procSize+procPID:], uint32(pids[0]))
	r := fakeServer(t, os.Getpid())
	r.offsets.waitStart, r.offsets.lockGroupLeader = -1, -1 // the PGPROCs of this test end before them
	m, err := readInTime(t, r)
	if err != nil || len(m.Sessions) != len(pids) {
		t.Fatal(m, err)
	}
	for _, s := range m.Sessions {
		if s.Wait == nil || s.Wait.Event != "ClientRead" {
			t.Errorf("process %d waits for %v", s.PID, s.Wait)
		}
	}
}

// TestPostmasterUnreachable reads a server whose postmaster has a page that never arrives.
func TestPostmasterUnreachable(t *testing.T) {
	r := fakeServer(t, startChild(t, "nothing"))
	r.server.Target.ProcGlobal = childAt
	for range 2 {
		if _, err := readInTime(t, r); !errors.Is(err, process.ErrUnreachable) {
			t.Errorf("error %v, want %v", err, process.ErrUnreachable)
		}
	}
}
