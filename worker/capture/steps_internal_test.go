package capture

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/worker/naming"
)

const (
	stepsVariable = "PGSB_STEPS" // instructions of each statement, and a fifth of those of each program
	stepsDefault  = 5_000        // if Full, otherwise a fifth
)

func stepsWanted(t *testing.T) int {
	t.Helper()
	text := os.Getenv(stepsVariable)
	if text == "" && testing.Short() {
		return stepsDefault / 20
	}
	if text == "" && !pgtest.Full() {
		return stepsDefault / 5
	}
	if text == "" {
		return stepsDefault
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q", stepsVariable, text)
	}
	return n
}

// TestEveryInstruction runs programs from the dynamic linker's first instruction on, and compares the stack at each
// instruction with the calls that were made.
func TestEveryInstruction(t *testing.T) {
	for _, command := range []string{
		"true", "ls -l /", "date", "sh -c :", "perl -e print(sort(1..9))", "python3 -c import(json)",
	} {
		t.Run(command, func(t *testing.T) {
			words := strings.Fields(command)
			if _, err := exec.LookPath(words[0]); err != nil {
				t.Skipf("%s is not installed", words[0])
			}
			const more = 5 // the first instructions are those of the dynamic linker, and the same for all
			newStepped(t).everyInstruction(t, more*stepsWanted(t), words[0], words[1:]...)
		})
	}
}

// TestEveryInstructionAround does the same with programs that use signal handlers, longjmp, vfork and exceptions, from
// main to the end. It takes one of two builds by default.
func TestEveryInstructionAround(t *testing.T) {
	builds := []string{"cc -O2 -static steps.c", "g++ -O2 -static-pie throws.cc"}
	if pgtest.Full() {
		builds = append(builds, "cc -O2 steps.c", "cc -O0 -static-pie steps.c", "cc -O2 -fno-plt -Wl,-z,lazy steps.c",
			"g++ -O1 -fno-omit-frame-pointer -static-pie throws.cc")
	}
	selected := figure.Share(t, 2)
	for i, build := range builds {
		if !selected(i) {
			continue
		}
		t.Run(build, func(t *testing.T) {
			words := strings.Fields(build)
			if _, err := exec.LookPath(words[0]); err != nil {
				t.Skipf("%s is not installed", words[0])
			}
			program := filepath.Join(t.TempDir(), "program")
			c := exec.CommandContext(t.Context(), words[0], append(words[1:], "-o", program)...)
			c.Dir = "testdata"
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			const all = 1_000_000
			s := newStepped(t)
			s.throws = words[0] == "g++"
			s.everyInstruction(t, all, program)
		})
	}
}

// everyInstruction runs a program for at most as many instructions as the parameter enough says, and compares its
// stacks with its calls.
func (s *stepped) everyInstruction(t *testing.T, enough int, program string, arguments ...string) {
	t.Helper()
	var err error
	s.process, err = startStepped(exec.CommandContext(t.Context(), program, arguments...))
	if errors.Is(err, errNotStepped) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.process.End() }()
	s.look(t, s.process.PID)
	s.run(t, enough, nil)
	s.tell(t)
}

// stepped is a process that executes one instruction after the other, and the results of comparing its stacks.
type stepped struct {
	capturer *Capturer
	process  *steppedProcess
	space    *naming.Space
	end      uint64 // of the stack
	stack    []byte
	frames   []unwind.Frame
	want     []uint64
	throws   bool // C++ exceptions

	seen                         map[uint64]bool
	taken, judged, walked, wrong int
	early, installing            int // see doubt
	cut                          int // in musl
	asleep, bare                 few
	doubts                       []doubt
}

// few counts the stacks that were unwound with less information than usual (judged), and how many of these walks end
// early (cut).
type few struct{ judged, cut int }

// doubt is a stack, without its innermost frame, that differs from the calls but may still be correct. One case is
// the target of a longjmp that is about to happen, as the C library's call frame information says. It counts as wrong
// if the process does not get there soon, or returns elsewhere before. The other case is the start of an exception
// handler. The handler's registers and address replace those of the caller one by one, so the frames after it do not
// matter. It counts as wrong if no call returns soon.
type doubt struct {
	callers  []uint64
	shown    string
	depth    int  // number of open calls at the time of the doubt
	left     int  // instructions until the doubt counts as wrong
	returned bool // a call has returned to another place
}

func newStepped(t *testing.T) *stepped {
	t.Helper()
	c, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	return &stepped{capturer: c, stack: make([]byte, 1<<20), seen: make(map[uint64]bool)}
}

// look reads the mappings.
func (s *stepped) look(t *testing.T, pid int) {
	t.Helper()
	maps, err := process.Maps(pid)
	if err != nil {
		t.Fatal(err)
	}
	s.space = s.capturer.processes.Open(pid, 1, maps)
	for i := range maps {
		if maps[i].Path == "[stack]" {
			s.end = maps[i].End
		}
	}
}

// run steps until the process has ended, or has executed as many instructions as the parameter enough says, or the
// channel done is closed. It judges the stack when an instruction is executed for the first time, after each system
// call, and at every thousandth instruction.
func (s *stepped) run(t *testing.T, enough int, done <-chan struct{}) {
	t.Helper()
	const often = 1000
	for range enough {
		pc := s.process.PC()
		if first := !s.seen[pc]; first || s.process.Called || s.taken%often == 0 {
			s.seen[pc] = true
			s.judge(t)
			s.judgeAsleep(t)
			if first {
				s.judgeBare(t)
			}
		}
		s.taken++
		err := s.process.Step()
		s.settle(t)
		if errors.Is(err, errSteppedEnded) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// judge compares the stack with the process's real calls.
func (s *stepped) judge(t *testing.T) {
	t.Helper()
	p := s.process
	if p.Called {
		p.Forget()
		s.look(t, p.PID)
	}
	s.want = p.Stack(s.want[:0])
	stop := s.unwind(t, s.registers(t, p), p.Read, s.space)
	s.judged++
	s.walked += len(s.frames)
	switch at := s.differs(); {
	case ended(stop) && at == len(s.frames) && at == len(s.want):
	case at == len(s.frames) && at < len(s.want) && s.inMusl(s.frames[at-1].Lookup()):
		s.cut++ // at and in a call of longjmp
	case s.reentered():
		s.early++
	default:
		d := doubt{shown: s.beside(stop), depth: len(s.want), left: 20}
		if s.throws {
			d.left = 400 // as many as it takes to put all registers in their places
		}
		for _, f := range s.frames[1:] {
			d.callers = append(d.callers, f.PC)
		}
		s.doubts = append(s.doubts, d)
	}
}

// judgeAsleep unwinds the stack after a system call with only the registers that are known of a process that sleeps in
// this call, and judges the result.
func (s *stepped) judgeAsleep(t *testing.T) {
	t.Helper()
	p := s.process
	if !p.Called {
		return
	}
	a, known := s.capturer.arch, s.registers(t, p)
	sp, _ := known.Get(a.SP)
	s.asleep.add(s, t, s.unwind(t, a.Blocked(p.PC(), sp, false, [6]uint64{}), p.Read, s.space))
}

// judgeBare unwinds a stack in the C library as if the library had no call frame information, and judges the result.
func (s *stepped) judgeBare(t *testing.T) {
	t.Helper()
	const name = "libc.so"
	p := s.process
	_, f, ok := s.space.Lookup(p.PC())
	if ok && f.Module != nil && strings.HasPrefix(f.Module.Name, name) && !s.inMusl(p.PC()) {
		s.bare.add(s, t, s.unwind(t, s.registers(t, p), p.Read, bareModules{s.space, name}))
	}
}

// ended reports whether a walk has reached a stack's base. With musl, the base is in a function that never returns.
func ended(stop unwind.Stop) bool { return stop.Whole() || stop.Reason == unwind.NeverReturns }

// add counts a stack. The stack may lack outer frames, but it must have no wrong frame, unless the frame is marked as a
// guess.
func (n *few) add(s *stepped, t *testing.T, stop unwind.Stop) {
	t.Helper()
	n.judged++
	if !ended(stop) {
		n.cut++
	}
	at := s.differs()
	guessed := slices.ContainsFunc(s.frames[:min(at+1, len(s.frames))], func(f unwind.Frame) bool {
		return f.Method == unwind.ByFramePointer || f.Method == unwind.ByReturnRegister // which the answer says
	})
	if !guessed && (at < len(s.frames) && !s.reentered() || at < len(s.want) && stop.Whole()) {
		s.complain(t, s.beside(stop))
	}
}

// inMusl reports whether code is in musl, which has no call frame information.
func (s *stepped) inMusl(addr uint64) bool {
	_, f, ok := s.space.Lookup(addr)
	return ok && f.Module != nil && f.Module.Name == "libc.so"
}

// reentered reports whether the only difference is the extra caller of musl's sigsetjmp. longjmp has returned there,
// and sigsetjmp is about to push its return address again.
func (s *stepped) reentered() bool {
	if len(s.frames) != len(s.want)+1 || !s.inMusl(s.process.PC()) {
		return false
	}
	for i, f := range s.frames[2:] {
		if f.PC != s.want[i+1] {
			return false
		}
	}
	return true
}

// settle decides the doubts that the last step has confirmed or removed.
func (s *stepped) settle(t *testing.T) {
	t.Helper()
	if len(s.doubts) == 0 {
		return
	}
	kept := s.doubts[:0]
	for _, d := range s.doubts {
		d.left--
		s.want = s.process.Stack(s.want[:0])
		switch {
		case !d.returned && slices.Equal(s.want, d.callers):
			s.early++
			continue
		case s.throws && s.process.Left:
			s.installing++
			continue
		case d.left == 0:
			s.complain(t, d.shown)
			continue
		case len(s.want) != d.depth:
			d.returned = d.returned || len(d.callers) == 0 || !slices.Equal(s.want[1:], d.callers[1:])
		}
		kept = append(kept, d)
	}
	s.doubts = kept
}

// differs returns the index of the first wrong frame.
func (s *stepped) differs() int {
	for i, f := range s.frames {
		if i == len(s.want) || f.PC != s.want[i] {
			return i
		}
	}
	return len(s.frames)
}

func (s *stepped) registers(t *testing.T, p *steppedProcess) arch.Registers {
	t.Helper()
	regs, err := s.capturer.arch.DecodePRStatus(p.Registers)
	if err != nil {
		t.Fatal(err)
	}
	return regs
}

// unwind walks the stack of a process with these registers.
func (s *stepped) unwind(
	t *testing.T, regs arch.Registers, read func(addr uint64, dst []byte) (int, error), modules unwind.Modules,
) unwind.Stop {
	t.Helper()
	a := s.capturer.arch
	sp, _ := regs.Get(a.SP)
	start := sp - uint64(a.RedZone)
	n, err := read(start, s.stack[:min(s.end-start, uint64(len(s.stack)))])
	if err != nil {
		t.Fatal(err)
	}
	th := snapshot.Thread{Stack: snapshot.Stack{Start: start, Data: s.stack[:n]}}
	u := unwind.Unwinder{Arch: a, MaxFrames: 1 << 14}
	var stop unwind.Stop
	s.frames, stop = u.Unwind(s.frames[:0], regs, newMemory(&th, nil, a), modules)
	return stop
}

// complain reports an error, up to a limit.
func (s *stepped) complain(t *testing.T, what string) {
	t.Helper()
	const most = 20
	if s.wrong++; s.wrong <= most {
		t.Error(what)
	}
}

// beside prints a stack and the expected stack side by side.
func (s *stepped) beside(stop unwind.Stop) string {
	const longest = 30
	var text strings.Builder
	for i := range min(max(len(s.frames), len(s.want)), longest) {
		got, want := "-", "-"
		if i < len(s.frames) {
			got = fmt.Sprintf("%s (%d)", s.place(s.frames[i].PC), s.frames[i].Method)
		}
		if i < len(s.want) {
			want = s.place(s.want[i])
		}
		fmt.Fprintf(&text, "#%-3d %-50s %s\n", i, got, want)
	}
	return fmt.Sprintf("%d frames, %v; there are %d\n%s", len(s.frames), stop, len(s.want), text.String())
}

func (s *stepped) place(pc uint64) string {
	_, f, ok := s.space.Lookup(pc)
	if !ok || f.Module == nil {
		return fmt.Sprintf("%#x", pc)
	}
	return fmt.Sprintf("%s+%#x", f.Module.Name, pc-f.Bias)
}

func (s *stepped) tell(t *testing.T) {
	t.Helper()
	for _, d := range s.doubts {
		s.complain(t, d.shown)
	}
	figure.Printf(t, "%d instructions taken, %d different ones; %d stacks of %d frames compared (%d in longjmp, already "+
		"those that it leads to; %d where a handler of exceptions is about to run; %d cut in musl), %d at system calls "+
		"by what is seen of who sleeps there (%d cut), %d in "+
		"the C library as if it had no call frame information (%d cut); %d wrong",
		s.taken, len(s.seen), s.judged, s.walked, s.early, s.installing, s.cut, s.asleep.judged, s.asleep.cut,
		s.bare.judged, s.bare.cut, s.wrong)
	if s.judged < 100 {
		t.Error("that is no comparison")
	}
}
