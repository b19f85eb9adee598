package unwind

import (
	"errors"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
)

// step finds the caller of frame and sets the walk's registers to the caller's. It also sets the fields CFA and Signal
// of frame.
func (w *walk) step(frame *Frame) (Frame, Stop) {
	if !frame.Exact && w.probed(frame.PC) {
		return w.stepProbe(frame)
	}
	module, ok := w.find(frame.Lookup())
	if ok && module.Go != nil {
		if next, stop, done := w.stepGo(frame, &module); done {
			return next, stop
		}
	}
	if !ok || module.CFI == nil {
		if next, stop, done := w.stepCandidates(frame); done {
			return next, stop
		}
		return w.stepBare(frame, &module, ok)
	}
	row, err := module.CFI.Row(frame.Lookup() - module.Bias)
	switch {
	case errors.Is(err, cfi.ErrNoFDE):
		return w.stepBare(frame, &module, ok)
	case err != nil:
		return Frame{}, Stop{Reason: BadCFI, Address: frame.PC, Err: err}
	}
	if row.Signal {
		// The trampoline's instructions give more registers than the rules: see arch.Trampoline.
		if next, stop, done := w.stepTrampoline(frame); done {
			return next, stop
		}
	}
	if !row.Signal && w.prepared(frame) {
		return w.stepPrepared(frame)
	}
	w.row = row
	w.row.Bias = module.Bias
	return w.stepRow(frame)
}

// stepBare handles an address without call frame information. code says whether the address lies in code.
func (w *walk) stepBare(frame *Frame, module *Module, code bool) (Frame, Stop) {
	// Code that was followed to a caller is no trampoline.
	if _, followed := module.CodeCache.row(placeIn(module, frame)); !followed {
		if next, stop, done := w.stepTrampoline(frame); done {
			return next, stop
		}
	}
	if !code {
		return w.stepNoCode(frame)
	}
	if w.prepared(frame) {
		return w.stepPrepared(frame)
	}
	if next, stop, done := w.stepStub(frame); done {
		return next, stop
	}
	if next, stop, done := w.stepInstructions(frame); done {
		return next, stop
	}
	if w.wanting != 0 && !w.final {
		return Frame{}, Stop{Reason: NoMemory, Address: w.wanting}
	}
	next, stop := w.stepChain(frame)
	if stop.Reason == NoCFI && w.settled {
		stop.Reason = NeverReturns
	}
	return next, stop
}

// stepRow applies the row of call frame information in w.row, which covers the frame's address.
func (w *walk) stepRow(frame *Frame) (Frame, Stop) {
	frame.Signal = w.row.Signal
	if w.row.RAUndefined {
		return Frame{}, Stop{Reason: EndOfStack} // this also ends frames whose CFA cannot be computed
	}
	cfa, caller, err := w.row.Apply(&w.regs, &w.mem)
	switch {
	case errors.Is(err, cfi.ErrUndefinedRA):
		return Frame{}, Stop{Reason: EndOfStack}
	case errors.Is(err, cfi.ErrRegister):
		if frame.Method == ByFramePointer && !w.trial {
			// The chain of frame pointers has led here. It does not give the registers that the rules need.
			if next, stop := w.stepChain(frame); stop.Reason == running {
				return next, stop
			}
		}
		if next, found := w.stepUnlinked(frame); found {
			return next, Stop{}
		}
		return w.recoverFramePointer(frame, err)
	case errors.Is(err, cfi.ErrMemory):
		return Frame{}, Stop{Reason: NoMemory, Address: w.mem.missing, Err: err}
	case err != nil:
		return Frame{}, Stop{Reason: BadCFI, Address: frame.PC, Err: err}
	}
	return w.advance(frame, cfa, caller, ByCFI)
}

// advance accepts the caller's registers. The result is BadCFI if they have a program counter but no stack pointer. It
// is NoProgress if the caller's stack pointer is not beyond the frame's, except in the cases of mayStay.
func (w *walk) advance(frame *Frame, cfa uint64, caller arch.Registers, method Method) (Frame, Stop) {
	sp, ok := caller.Get(w.arch.SP)
	if _, hasPC := caller.Get(w.arch.PC); hasPC && !ok {
		return Frame{}, Stop{Reason: BadCFI, Address: frame.PC}
	}
	return w.accept(frame, cfa, sp, caller, method)
}

// advanceBeyond accepts a caller found by a chain of frame pointers or a back chain. If the caller's stack pointer is
// unknown, the parameter bound is its lower bound.
func (w *walk) advanceBeyond(frame *Frame, bound uint64, caller arch.Registers) (Frame, Stop) {
	if sp, ok := caller.Get(w.arch.SP); ok {
		bound = sp
	}
	return w.accept(frame, bound, bound, caller, ByFramePointer)
}

// accept moves to the caller, unless its registers show that the walk ends here. newSP is the caller's stack pointer,
// or a lower bound.
func (w *walk) accept(frame *Frame, cfa, newSP uint64, caller arch.Registers, method Method) (Frame, Stop) {
	pc, ok := caller.Get(w.arch.PC)
	if !ok || pc == 0 && !frame.Signal {
		// The x86-64 psABI (3.4.1), and the start-up code of other architectures, mark the outermost frame by a zero in
		// the place of a return address. But code that a signal interrupted may be a jump through NULL.
		return Frame{}, Stop{Reason: EndOfStack}
	}
	if oldSP := w.floor(); newSP <= oldSP && !w.mayStay(frame, pc, oldSP, newSP) {
		return Frame{}, Stop{Reason: NoProgress, Address: newSP}
	}
	frame.CFA = cfa
	w.regs, w.low = caller, newSP
	return Frame{PC: pc, Exact: frame.Signal, Method: method}, Stop{}
}

// floor returns the frame's stack pointer. If it is unknown, after a step by a chain, floor returns a lower bound.
func (w *walk) floor() uint64 {
	if sp, ok := w.regs.Get(w.arch.SP); ok {
		return sp
	}
	return w.low
}

func (w *walk) knowsSP() bool {
	_, ok := w.regs.Get(w.arch.SP)
	return ok
}

// mayStay reports whether a caller's stack pointer may be equal to or below its callee's. This is so for a signal
// handler on an alternate stack, which returns to another stack. It is also so for a leaf function that keeps its
// return address in a register and has no stack frame. On x86-64, vfork of the GNU C library is such a function.
func (w *walk) mayStay(frame *Frame, pc, oldSP, newSP uint64) bool {
	if frame.Signal {
		w.switches++
		return w.switches <= maxStackSwitches
	}
	_, leaf := linkRegister(w.arch)
	leaf = leaf || w.row.Rule(w.row.ReturnColumn()).Kind == cfi.RuleRegister
	return leaf && frame.Exact && newSP == oldSP && pc != frame.PC
}

// linkRegister returns the register in which a call stores the return address. The result is false on architectures
// where calls push it onto the stack.
func linkRegister(a *arch.Arch) (int, bool) {
	reg := a.Index(uint64(a.ReturnColumn))
	return reg, reg >= 0 && reg != a.PC
}
