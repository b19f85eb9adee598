package clusterprofile

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
)

// childEnv says what this program does as a child: see TestChild.
const childEnv = "PGSB_TEST_PROFILE_CHILD"

// variableAt is where each child maps the page with the variables of a server.
const variableAt = 0x7e00_0000_0000

// TestChild is no test. It is the program of a child that the other tests start.
func TestChild(t *testing.T) {
	kind := os.Getenv(childEnv)
	if kind == "" {
		t.Skip("for children")
	}
	at := unsafe.Add(nil, variableAt) // a fixed address
	page, err := unix.MmapPtr(-1, 0, at, uintptr(os.Getpagesize()),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	if err != nil {
		t.Fatal(err)
	}
	if kind == "stuck" {
		if err := provideNothing(uint64(uintptr(page))); err != nil {
			t.Skip(err)
		}
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

// startSleeper starts a child that sleeps. The variables of a stuck one cannot be read.
func startSleeper(t *testing.T, kind string) int {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^TestChild$")
	c.Env = append(os.Environ(), childEnv+"="+kind)
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

// newTestServer describes this process as a postmaster, whose children have their variables in one page.
func newTestServer() *server {
	pid := os.Getpid()
	return &server{
		cluster: cluster.Cluster{PostmasterPID: pid}, waits: &waitevent.Server{}, procs: 16,
		target: clusterbpf.Server{Postmaster: pid, WaitPointer: variableAt, Status: variableAt + 8},
	}
}

// TestSleepersWithUnreachable profiles a server with a process whose memory the kernel cannot read. It must be left
// out, and the stacks of the others must be there.
func TestSleepersWithUnreachable(t *testing.T) {
	stuck, good := startSleeper(t, "stuck"), startSleeper(t, "good")
	c, err := newCollectorOf(&Options{Mode: OffCPU, Rate: DefaultRate, Duration: 300 * time.Millisecond, CostLimit: 1},
		newTestServer())
	if errors.Is(err, clusterbpf.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- c.run(context.Background()) }()
	select {
	case err = <-ran:
	case <-time.After(3 * time.Minute):
		t.Fatal("the profile does not end")
	}
	c.sleepers.end()
	c.sampler.Close()
	if errors.Is(err, clusterbpf.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	stacks := make(map[int]int)
	for key, w := range c.off {
		stacks[key.process.pid] += len(w.stacks)
	}
	if stacks[good] == 0 || stacks[stuck] != 0 {
		t.Errorf("stacks by process: %v; %d answers, %d does not", stacks, good, stuck)
	}
	if p := c.byPID[stuck]; p == nil || p.off < c.options.Duration {
		t.Errorf("the time of process %d is missing: %+v", stuck, p)
	}
	if notes := strings.Join(c.summary.Notes(), "\n"); c.summary.Unreachable != 1 ||
		!strings.Contains(notes, "of 1 process are missing") {
		t.Errorf("%d processes do not answer: %s", c.summary.Unreachable, notes)
	}
}
