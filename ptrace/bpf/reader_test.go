package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/procfs"
)

// open makes a reader, or says why there is none.
func open(t *testing.T) *Reader {
	t.Helper()
	if err := Check(); isRefusal(t, err) {
		t.Fatal(err)
	} else if errors.Is(err, ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
	k, err := Host(1)
	if err != nil {
		t.Fatal(err)
	}
	r, err := k.Reader()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// isRefusal reports whether a kernel that is new enough takes a program or table for a wrong one.
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
	return (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EACCES)) && (major > 6 || major == 6 && minor >= 10)
}

// startSleep starts a program that sleeps, and returns its process id.
func startSleep(t *testing.T) int {
	t.Helper()
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c.Process.Pid
}

// compile makes a program of one in testdata, or says why it cannot.
func compile(t *testing.T, name string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), name)
	compiler := exec.CommandContext(t.Context(), "gcc", "-O1", "-o", program, "testdata/"+name+".c")
	if out, err := compiler.CombinedOutput(); err != nil {
		t.Skipf("gcc: %v: %s", err, out)
	}
	return program
}

// startTold starts one that says something before it does what it is for, and reads that. Until then the process may
// not have begun to execute it: what is known of its memory may be another program's.
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

// stackEnd is where the kernel has put the arguments of a process's program: behind that it leaves up to 8 KiB free by
// chance, and where these have a page of their own there is no memory, which who may not wait does not get.
func stackEnd(t *testing.T, pid int) uint64 {
	t.Helper()
	stat, err := procfs.ReadStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	return stat.StackStart
}

// pin has the test run on a processor.
func pin(t *testing.T, processor int) {
	t.Helper()
	runtime.LockOSThread() // for good: the thread ends with the test
	var set unix.CPUSet
	set.Set(processor)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		t.Skipf("processor %d: %v", processor, err)
	}
}

// awaitSleep waits until a process sleeps.
func awaitSleep(t *testing.T, pid int) procfs.Syscall {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		call, err := procfs.ReadSyscall(pid, pid)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", call, err)
		}
		if !call.Running && call.Number == unix.SYS_CLOCK_NANOSLEEP {
			return call
		}
	}
}

// TestSleeper: what is read of a process that sleeps is what a system call tells of it, and its memory.
func TestSleeper(t *testing.T) {
	r := open(t)
	pid := startSleep(t)
	call := awaitSleep(t, pid)
	s := r.Slot(0)
	*s = Slot{PID: uint32(pid), End: stackEnd(t, pid), Most: MaxStack, RedZone: 128}
	for processor := range runtime.NumCPU() {
		pin(t, processor)
		s.Wanted = 1
		if errno := r.Read(1, processor); errno != 0 {
			t.Fatal(errno)
		}
		if s.Outcome == Read {
			break
		}
	}
	if s.Outcome != Read || s.State == 0 || s.Registers[stackPointer] != call.SP || s.Registers[16] != call.PC {
		t.Fatalf("%+v, a system call at %+v", s, call)
	}
	stack := make([]byte, s.Length)
	n, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &stack[0], Len: s.Length}},
		[]unix.RemoteIovec{{Base: uintptr(s.Start), Len: int(s.Length)}}, 0)
	if err != nil || n != int(s.Length) || s.Start != call.SP-128 || s.Start+s.Length != s.End {
		t.Fatalf("%d of %d bytes at %#x, %v", n, s.Length, s.Start, err)
	}
	if !bytes.Equal(stack, r.Stack(s)) {
		t.Error("another stack than the process's")
	}
	if stat, err := procfs.ReadStat(pid); err != nil || s.Started/1e7 != stat.StartTime {
		t.Errorf("started %d ns after the system, %+v, %v", s.Started, stat, err)
	}
}

// TestOneMoment: registers and stack of a process that runs all the time are of one moment, at the same instruction's
// distance, however often it is read.
func TestOneMoment(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the program is in x86_64's assembly")
	}
	r := open(t)
	const processor = 0
	pid, places := counts(t, processor)
	m := moments{reader: r, places: places}
	*r.Slot(0) = Slot{PID: uint32(pid), End: stackEnd(t, pid), Most: MaxStack, RedZone: 128}
	pin(t, processor)
	const wanted = 500
	for deadline := time.Now().Add(time.Minute); m.read < wanted && time.Now().Before(deadline); {
		m.look(t, processor)
		time.Sleep(100 * time.Microsecond) // it has the processor meanwhile
	}
	if m.read < wanted {
		t.Errorf("read at %d moments only", m.read)
	}
	if runtime.NumCPU() > 1 { // from another processor it is seen to run, or rightly
		pin(t, processor+1)
		for range 20_000 {
			m.look(t, processor)
		}
		if m.moved == 0 {
			t.Error("it was never seen to run")
		}
	}
}

// counts starts testdata/moment.c on a processor, and returns its process id, and where it counts.
func counts(t *testing.T, processor int) (pid int, places uint64) {
	t.Helper()
	c := exec.Command(compile(t, "moment"))
	startTold(t, c, &places)
	bind(t, c.Process.Pid, processor)
	return c.Process.Pid, places
}

// bind has a process stay on a processor.
func bind(t *testing.T, pid, processor int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(processor)
	if err := unix.SchedSetaffinity(pid, &set); err != nil {
		t.Fatal(err)
	}
}

// moments are those at which the program was read.
type moments struct {
	reader      *Reader
	places      uint64
	read, moved int
	last        uint64
}

// look reads the program, and compares its register with its stack.
func (m *moments) look(t *testing.T, processor int) {
	t.Helper()
	m.reader.Empty()
	m.reader.Slot(0).Wanted = 1
	if errno := m.reader.Read(1, processor); errno != 0 {
		t.Fatal(errno)
	}
	s := m.reader.Slot(0)
	if s.Outcome == Moved {
		m.moved++
	}
	if s.Outcome == Read {
		m.compare(t, s, m.reader.Stack(s))
	}
}

// compare compares the program's register with its stack.
func (m *moments) compare(t *testing.T, s *Slot, stack []byte) {
	t.Helper()
	stack = stack[m.places-s.Start:]
	n, a, b := s.Registers[5], binary.NativeEndian.Uint64(stack), binary.NativeEndian.Uint64(stack[8:])
	if b == 0 {
		return // it has not begun to count
	}
	if n-a > 1 || a-b > 1 || n < m.last {
		t.Fatalf("register %d, places %d and %d, after %d", n, a, b, m.last)
	}
	if n != m.last {
		m.read++
	}
	m.last = n
}

// TestBounds: a stack that is not there, one that is longer than wanted, one for which there is no room, nobody.
func TestBounds(t *testing.T) {
	r := open(t)
	pid := startSleep(t)
	awaitSleep(t, pid)
	end := stackEnd(t, pid)
	read := func(want Slot) Slot {
		t.Helper()
		*r.Slot(0) = want
		for processor := range runtime.NumCPU() {
			pin(t, processor)
			r.Slot(0).Wanted = 1
			if errno := r.Read(1, processor); errno != 0 {
				t.Fatal(errno)
			}
			if r.Slot(0).Outcome > Elsewhere {
				break
			}
		}
		return *r.Slot(0)
	}
	for _, c := range []struct {
		name string
		slot Slot
		want Outcome
	}{
		{"no such process", Slot{PID: 1 << 30}, Gone},
		{"the kernel's thread", Slot{PID: 2, End: 4096, Most: 4096}, NoStack},
		{"an end below the stack pointer", Slot{PID: uint32(pid), End: 8, Most: MaxStack}, NoStack},
		{"no end", Slot{PID: uint32(pid), End: ^uint64(0), Most: ^uint32(0)}, NoStack},
	} {
		if got := read(c.slot); got.Outcome != c.want {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	for most := uint64(64); ; most *= 2 {
		got := read(Slot{PID: uint32(pid), End: end, Most: uint32(most)})
		if got.Outcome != Read || got.Length > most || got.Length < most && got.Start+got.Length != end {
			t.Fatalf("at most %d bytes: %+v", most, got)
		}
		if got.Length < most {
			break
		}
	}
	for tries := 0; r.Room(); tries++ {
		if got := read(Slot{PID: uint32(pid), End: end, Most: MaxStack}); got.Outcome != Read || tries > mostArea {
			t.Fatalf("after %d: %+v", tries, got)
		}
	}
	if got := read(Slot{PID: uint32(pid), End: end, Most: MaxStack}); got.Outcome != Full {
		t.Errorf("no room: %+v", got)
	}
	r.Empty()
	if got := read(Slot{PID: uint32(pid), End: end, Most: MaxStack}); got.Outcome != Read || got.At != 0 {
		t.Errorf("room again: %+v", got)
	}
}
