package sampler

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process/procfs"
)

// Words of struct pt_regs.
const (
	counterRegister = 5 // rbx, which testdata/moment.c counts in
	systemCall      = 15
	programCounter  = 16
	stackPointer    = 19
)

// quick is a period of which tests see many.
const quick = 200 * time.Microsecond

// open loads a sampler of a processor, and binds the test to that. It skips the test if there can be none.
func open(t *testing.T, number int) *processor {
	t.Helper()
	s, err := loadKernel([]int{number})
	if isRefusal(t, err) {
		t.Fatal(err)
	}
	if errors.Is(err, ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	pin(t, number)
	return s.Processors[0]
}

// isRefusal reports whether a kernel that is new enough refuses a program or table.
func isRefusal(t *testing.T, err error) bool {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	refused := errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.E2BIG) ||
		errors.Is(err, ebpf.ErrNotSupported)
	return refused && (major > 6 || major == 6 && minor >= 10)
}

// startSleep starts a program that sleeps, waits until it does, and returns its process id.
func startSleep(t *testing.T) int {
	t.Helper()
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	awaitSleep(t, c.Process.Pid)
	return c.Process.Pid
}

// compile compiles a program of testdata, or skips the test.
func compile(t *testing.T, name string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), name)
	compiler := exec.CommandContext(t.Context(), "gcc", "-O1", "-o", program, "testdata/"+name+".c")
	if out, err := compiler.CombinedOutput(); err != nil {
		t.Skipf("gcc: %v: %s", err, out)
	}
	return program
}

// startTold starts a program that prints something before it does its work, and reads that. Before, the process may
// still execute another program.
func startTold(t *testing.T, c *exec.Cmd, said ...any) {
	t.Helper()
	const unsupported = 77 // see testdata/stacks.c
	var complaint bytes.Buffer
	c.Stderr = &complaint
	told, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscan(told, said...); err != nil {
		if _ = c.Wait(); c.ProcessState.ExitCode() == unsupported {
			t.Skipf("no such memory here: %s", complaint.String())
		}
		t.Fatalf("%v: %v, %s", err, c.ProcessState, complaint.String())
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
}

// stackEnd is where the kernel has put the arguments of a process's program. Behind them it leaves up to 8 KiB free by
// chance. A page there can be without memory, and an interrupt cannot fetch it.
func stackEnd(t *testing.T, pid int) uint64 {
	t.Helper()
	stat, err := procfs.ReadStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	return stat.StackStart
}

// pin binds the test to a processor.
func pin(t *testing.T, number int) {
	t.Helper()
	runtime.LockOSThread() // for good: the thread ends with the test
	var set unix.CPUSet
	set.Set(number)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		t.Skipf("processor %d: %v", number, err)
	}
}

// bind binds a process to a processor.
func bind(t *testing.T, pid, number int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(number)
	if err := unix.SchedSetaffinity(pid, &set); err != nil {
		t.Fatal(err)
	}
}

// awaitSleep waits until a process sleeps. The call has another number when the kernel continues a sleep.
func awaitSleep(t *testing.T, pid int) procfs.Syscall {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; {
		call, err := procfs.ReadSyscall(pid, pid)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", call, err)
		}
		if !call.Running && (call.Number == unix.SYS_CLOCK_NANOSLEEP || call.Number == unix.SYS_RESTART_SYSCALL) {
			return call
		}
	}
}

// wake lets a sleeper run for a moment: the end of a stop ends the sleep, which the kernel then continues. On a loaded
// machine, the sleeper can wait long for its processor: awaitSleep waits until it has run.
func wake(t *testing.T, pid int) {
	t.Helper()
	for _, signal := range []unix.Signal{unix.SIGSTOP, unix.SIGCONT} {
		if err := unix.Kill(pid, signal); err != nil {
			t.Fatal(err)
		}
	}
}

// read reads a target by a call, and returns its sample, and whether the call missed it.
func read(t *testing.T, p *processor, target rawTarget) (s rawSample, missed bool) {
	t.Helper()
	before, samples := p.Missed(), len(p.Samples())
	target.Wanted = 1
	*p.Target(0) = target
	p.Aim(1)
	if errno := p.ReadWanted(); errno != 0 {
		t.Fatal(errno)
	}
	if p.Target(0).Wanted != 0 {
		t.Fatalf("still wanted: %+v", p.Target(0))
	}
	if all := p.Samples(); len(all) > samples {
		s = all[len(all)-1]
	}
	return s, p.Missed() > before
}

// counts starts testdata/moment.c on processor 0, and returns its process id, and the address where it counts.
func counts(t *testing.T) (pid int, places uint64) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the program is in x86_64's assembly")
	}
	c := exec.Command(compile(t, "moment"))
	startTold(t, c, &places)
	bind(t, c.Process.Pid, 0)
	return c.Process.Pid, places
}

// moments are those at which that program was sampled.
type moments struct {
	places uint64
	seen   int
	last   uint64
}

// compare compares the program's register with its stack.
func (m *moments) compare(t *testing.T, s *rawSample, stack []byte) {
	t.Helper()
	stack = stack[m.places-s.StackStart:]
	n, a, b := s.Registers[counterRegister], binary.NativeEndian.Uint64(stack), binary.NativeEndian.Uint64(stack[8:])
	if b == 0 {
		return // it has not begun to count
	}
	if n-a > 1 || a-b > 1 || n < m.last {
		t.Fatalf("register %d, places %d and %d, after %d", n, a, b, m.last)
	}
	if n != m.last {
		m.seen++
	}
	m.last = n
}

// hasHugePages reports whether the kernel has given a process huge pages.
func hasHugePages(t *testing.T, pid int) bool {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	return !bytes.Contains(text, []byte("AnonHugePages:         0 kB"))
}
