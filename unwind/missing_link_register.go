package unwind

import (
	"pg_stat_backtrace/unwind/cfi"
)

// stepUnlinked finds the caller of the innermost frame if the return address is in the link register and the register's
// value is unknown. An example is a sleeping thread whose stack was read without its registers: newer compilers may put
// a system call before the instructions that save the link register. As for a return probe, stepUnlinked searches the
// stack for functions that contain a call of this function (see behindProbe). It accepts the caller if exactly one such
// call matches the stack. Otherwise the result is false and the walk is as before.
func (w *walk) stepUnlinked(frame *Frame) (Frame, bool) {
	link, ok := linkRegister(w.arch)
	sp, known := w.regs.Get(w.arch.SP)
	if !ok || !known || w.trial || frame.Method != ByRegisters {
		return Frame{}, false
	}
	if _, known := w.regs.Get(link); known {
		return Frame{}, false
	}
	bySP := w.row.CFA.Kind == cfi.RuleRegister && w.arch.Index(uint64(w.row.CFA.Register)) == w.arch.SP
	rule := w.row.Rule(w.row.ReturnColumn()).Kind
	if !bySP || rule != cfi.RuleSameValue && rule != cfi.RuleUnspecified {
		return Frame{}, false
	}
	before := w.regs
	cfa := sp + uint64(w.row.CFA.Offset)
	w.regs.Set(w.arch.SP, cfa+uint64(w.arch.CFAToSP))
	p := behindProbe{trial: trial{w: w, frame: frame, budget: maxTrialSteps}}
	p.searchStack(w.row.FDEStart + w.row.Bias)
	if w.instructions <= 0 || p.proven != 1 || p.undecided > 0 {
		w.regs = before
		return Frame{}, false
	}
	frame.CFA = cfa
	w.regs.Set(w.arch.PC, p.site)
	return Frame{PC: p.site, Method: ByCall}, true
}
