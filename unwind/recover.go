package unwind

import (
	"errors"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/codeflow"
)

// The reasons why a frame pointer was not recovered. One of them is in the field Err of a Stop with the reason
// UnknownRegister.
var (
	errNoReader  = errors.New("frame pointer: the code cannot be read")
	errNone      = errors.New("frame pointer: no value leads to the stack's base")
	errAmbiguous = errors.New("frame pointer: more than one value leads to the stack's base")
	errUndecided = errors.New("frame pointer: it cannot be told whether a value is right")
)

// Bounds of the search for an unknown frame pointer.
const (
	maxTrialSteps = 1 << 18 // steps of all trials together
	maxSearch     = 1 << 17 // words of the stack searched
)

// trialResult is the result of a trial: of a value for an unknown register, of candidate code, or of a call before an
// address.
type trialResult uint8

const (
	refuted   trialResult = iota // the value is wrong
	undecided                    // the value may be right or wrong
	proven                       // the value leads to the stack's base, and nothing contradicts it
)

// recoverFramePointer finds the caller of a frame whose CFA is defined by the frame pointer while only the stack
// pointer is known. An example is a sleeping thread whose stack was read without its registers. recoverFramePointer
// finds the value of the frame pointer as follows:
//
//   - The function's instructions give the distance of the stack pointer from the CFA at the frame's address. This
//     gives the value of the frame pointer. If the distance is not fixed, the address of every word of the stack is
//     tried as the value.
//   - A value is proven only if it leads to the base of the stack by call frame information alone. Every return address
//     on the way must follow a call. The first of these calls must be able to call this function.
//   - A value is accepted if it is the only proven value, and no other value is in doubt.
func (w *walk) recoverFramePointer(frame *Frame, cause error) (Frame, Stop) {
	lost := Stop{Reason: UnknownRegister, Err: cause}
	sp, ok := w.regs.Get(w.arch.SP)
	_, known := w.regs.Get(w.arch.FP)
	byFP := w.row.CFA.Kind == cfi.RuleRegister && w.arch.Index(uint64(w.row.CFA.Register)) == w.arch.FP
	if w.trial || !ok || known || !byFP || !w.arch.Decoded {
		return Frame{}, lost
	}
	module, _ := w.find(frame.Lookup())
	if module.Code == nil || module.CFI == nil {
		lost.Err = errNoReader
		return Frame{}, lost
	}
	c := trial{w: w, frame: frame, budget: maxTrialSteps}
	distances, err := w.distances(frame, module)
	if err == nil {
		for _, d := range distances {
			c.enter(sp + uint64(d) - uint64(w.row.CFA.Offset))
		}
	} else {
		c.search(sp)
	}
	if lost.Err = c.decide(); lost.Err != nil {
		if c.missing.Reason == NoMemory && c.proven == 0 {
			return Frame{}, c.missing // more memory may prove a value
		}
		return Frame{}, lost
	}
	w.regs.Set(w.arch.FP, c.winner)
	next, stop := w.stepRow(frame)
	if stop.Reason == running {
		next.Method = ByRecovery
	}
	return next, stop
}

// distances returns the possible distances of the stack pointer from the CFA at the frame's address, in bytes. It
// returns an error if they are unknown.
func (w *walk) distances(frame *Frame, module Module) ([]int64, error) {
	addr := frame.Lookup() - module.Bias
	if d, known := module.CodeCache.find(addr); known {
		return d.possible, d.err
	}
	f, err := function(w.arch, module, w.row.FDEStart, w.row.FDEEnd)
	if err != nil {
		return nil, err
	}
	var d distances
	d.possible, d.err = f.At(addr)
	module.CodeCache.keep(addr, d)
	return d.possible, d.err
}

// function describes the code of a function, and its rules for the CFA, to package codeflow.
func function(a *arch.Arch, module Module, start, end uint64) (*codeflow.Function, error) {
	if end <= start || end-start > codeflow.MaxCode {
		return nil, codeflow.ErrCode
	}
	code, err := module.Code.Code(start, end-start)
	if err != nil {
		return nil, err
	}
	var row cfi.Row
	anchor := func(addr uint64) codeflow.Anchor {
		if addr-row.Start >= row.End-row.Start {
			if row, err = module.CFI.Row(addr); err != nil {
				row = cfi.Row{}
			}
		}
		if row.CFA.Kind != cfi.RuleRegister {
			return codeflow.Anchor{}
		}
		switch a.Index(uint64(row.CFA.Register)) {
		case a.SP:
			return codeflow.Anchor{Base: codeflow.StackPointer, Offset: row.CFA.Offset}
		case a.FP:
			return codeflow.Anchor{Base: codeflow.FramePointer, Offset: row.CFA.Offset}
		}
		return codeflow.Anchor{}
	}
	return &codeflow.Function{Start: start, Code: code, Anchor: anchor}, nil
}

// trial tries values for the unknown frame pointer of one frame, and counts the results.
type trial struct {
	w      *walk
	frame  *Frame
	budget int

	proven, undecided int
	winner            uint64
	missing           Stop // why a value is in doubt, if memory is missing
}

// enter tries a value and counts the result.
func (c *trial) enter(fp uint64) {
	switch c.try(fp) {
	case proven:
		c.proven++
		c.winner = fp
	case undecided:
		c.undecided++
	case refuted:
	}
}

// search tries every word of the stack from sp on as the target of the frame pointer. For each word, the place of the
// caller's return address must contain an address in code.
func (c *trial) search(sp uint64) {
	word := uint64(c.w.arch.AddrSize)
	ra := uint64(c.w.row.CFA.Offset) - word
	for fp, n := (sp+word-1)&^(word-1), 0; n < maxSearch && c.proven < 2; fp, n = fp+word, n+1 {
		value, ok := c.w.mem.Word(fp + ra)
		if !ok {
			return
		}
		if _, ok := c.w.find(value - 1); ok {
			c.enter(fp)
		}
	}
}

// decide returns nil if exactly one value is proven and none is in doubt.
func (c *trial) decide() error {
	switch {
	case c.proven > 1:
		return errAmbiguous
	case c.undecided > 0:
		return errUndecided
	case c.proven == 0:
		return errNone
	}
	return nil
}

// try walks with a value of the frame pointer to the stack's base.
func (c *trial) try(fp uint64) trialResult {
	t := *c.w
	t.trial, t.followed = true, nil // with another value, following instructions gives other results
	t.regs.Set(t.arch.FP, fp)
	frame := *c.frame
	next, stop := t.stepRow(&frame)
	module, _ := t.find(frame.Lookup())
	found := c.follow(&t, frame, next, stop, t.row.FDEStart+module.Bias)
	c.w.instructions = t.instructions
	return found
}

// follow continues a trial to the stack's base. The trial has just made the step from the parameter frame to its
// caller, the parameter next. entry is the start of the frame's function, 0 if unknown.
func (c *trial) follow(t *walk, frame, next Frame, stop Stop, entry uint64) trialResult {
	worst := proven
	for {
		if v := c.judge(t, next, stop); v != proven || stop.Reason == EndOfStack || t.settled {
			return min(v, worst)
		}
		exact := frame.Signal
		frame = next
		next, stop = t.step(&frame)
		if !exact && !frame.Signal {
			v := t.calls(frame.PC, entry)
			if v == refuted {
				return refuted
			}
			worst = min(worst, v)
		}
		entry = 0
	}
}

// judge derives the trial's result so far from one step of the trial. proven means that the trial may continue, or has
// reached its end.
func (c *trial) judge(t *walk, next Frame, stop Stop) trialResult {
	c.budget--
	if stop.Reason == running && next.Method == ByCFI && t.probed(next.PC) {
		t.settled = true // a trial ends at another return probe
	}
	if t.settled {
		return proven
	}
	switch stop.Reason {
	case running:
		if c.budget <= 0 {
			return undecided
		}
		switch next.Method {
		case ByCFI, BySignalFrame, ByInstructions, ByRecovery, ByReturnAddress:
			return proven // ByReturnAddress occurs only after a signal frame
		default:
			return undecided
		}
	case EndOfStack:
		if t.row.RAUndefined {
			return proven
		}
		return undecided
	case NoCode, NoProgress:
		return refuted
	case NoMemory:
		c.missing = stop
		return undecided
	default:
		return undecided
	}
}
