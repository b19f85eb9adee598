package unwind

import (
	"bytes"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/golang"
)

// This file finds the callers of the functions of Go's run time that switch to another stack (runtime/asm_*.s). On
// x86-64 since Go 1.21, these functions keep a frame pointer on both stacks, and the walk follows it. In older versions
// the walk reads the values that they have saved to switch back. On other architectures the walk ends at such a
// function with the reason StackSwitch.

// asmCgoCall is the function by which Go calls C. If C calls Go again, this may move the goroutine's stack. The frame
// pointer that C has preserved then points to the old stack.
const asmCgoCall = "runtime.asmcgocall"

// systemStack calls a function on the thread's system stack. cgoCallback is the function by which C calls Go.
const (
	systemStack = "runtime.systemstack"
	cgoCallback = "runtime.cgocallback"
)

// moreStack is the function that grows a goroutine's stack. The functions that it calls run on the thread's system
// stack.
const moreStack = "runtime.morestack"

// byRecord are functions whose caller is found by the frame pointer. They do not change the frame pointer after their
// prologue, but may change the stack pointer.
var byRecord = map[string]bool{
	systemStack: true, asmCgoCall: true, "runtime.asmcgocall_no_g": true, cgoCallback: true,
}

// unflagged are functions that switch stacks. The names are needed for versions of Go whose table has no flag for this.
var unflagged = map[string]bool{
	systemStack: true, asmCgoCall: true, cgoCallback: true, "runtime.mcall": true,
	"runtime.gogo": true, moreStack: true, "runtime.nanotime1": true, "runtime.walltime1": true,
	"runtime.walltime": true, "runtime.sigfwd": true, "runtime.callCgoSigaction": true, "runtime.racecall": true,
	"runtime.callCgoMmap": true, "runtime.callCgoMunmap": true, "runtime.asmcgocall_no_g": true,
}

// switches reports whether the function may switch stacks, so that the stack pointer may differ from the value in Go's
// table.
func (g *goFrame) switches() bool {
	return (g.f.Flags&golang.SPWrite != 0 || unflagged[g.f.Name]) && !entered[g.f.Name]
}

// lost ends a walk at a switch of stacks that cannot be followed.
func (g *goFrame) lost() (Frame, Stop) {
	return Frame{}, Stop{Reason: StackSwitch, Address: g.frame.PC}
}

// stepExact finds the caller of a function that a signal interrupted, or of the innermost function, if this function
// switches stacks and has not yet switched. Otherwise it ends the walk (see lost).
func (g *goFrame) stepExact() (Frame, Stop) {
	n := g.at - g.f.Entry
	if g.prologue.record != 0 && byRecord[g.f.Name] && g.delta > 0 && g.at >= g.prologue.record {
		return g.stepRecord()
	}
	if g.module.Code == nil || n > maxLeaf {
		return g.lost()
	}
	if g.prologue.record != 0 && g.at < g.prologue.record || n == 0 {
		return g.stepPlain()
	}
	code, err := g.module.Code.Code(g.f.Entry, n)
	if err != nil || g.w.arch.MovesSP(code) {
		return g.lost()
	}
	return g.stepPlain()
}

// stepSwitch finds the caller of a function that switches stacks and has called another function. If the code cannot be
// read or is unknown, it ends the walk (see lost).
func (g *goFrame) stepSwitch() (Frame, Stop) {
	if !g.w.arch.Go.Followed || g.module.Code == nil {
		return g.lost()
	}
	moved := g.w.calledBack && g.f.Name == asmCgoCall
	if g.prologue.record != 0 && byRecord[g.f.Name] && !moved {
		return g.stepRecord()
	}
	after := g.after()
	switch g.f.Name {
	case asmCgoCall:
		if sp, stop, ok := g.afterCgo(after); ok {
			return g.leaveTo(sp, stop)
		}
		return g.lost()
	case systemStack:
		if sp, stop, ok := g.afterSystemStack(after); ok {
			return g.leaveTo(sp, stop)
		}
		return g.lost()
	}
	if sp, ok := g.restored(after); ok {
		return g.leaveTo(sp, Stop{})
	}
	return g.lost()
}

// maxAfter limits the bytes of code after a call that are searched for an instruction that restores the stack pointer.
const maxAfter = 64

// after returns the code at the frame's return address, which runs when the called function has returned. It returns
// nil if the code cannot be read.
func (g *goFrame) after() []byte {
	for n := uint64(maxAfter); n >= 8; n /= 2 {
		if code, err := g.module.Code.Code(g.frame.PC-g.module.Bias, n); err == nil {
			return code
		}
	}
	return nil
}

// leaveTo moves to the caller. sp is the function's stack pointer before it switched stacks. If stop has a reason, sp
// could not be found, and leaveTo only returns stop.
func (g *goFrame) leaveTo(sp uint64, stop Stop) (Frame, Stop) {
	if stop.Reason != running {
		return Frame{}, stop
	}
	return g.leave(sp+g.delta+8, true)
}

// stepRecord finds the caller by the frame pointer, which points to the saved frame pointer and the return address. It
// ends the walk if there is no valid record at this place.
func (g *goFrame) stepRecord() (Frame, Stop) {
	fp, ok := g.w.regs.Get(g.w.arch.FP)
	if !ok || fp == 0 || fp%8 != 0 || g.delta == 0 {
		return g.lost()
	}
	ra, ok := g.w.mem.Word(fp + 8)
	if !ok {
		return Frame{}, Stop{Reason: NoMemory, Address: fp}
	}
	if !g.w.isReturnAddress(ra) {
		return g.lost()
	}
	g.w.calledBack = g.w.calledBack || g.f.Name == cgoCallback
	return g.leave(fp+16, true)
}

// restored finds the first instruction after the call that copies a register to the stack pointer. It returns the value
// of that register. C functions preserve the register, so its value is normally known. The result is false if the value
// is unknown or unaligned, or if there is no such instruction.
func (g *goFrame) restored(after []byte) (uint64, bool) {
	for i := range after {
		p := after[i:]
		if len(p) < 3 || p[0]&0xfb != 0x48 || p[1] != 0x89 || p[2]&0xc7 != 0xc4 {
			continue
		}
		sp, ok := g.w.regs.Get(amd64Encoded[p[2]>>3&7|p[0]&4<<1])
		return sp, ok && sp%8 == 0
	}
	return 0, false
}

// Offsets of the fields stack.hi, m, sched.sp, sched.pc and sched.g in runtime.g, the structure of a goroutine. They
// are equal in all versions since Go 1.16.
const (
	offStackHigh  = 8
	offM          = 48
	offSchedSP    = 56
	offSchedPC    = 64
	offSchedG     = 72
	threadPointer = 32 // words at the beginning of runtime.m, the thread's structure, that are searched for its current goroutine
)

// GoLayout has the offsets that a walk needs to get from one stack of a Go thread to another, in bytes. StackLow,
// StackHigh, SavedSP and Thread are the offsets of stack.lo, stack.hi, sched.sp and m in runtime.g. Size and ThreadSize
// are how many bytes a walk reads of runtime.g and of runtime.m. Any word of runtime.m may point at a goroutine of the
// thread. The first word points at the goroutine of the thread's system stack.
type GoLayout struct {
	StackLow, StackHigh, SavedSP, Thread, Size, ThreadSize int
}

// GoStructures returns the offsets, for callers that copy the memory that a walk needs.
func GoStructures() GoLayout {
	return GoLayout{
		StackHigh: offStackHigh, SavedSP: offSchedSP, Thread: offM, Size: offSchedG + 8, ThreadSize: 8 * threadPointer,
	}
}

// stepMoreStack finds the function that needed more stack, from the state that its goroutine has saved. Go itself
// resumes the goroutine from this state. The thread's structure, runtime.m, points to the goroutine. stepMoreStack
// verifies that the structure found is a goroutine of this thread, and that its saved stack pointer lies in its own
// stack. If several fit, the walk ends.
func (g *goFrame) stepMoreStack() (Frame, Stop) {
	system, known := g.w.regs.Get(g.w.arch.Go.Goroutine)
	if !known || !g.w.arch.Go.Followed || g.load(system+offSchedSP) != g.w.floor() {
		return g.lost()
	}
	m := g.load(system + offM)
	if m == 0 {
		return g.lost()
	}
	found := uint64(0)
	for i := range uint64(threadPointer) {
		one := g.load(m + 8*i)
		if one == 0 || one%8 != 0 || one == system || one == found || g.load(one+offSchedG) != one ||
			g.load(one+offM) != m {
			continue
		}
		sp := g.load(one + offSchedSP)
		if sp <= g.load(one) || sp > g.load(one+offStackHigh) {
			continue
		}
		if found != 0 {
			return g.lost()
		}
		found = one
	}
	pc := g.load(found + offSchedPC)
	if found == 0 || !g.w.isReturnAddress(pc) {
		return g.lost()
	}
	var caller arch.Registers
	sp := g.load(found + offSchedSP)
	caller.Set(g.w.arch.PC, pc)
	caller.Set(g.w.arch.SP, sp)
	caller.Set(g.w.arch.Go.Goroutine, found)
	return g.accept(sp, caller, true)
}

// load returns the word of memory at an address; 0 if this memory is missing in the snapshot.
func (g *goFrame) load(addr uint64) uint64 {
	v, _ := g.w.mem.Word(addr)
	return v
}

// word returns the word at an address, or a Stop with NoMemory if the memory is missing.
func (g *goFrame) word(addr uint64) (uint64, Stop) {
	v, ok := g.w.mem.Word(addr)
	if !ok {
		return 0, Stop{Reason: NoMemory, Address: addr}
	}
	return v, Stop{}
}

// afterCgo returns the stack pointer that asmcgocall had before it switched stacks. It computes the value like
// asmcgocall's own code after the call. If a goroutine runs, asmcgocall has saved two values on the system stack: the
// goroutine, and the distance of its stack pointer from the end of its stack. Otherwise asmcgocall has saved the stack
// pointer itself. ok is false if the code is unknown, or if the value is not in the goroutine's stack. If stop has a
// reason, memory is missing.
func (g *goFrame) afterCgo(after []byte) (sp uint64, stop Stop, ok bool) {
	here := g.w.floor()
	goroutine, _, found := loadFromStack(after, 0x8b, 7)  // mov …(%rsp),%rdi
	depth, at, subtracts := loadFromStack(after, 0x2b, 6) // sub …(%rsp),%rsi
	saved, before, loads := loadFromStack(after, 0x8b, 6) // mov …(%rsp),%rsi
	if loads && (!subtracts || before < at) {
		sp, stop = g.word(here + saved)
		return sp, stop, true
	}
	if !found || !subtracts {
		return 0, Stop{}, false
	}
	ptr, stop := g.word(here + goroutine)
	if stop.Reason != running {
		return 0, stop, true
	}
	low, stop := g.word(ptr)
	if stop.Reason != running {
		return 0, stop, true
	}
	high, stop := g.word(ptr + offStackHigh)
	if stop.Reason != running {
		return 0, stop, true
	}
	used, stop := g.word(here + depth)
	sp = high - used
	return sp, stop, sp >= low && sp < high
}

// loadFromStack finds an instruction with an opcode, a register and an operand in memory relative to the stack pointer.
// It returns the operand's offset from the stack pointer and the instruction's index in code.
func loadFromStack(code []byte, opcode, register byte) (disp uint64, at int, ok bool) {
	for i := range code {
		p := code[i:]
		if len(p) < 5 || p[0] != 0x48 || p[1] != opcode || p[3] != 0x24 {
			continue
		}
		switch p[2] {
		case register<<3 | 0x04:
			return 0, i, true
		case register<<3 | 0x44:
			return uint64(p[4]), i, p[4] < 0x80
		}
	}
	return 0, 0, false
}

// afterSystemStack returns the stack pointer of the goroutine that called systemstack. It finds this goroutine like
// systemstack's own code after the call: a register points to the thread's system goroutine, this points to the thread,
// and the thread points to its current goroutine. The saved stack pointer of the system goroutine must equal the
// frame's stack pointer. This proves that the register still points to the system goroutine.
func (g *goFrame) afterSystemStack(after []byte) (sp uint64, stop Stop, ok bool) {
	system, known := g.w.regs.Get(g.w.arch.Go.Goroutine)
	i := bytes.Index(after, []byte{0x48, 0x8b, 0x58, offM}) // mov g.m(%rax),%rbx
	if !known || i < 0 || system%8 != 0 || len(after) < i+11 {
		return 0, Stop{}, false
	}
	p := after[i+4:]
	var current int64
	switch {
	case p[0] == 0x48 && p[1] == 0x8b && p[2] == 0x83: // mov m.curg(%rbx),%rax
		current = displacement(p[3:7])
	case p[0] == 0x48 && p[1] == 0x8b && p[2] == 0x43:
		current = displacement(p[3:4])
	default:
		return 0, Stop{}, false
	}
	if saved, stop := g.word(system + offSchedSP); stop.Reason != running || saved != g.w.floor() {
		return 0, stop, stop.Reason != running
	}
	m, stop := g.word(system + offM)
	if stop.Reason != running {
		return 0, stop, true
	}
	user, stop := g.word(m + uint64(current))
	if stop.Reason != running {
		return 0, stop, true
	}
	sp, stop = g.word(user + offSchedSP)
	return sp, stop, true
}
