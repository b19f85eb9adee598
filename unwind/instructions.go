package unwind

import (
	"errors"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/codeflow"
)

// trialState says whether the walk may use the caller that stepInstructions has found by following instructions.
type trialState uint8

const (
	untried trialState = iota
	good               // the walk from the result reaches the stack's base
	bad                // the walk does not reach the base, or this is unknown
)

// stepInstructions finds the caller of a frame in code without call frame information, by following the code until it
// returns. After a call that never returns, the instructions may belong to another function. So the result is accepted
// only after a trial: the walk from the caller must reach the base of the stack, the start of the program, or a
// function that never returns. This walk may use only call frame information and instructions, and every return address
// must follow a call. The result is false if stepInstructions finds no caller.
func (w *walk) stepInstructions(frame *Frame) (Frame, Stop, bool) {
	w.settled = false
	if w.trialState == bad && !w.trial {
		return Frame{}, Stop{}, false // the trial failed before, perhaps because memory is missing
	}
	w.wanting = 0
	module, ok := w.find(frame.Lookup())
	if !ok || module.Code == nil || !codeflow.Follows(w.arch) || !w.knowsSP() {
		return Frame{}, Stop{}, false
	}
	if module.Go != nil {
		if _, err := module.Go.Find(frame.Lookup() - module.Bias); err == nil {
			return Frame{}, Stop{}, false // Go's functions preserve other registers than the ABI says
		}
	}
	if w.atStart(frame, &module) {
		w.settled = true
		return Frame{}, Stop{Reason: EndOfStack}, true
	}
	w.mem.missing = 0
	caller, err := w.follow(frame, module)
	w.settled = errors.Is(err, codeflow.ErrNeverReturns)
	if errors.Is(err, codeflow.ErrMemory) && w.mem.missing-w.floor() < maxFrame {
		w.wanting = w.floor() // the instructions may need all memory from the stack pointer on, whichever word was missing first
	}
	if err != nil {
		return Frame{}, Stop{}, false
	}
	if !w.trial && w.trialState == untried {
		w.trialState, w.wanting = w.lookOut(*frame, caller)
	}
	if !w.trial && w.trialState == bad {
		return Frame{}, Stop{}, false
	}
	next, stop := w.leaveFor(frame, caller)
	return next, stop, true
}

// atStart reports whether a frame belongs to the code where its program, or its dynamic linker, began. It accepts only
// code up to the first call. Code after a call may never run, because the called function may not return. In a dynamic
// linker it also accepts code after calls.
func (w *walk) atStart(frame *Frame, module *Module) bool {
	const most = 1 << 10 // bytes; most addresses are farther away
	start := module.Start + module.Bias
	if module.Start == 0 || frame.PC-start > most {
		return false
	}
	if row, _ := module.CodeCache.row(placeIn(module, frame)); row != nil {
		return false // the code at this place was followed to a caller before
	}
	return codeflow.Straight(w.arch, &bareCode{module: *module, arch: w.arch}, start, frame.PC, module.Linker)
}

// maxFrame limits the distance in bytes from the stack pointer to missing memory that may belong to the frame. If
// memory is missing farther away, the walk's Stop reports no missing memory.
const maxFrame = 1 << 20

// followed is the result of following the instructions of a frame's function from the place in the field at, with the
// stack pointer in the field sp.
type followed struct {
	at     codeflow.Place
	sp     uint64
	caller arch.Registers
	err    error
}

// follow finds the registers of a frame's caller from the function's instructions. It uses the cached row of the place,
// if the cache has a row and the memory for it can be read. Otherwise it follows the instructions.
func (w *walk) follow(frame *Frame, module Module) (arch.Registers, error) {
	row, known := module.CodeCache.row(placeIn(&module, frame))
	if row != nil {
		if caller, err := row.Apply(w.arch, &w.regs, &w.mem); !errors.Is(err, codeflow.ErrMemory) {
			return caller, err
		}
	}
	f := followed{at: codeflow.Place{Addr: frame.PC, Exact: frame.Exact}, sp: w.floor()}
	if w.followed == nil {
		w.followed = new([]followed)
	}
	for _, before := range *w.followed {
		if before.at == f.at && before.sp == f.sp {
			return before.caller, before.err
		}
	}
	functions, _ := w.modules.(Code)
	bare := bareCode{module: module, arch: w.arch, functions: functions}
	f.caller, f.err = codeflow.Follow(w.arch, &bare, f.at, w.regs, &w.mem, &w.instructions)
	if !known {
		w.learn(&bare, &f)
	}
	if len(*w.followed) < maxFollowed {
		*w.followed = append(*w.followed, f)
	}
	return f.caller, f.err
}

// placeIn returns the place of a frame in its module's code, by link-time address.
func placeIn(m *Module, frame *Frame) codeflow.Place {
	return codeflow.Place{Addr: frame.PC - m.Bias, Exact: frame.Exact}
}

// learn derives the row of a place whose code was followed, and stores the row in the module's CodeCache. This takes
// twice as long as following the code. In code that computes, most addresses occur only once. So learn derives a row
// only when the same place is followed again.
func (w *walk) learn(bare *bareCode, f *followed) {
	told, at := bare.module.CodeCache, f.at
	at.Addr -= bare.module.Bias
	if !told.again(at) {
		return
	}
	row, err := codeflow.Derive(w.arch, bare, f.at, &w.instructions)
	if err != nil || !w.confirms(row, f) {
		row = nil
	}
	if row != nil || w.instructions > 0 { // an exhausted budget may be the reason for no row: try again later
		told.keepRow(at, row)
	}
}

// confirms reports whether a row, applied to the frame, gives the same result as following the code gave.
func (w *walk) confirms(row *codeflow.Row, f *followed) bool {
	got, err := row.Apply(w.arch, &w.regs, &w.mem)
	if err != nil || f.err != nil {
		return errors.Is(err, codeflow.ErrNeverReturns) && errors.Is(f.err, codeflow.ErrNeverReturns)
	}
	for reg := range w.arch.NumRegisters {
		v, known := got.Get(reg)
		if want, also := f.caller.Get(reg); known && (!also || v != want) {
			return false
		}
	}
	return true
}

// maxFollowed limits the number of results in walk.followed.
const maxFollowed = 32

// leaveFor moves from a frame to the caller that its instructions gave.
func (w *walk) leaveFor(frame *Frame, caller arch.Registers) (Frame, Stop) {
	cfa, _ := caller.Get(w.arch.SP)
	return w.advance(frame, cfa, caller, ByInstructions)
}

// lookOut tries whether the walk from a caller reaches the stack's base, and returns good or bad. If the trial ended
// because memory is missing, wanting is the beginning of the missing memory, otherwise 0.
func (w *walk) lookOut(frame Frame, caller arch.Registers) (found trialState, wanting uint64) {
	t := *w
	t.trialState = good // the trial starts no further trial
	c := trial{w: w, frame: &frame, budget: maxTrialSteps}
	next, stop := t.leaveFor(&frame, caller)
	found = bad
	if stop.Reason == running && c.follow(&t, frame, next, stop, 0) == proven {
		found = good
	}
	w.instructions = t.instructions
	return found, c.missing.Address
}

// bareCode implements codeflow.Code for a module's code. Its methods take addresses in memory.
type bareCode struct {
	module    Module
	arch      *arch.Arch
	functions Code // nil: the ends of functions are unknown

	window []byte // code that was read, from start on
	start  uint64
}

const windowSize = 256

// Bytes implements codeflow.Code.
func (c *bareCode) Bytes(addr uint64) []byte {
	if addr-c.start < uint64(len(c.window)) && uint64(len(c.window))-(addr-c.start) >= codeflow.Ahead {
		return c.window[addr-c.start:]
	}
	var size uint64
	c.window, c.start = nil, addr
	// After a failed read, half the size may still fit before the end of the code.
	for more := uint64(windowSize); more > 0 && size < windowSize; more /= 2 {
		if p, err := c.module.Code.Code(addr-c.module.Bias, size+more); err == nil {
			c.window, size = p, size+more
		}
	}
	return c.window
}

// Ends implements codeflow.Code.
func (c *bareCode) Ends(addr uint64) bool {
	if c.functions == nil {
		return false
	}
	_, end, ok := c.functions.Function(addr - 1)
	return ok && end == addr
}

// Stub implements codeflow.Code.
func (c *bareCode) Stub(addr uint64) bool { return c.imported(addr) != "" }

// Returns implements codeflow.Code. For functions of other images it decides by their names.
func (c *bareCode) Returns(entry uint64) (returns, known bool) {
	if returns, known = c.module.CodeCache.returns(entry - c.module.Bias); known {
		return returns, true
	}
	name := c.imported(entry)
	if name == "" {
		return false, false
	}
	c.module.CodeCache.keepReturns(entry-c.module.Bias, !endless[name])
	return !endless[name], true
}

// Remember implements codeflow.Code.
func (c *bareCode) Remember(entry uint64, returns bool) {
	c.module.CodeCache.keepReturns(entry-c.module.Bias, returns)
}

// Covered implements codeflow.Code.
func (c *bareCode) Covered(addr uint64) (covered, entry bool) {
	if c.module.CFI == nil {
		return false, false
	}
	row, err := c.module.CFI.Row(addr - c.module.Bias)
	if errors.Is(err, cfi.ErrNoFDE) {
		return false, false
	}
	return true, err == nil && atEntry(c.arch, &row)
}

// atEntry reports whether a row describes a function's entry, where the return address and the stack pointer are as the
// call left them.
func atEntry(a *arch.Arch, row *cfi.Row) bool {
	if row.CFA.Kind != cfi.RuleRegister || a.Index(uint64(row.CFA.Register)) != a.SP || row.Signal || row.RAUndefined {
		return false
	}
	if _, linked := linkRegister(a); linked {
		ra := row.Rule(row.ReturnColumn()).Kind
		return row.CFA.Offset == -a.CFAToSP && (ra == cfi.RuleUnspecified || ra == cfi.RuleSameValue)
	}
	return row.CFA.Offset == int64(a.AddrSize) // the frame has only the return address
}
