package unwind

import (
	"strings"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/golang"
)

// goFrame is a frame of a Go function, with the data to find its caller.
//
// Go's function table gives the distance of the stack pointer from its value at the function's entry. Compiled
// functions need nothing else (runtime/traceback.go, unwinder.resolveInternal). A few assembly functions of Go's run
// time switch to another stack: see golang_switch.go.
type goFrame struct {
	w      *walk
	frame  *Frame
	module *Module
	f      *golang.Function
	// The field at is the frame's address in the image. delta is how far the function has moved the stack pointer since
	// its entry, in bytes.
	at, delta uint64
	prologue  prologue
}

// stepGo finds the caller by a Go program's function table. The result is false if the address is in no Go function, or
// the table has no data for it.
func (w *walk) stepGo(frame *Frame, module *Module) (Frame, Stop, bool) {
	if next, stop, done := w.stepTrampoline(frame); done {
		return next, stop, true // Go programs have their own trampolines; the byte before a trampoline is in another function
	}
	at := frame.Lookup() - module.Bias
	f, err := module.Go.Find(at)
	if err != nil {
		return Frame{}, Stop{}, false
	}
	delta, err := f.SPDelta(at)
	if err != nil || delta < 0 || delta%w.arch.AddrSize != 0 || !w.knowsSP() {
		return Frame{}, Stop{}, false
	}
	g := goFrame{w: w, frame: frame, module: module, f: f, at: at, delta: uint64(delta)}
	w.scheduling = w.scheduling || schedules[f.Name]
	g.prologue = g.findPrologue()
	next, stop := g.step()
	return next, stop, true
}

// schedules are functions of Go's scheduler, which run on the thread's own stack (g0) and switch to another goroutine.
// No frame on the stack of the goroutine that ran before has called them, so the walk must not continue there.
var schedules = map[string]bool{
	"runtime.schedule": true, "runtime.goschedImpl": true, "runtime.gopreempt_m": true, "runtime.preemptPark": true,
	"runtime.execute": true, "runtime.goexit0": true,
}

// endsStack are functions without a caller. The names are needed for versions of Go whose table has no flags.
// runtime.mcall is one of them, because the functions that it calls never return: the goroutine that called mcall
// continues elsewhere.
var endsStack = map[string]bool{
	"runtime.goexit": true, "runtime.mstart": true, "runtime.mcall": true,
}

// entered are functions of Go's run time that the kernel calls for a signal. They are the outermost Go frames of the
// signal handler, but the interrupted code follows, so the stack does not end there.
var entered = map[string]bool{
	"runtime.sigtramp": true, "runtime.cgoSigtramp": true, "runtime.sigprofNonGoWrapper": true,
}

// injected are functions that the interrupted code seems to have called: a signal handler has changed the stack and the
// program counter to look like a call. They return to the interrupted instruction itself.
var injected = map[string]bool{
	"runtime.sigpanic": true, "runtime.asyncPreempt": true,
	"runtime.debugCallV1": true, "runtime.debugCallV2": true,
}

func (g *goFrame) step() (Frame, Stop) {
	name := g.f.Name
	switch {
	case name == "runtime.rt0_go", strings.HasPrefix(name, "_rt0_") && !strings.Contains(name, "_lib"):
		return Frame{}, Stop{Reason: EndOfStack} // the kernel starts the program here, without a return address
	case g.frame.Exact && g.switches():
		return g.stepExact()
	case g.w.scheduling && name == moreStack:
		// morestack was called to preempt the goroutine, not to grow its stack.
		return Frame{}, Stop{Reason: EndOfStack}
	case name == moreStack:
		return g.stepMoreStack()
	case endsStack[name], g.f.Flags&golang.TopFrame != 0 && !entered[name]:
		return Frame{}, Stop{Reason: EndOfStack}
	case g.switches():
		return g.stepSwitch()
	}
	return g.stepPlain()
}

// stepPlain finds the caller by Go's function table alone.
func (g *goFrame) stepPlain() (Frame, Stop) {
	sp := g.w.floor()
	if _, has := linkRegister(g.w.arch); has {
		return g.stepLinked(sp)
	}
	return g.leave(sp+g.delta+uint64(g.w.arch.AddrSize), false)
}

// leave moves to the caller of a function whose CFA is known, on architectures where calls push the return address.
// switched is set if the caller is on another stack.
func (g *goFrame) leave(cfa uint64, switched bool) (Frame, Stop) {
	w := g.w
	word := uint64(w.arch.AddrSize)
	ra, ok := w.mem.Word(cfa - word)
	if !ok {
		return Frame{}, Stop{Reason: NoMemory, Address: cfa - word}
	}
	if switched && !w.isReturnAddress(ra) {
		return g.lost()
	}
	caller, stop := g.callerRegisters(cfa)
	if stop.Reason != running {
		return Frame{}, stop
	}
	caller.Set(w.arch.PC, ra)
	caller.Set(w.arch.SP, cfa)
	return g.accept(cfa, caller, switched)
}

// callerRegisters returns the registers that the function has preserved or saved, except for PC and SP.
func (g *goFrame) callerRegisters(cfa uint64) (arch.Registers, Stop) {
	w := g.w
	var caller arch.Registers
	if conventions := &w.arch.Go; conventions.Followed {
		if v, ok := w.regs.Get(conventions.Goroutine); ok && !entered[g.f.Name] {
			caller.Set(conventions.Goroutine, v)
		}
	}
	if g.prologue.saves == nil {
		if v, ok := w.regs.Get(w.arch.FP); ok && g.delta == 0 {
			caller.Set(w.arch.FP, v)
		}
		return caller, Stop{}
	}
	for _, s := range g.prologue.saves {
		if g.delta == 0 || g.at < s.from {
			if v, ok := w.regs.Get(s.register); ok {
				caller.Set(s.register, v) // the register is not yet saved, or already restored
			}
			continue
		}
		v, ok := w.mem.Word(cfa - s.below)
		if !ok {
			return caller, Stop{Reason: NoMemory, Address: cfa - s.below}
		}
		caller.Set(s.register, v)
	}
	return caller, Stop{}
}

// accept moves to the caller. If switched is set, the caller is on another stack, so its stack pointer need not be
// higher than this frame's.
func (g *goFrame) accept(cfa uint64, caller arch.Registers, switched bool) (Frame, Stop) {
	w := g.w
	pc, _ := caller.Get(w.arch.PC)
	if pc == 0 {
		return Frame{}, Stop{Reason: EndOfStack}
	}
	next, stop := Frame{PC: pc, Method: ByGoTable}, Stop{}
	if switched {
		if w.switches++; w.switches > maxStackSwitches {
			return Frame{}, Stop{Reason: NoProgress, Address: cfa}
		}
		sp, _ := caller.Get(w.arch.SP)
		g.frame.CFA = cfa
		w.regs, w.low, w.scheduling = caller, sp, false
	} else if next, stop = w.advance(g.frame, cfa, caller, ByGoTable); stop.Reason != running {
		return next, stop
	}
	next.Exact = injected[g.f.Name]
	return next, stop
}

// stepLinked finds the caller on architectures where calls store the return address in a register. A function that has
// moved the stack pointer has saved the return address at the top of its stack.
func (g *goFrame) stepLinked(sp uint64) (Frame, Stop) {
	w := g.w
	link, _ := linkRegister(w.arch)
	ra, ok := w.regs.Get(link)
	if g.delta > 0 {
		// The table does not describe the stack of the assembly function crosscall2.
		if g.f.Flags&golang.Assembly != 0 && g.f.Name == callsGo {
			return Frame{}, Stop{Reason: StackSwitch, Address: g.frame.PC}
		}
		if ra, ok = w.mem.Word(sp); !ok {
			return Frame{}, Stop{Reason: NoMemory, Address: sp}
		}
	} else if !g.frame.Exact || !ok {
		return Frame{}, Stop{Reason: StackSwitch, Address: g.frame.PC}
	}
	var caller arch.Registers
	cfa := sp + g.delta
	caller.Set(w.arch.PC, w.arch.StripCode(ra))
	caller.Set(w.arch.SP, cfa)
	if below := w.arch.Go.SavedFP; below > 0 && g.delta > 0 {
		if v, ok := w.mem.Word(sp - below); ok {
			caller.Set(w.arch.FP, v)
		}
	}
	if injected[g.f.Name] {
		// The handler has saved the link register before it stored its own return address in the register.
		if v, ok := w.mem.Word(cfa); ok {
			caller.Set(link, v)
		}
		caller.Set(w.arch.SP, cfa+w.arch.Go.Injected)
	}
	if g.delta == 0 {
		next, stop := w.advanceBeyond(g.frame, sp, caller)
		next.Method = ByGoTable
		return next, stop
	}
	return g.accept(cfa, caller, false)
}
