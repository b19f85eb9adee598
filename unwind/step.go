package unwind

import (
	"errors"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
)

// step finds the caller of frame, sets what it learns about frame itself (CFA,
// Signal) and moves the registers outwards.
func (w *walk) step(frame *Frame) (Frame, Stop) {
	module, ok := w.modules.Find(frame.Lookup())
	if !ok {
		return w.stepNoCode(frame)
	}
	if module.CFI == nil {
		return w.stepFramePointer(frame)
	}
	row, err := module.CFI.Row(frame.Lookup() - module.Bias)
	switch {
	case errors.Is(err, cfi.ErrNoFDE):
		return w.stepFramePointer(frame)
	case err != nil:
		return Frame{}, Stop{Reason: BadCFI, Address: frame.PC, Err: err}
	}
	w.row = row
	w.row.Bias = module.Bias
	return w.stepRow(frame)
}

// stepRow applies a row of call frame information.
func (w *walk) stepRow(frame *Frame) (Frame, Stop) {
	frame.Signal = w.row.Signal
	cfa, caller, err := w.row.Apply(&w.regs, &w.mem)
	switch {
	case errors.Is(err, cfi.ErrUndefinedRA):
		return Frame{}, Stop{Reason: EndOfStack}
	case errors.Is(err, cfi.ErrRegister):
		return w.recoverFramePointer(frame, err)
	case errors.Is(err, cfi.ErrMemory):
		return Frame{}, Stop{Reason: NoMemory, Address: w.mem.missing, Err: err}
	case err != nil:
		return Frame{}, Stop{Reason: BadCFI, Address: frame.PC, Err: err}
	}
	return w.advance(frame, cfa, caller, ByCFI)
}

// advance accepts the caller's registers if they are progress.
func (w *walk) advance(frame *Frame, cfa uint64, caller arch.Registers, method Method) (Frame, Stop) {
	pc, ok := caller.Get(w.arch.PC)
	if !ok || pc == 0 && !frame.Signal {
		// The x86-64 psABI (3.4.1) and the start-up code of others mark the
		// outermost frame with a zero where a return address would be. What a
		// signal interrupted may well be a jump through NULL.
		return Frame{}, Stop{Reason: EndOfStack}
	}
	oldSP, _ := w.regs.Get(w.arch.SP)
	newSP, ok := caller.Get(w.arch.SP)
	if !ok {
		return Frame{}, Stop{Reason: BadCFI, Address: frame.PC}
	}
	if newSP <= oldSP && !w.mayStay(frame, pc, oldSP, newSP) {
		return Frame{}, Stop{Reason: NoProgress, Address: newSP}
	}
	frame.CFA = cfa
	w.regs = caller
	return Frame{PC: pc, Exact: frame.Signal, Method: method}, Stop{}
}

// mayStay says whether a caller whose stack pointer is not beyond its callee's
// may be believed: a signal handler on an alternate stack returns to another
// stack, and a leaf that keeps its return address in a register has no stack
// of its own: also on x86-64, where vfork of the GNU C library does so.
func (w *walk) mayStay(frame *Frame, pc, oldSP, newSP uint64) bool {
	if frame.Signal {
		w.switches++
		return w.switches <= maxStackSwitches
	}
	_, leaf := linkRegister(w.arch)
	leaf = leaf || w.row.Rule(w.row.ReturnColumn()).Kind == cfi.RuleRegister
	return leaf && frame.Exact && newSP == oldSP && pc != frame.PC
}

// linkRegister returns the register that a call leaves the return address in;
// false where calls push it onto the stack.
func linkRegister(a *arch.Arch) (int, bool) {
	reg := a.Index(uint64(a.ReturnColumn))
	return reg, reg >= 0 && reg != a.PC
}
