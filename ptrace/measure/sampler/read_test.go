package sampler

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process/procfs"
)

// TestReadSleeper: the sample of a process that sleeps is equal to what a system call and its memory show. Only the
// processor that it belongs to samples it.
func TestReadSleeper(t *testing.T) {
	pid := startSleep(t)
	call := awaitSleep(t, pid)
	found := 0
	for number := range runtime.NumCPU() {
		p := open(t, number)
		s, missed := read(t, p, rawTarget{TID: uint32(pid), StackEnd: stackEnd(t, pid), MaxStack: MaxStack, RedZone: 128})
		if missed {
			continue // it belongs to another processor
		}
		found++
		if s.Outcome != outcomeRead || s.State == 0 || s.Registers[stackPointer] != call.SP ||
			s.Registers[programCounter] != call.PC {
			t.Fatalf("%+v, a system call at %+v", s, call)
		}
		stack := make([]byte, s.StackLength)
		n, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &stack[0], Len: s.StackLength}},
			[]unix.RemoteIovec{{Base: uintptr(s.StackStart), Len: int(s.StackLength)}}, 0)
		if err != nil || n != len(stack) || s.StackStart != call.SP-128 || s.StackStart+s.StackLength != s.StackEnd {
			t.Fatalf("%d of %d bytes at %#x, %v", n, s.StackLength, s.StackStart, err)
		}
		if !bytes.Equal(stack, p.Stack(&s)) {
			t.Error("the stack differs from the process's memory")
		}
		if stat, err := procfs.ReadStat(pid); err != nil || s.Started/1e7 != stat.StartTime {
			t.Errorf("started %d ns after the boot, %+v, %v", s.Started, stat, err)
		}
	}
	if found != 1 {
		t.Errorf("%d processors sampled it", found)
	}
}

// TestReadOneMoment: registers and stack of a process that runs all the time are of one moment, however often they are
// read.
func TestReadOneMoment(t *testing.T) {
	const number = 0
	p := open(t, number)
	pid, places := counts(t)
	m := moments{places: places}
	target := rawTarget{TID: uint32(pid), StackEnd: stackEnd(t, pid), MaxStack: MaxStack, RedZone: 128}
	missedAny := false
	look := func() {
		p.Reset()
		s, missed := read(t, p, target)
		missedAny = missedAny || missed
		if s.Outcome == outcomeRead {
			m.compare(t, &s, p.Stack(&s))
		}
	}
	const wanted = 500
	for deadline := time.Now().Add(3 * time.Minute); m.seen < wanted && time.Now().Before(deadline); {
		look()
		time.Sleep(100 * time.Microsecond) // it has the processor meanwhile
	}
	if m.seen < wanted {
		t.Errorf("%d moments only", m.seen)
	}
	if runtime.NumCPU() > 1 { // read from another processor it is seen to run, or is read correctly
		counts(t) // takes the processor from the first one in turns
		pin(t, number+1)
		for range 300_000 { // of which some begin shortly before it gets the processor
			look()
		}
		if !missedAny {
			t.Error("it was never seen to run")
		}
	}
}

// TestReadBounds: missing memory, a stack longer than the bound, an area without room, and a process that does not
// exist.
func TestReadBounds(t *testing.T) {
	pid := startSleep(t)
	p := open(t, 0)
	bind(t, pid, 0)
	wake(t, pid) // and belongs to that processor from then on
	awaitSleep(t, pid)
	end := stackEnd(t, pid)
	again := func(want rawTarget) (s rawSample) {
		t.Helper()
		for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); {
			var missed bool
			if s, missed = read(t, p, want); !missed {
				break
			}
			p.Reset()
		}
		return s
	}
	for _, c := range []struct {
		name   string
		target rawTarget
		want   outcome
		gone   uint32
	}{
		{"no such process", rawTarget{TID: 1 << 30}, outcomeNone, 1},
		{"an end below the stack pointer", rawTarget{TID: uint32(pid), StackEnd: 8, MaxStack: MaxStack}, outcomeNoStack, 0},
		{"no end", rawTarget{TID: uint32(pid), StackEnd: ^uint64(0), MaxStack: ^uint32(0)}, outcomeNoStack, 0},
	} {
		p.Reset()
		if s := again(c.target); s.Outcome != c.want || p.Target(0).Gone != c.gone {
			t.Errorf("%s: %+v, %+v", c.name, s, p.Target(0))
		}
		if len(p.Stacks()) != 0 {
			t.Errorf("%s: %d bytes of the area are lost", c.name, len(p.Stacks()))
		}
	}
	for most := uint64(64); ; most *= 2 {
		s := again(rawTarget{TID: uint32(pid), StackEnd: end, MaxStack: uint32(most)})
		if s.Outcome != outcomeRead || s.StackLength > most || s.StackLength < most && s.StackStart+s.StackLength != end {
			t.Fatalf("at most %d bytes: %+v", most, s)
		}
		if s.StackLength < most {
			break
		}
	}
	whole := rawTarget{TID: uint32(pid), StackEnd: end, MaxStack: MaxStack}
	for tries := 0; p.Room(); tries++ {
		if s, missed := read(t, p, whole); s.Outcome != outcomeRead || missed || tries > MaxSamples {
			t.Fatalf("after %d: %+v", tries, s)
		}
	}
	for range 3 {
		if s, missed := read(t, p, whole); !missed {
			t.Errorf("no room: %+v", s)
		}
	}
	p.Reset()
	if s := again(whole); s.Outcome != outcomeRead || s.StackAt != 0 {
		t.Errorf("room again: %+v", s)
	}
}

// TestReadKernelThread: a thread of the kernel's has no stack in user mode.
func TestReadKernelThread(t *testing.T) {
	const kthreadd = 2
	for number := range runtime.NumCPU() {
		p := open(t, number)
		if s, missed := read(t, p, rawTarget{TID: kthreadd, StackEnd: 4096, MaxStack: 4096}); !missed {
			if s.Outcome != outcomeNoStack {
				t.Errorf("%+v", s)
			}
			return
		}
	}
	t.Error("it belongs to no processor")
}

// sleeper is a process of testdata/stacks.c.
type sleeper struct {
	pid     int
	sp, end uint64
}

// sleepIn starts a program that sleeps in memory of a kind, on the processor that the test is bound to.
func sleepIn(t *testing.T, program, kind string) sleeper {
	t.Helper()
	const pause = 34 // pause(2) of x86_64, as the program is
	c := exec.Command(program, kind)
	var s sleeper
	startTold(t, c, &s.sp, &s.end)
	s.pid = c.Process.Pid
	for deadline := time.Now().Add(3 * time.Minute); ; {
		call, err := procfs.ReadSyscall(s.pid, s.pid)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", call, err)
		}
		if !call.Running && call.Number == pause {
			return s
		}
	}
}

// TestReadKinds: the copy of a sleeper's stack is equal to its memory, of each kind of memory. Memory that does not
// belong to the process, or that it may not read, is not copied.
func TestReadKinds(t *testing.T) {
	p := open(t, 0)
	program := compile(t, "stacks")
	for _, kind := range []string{"anonymous", "huge", "hugetlb", "gigantic", "shared", "file", "zero", "untouched"} {
		t.Run(kind, func(t *testing.T) {
			pin(t, 0)
			s := sleepIn(t, program, kind)
			if kind == "huge" && !hasHugePages(t, s.pid) {
				t.Skip("the kernel gives no huge pages")
			}
			compareMemory(t, p, s)
		})
	}
	const kernels = "0xffff888000100000" // of x86_64, without randomization
	for _, kind := range []string{
		"forbidden", "hole", "secret", kernels, "0", "0x7ffffffff000", "0x800000000000", "0xff00000000000000",
		"0xffffffffff600000", "0xfffffffffffff000",
	} {
		t.Run(kind, func(t *testing.T) {
			pin(t, 0)
			s := sleepIn(t, program, kind)
			if x, _ := read(t, p, rawTarget{TID: uint32(s.pid), StackEnd: s.end, MaxStack: MaxStack}); x.Outcome != outcomeNoStack {
				t.Errorf("%+v", x)
			}
		})
	}
}

// compareMemory compares copies of parts of a stack with the process's memory.
func compareMemory(t *testing.T, p *processor, s sleeper) {
	t.Helper()
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", s.pid))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = memory.Close() }()
	for below := uint32(0); below < 10_000; below += 97 {
		most := 1 + below*4%50_000
		p.Reset()
		x, _ := read(t, p, rawTarget{TID: uint32(s.pid), StackEnd: s.end, MaxStack: most, RedZone: below})
		if x.Outcome != outcomeRead || x.StackStart != s.sp-uint64(below) ||
			x.StackLength != min(uint64(most), s.end-x.StackStart) {
			t.Fatalf("%d bytes below, at most %d: %+v", below, most, x)
		}
		want := make([]byte, x.StackLength)
		if _, err := memory.ReadAt(want, int64(x.StackStart)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p.Stack(&x), want) {
			t.Fatalf("%d bytes below, at most %d: the copy differs from the memory", below, most)
		}
	}
}
