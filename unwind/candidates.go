package unwind

import (
	"encoding/binary"
	"slices"

	"pg_stat_backtrace/unwind/arch"
)

// Candidates is implemented by Modules of a process that compiles code at run time. The code and the stack of such a
// process are not read at the same moment. In between, the process may have freed code and compiled other code at the
// same addresses.
type Candidates interface {
	// Candidates returns the code that the process may have had at an address, if Find has no call frame information
	// for the address. With search false it returns only candidates that are already known.
	Candidates(addr uint64, search bool) []Candidate
	// Frameless reports whether an address may lie in code compiled at run time, and this code keeps no frame pointers.
	// If no candidate fits, the walk then ends.
	Frameless(addr uint64) bool
}

// Candidate is code that the process may have had from Start to End (exclusive). Its Module has call frame information
// and code.
type Candidate struct {
	Module

	Start, End uint64
}

// find returns the module that contains an address. The candidates that the walk has chosen take precedence over the
// modules.
func (w *walk) find(addr uint64) (Module, bool) {
	for i := range w.chosen {
		if c := &w.chosen[i]; addr >= c.Start && addr < c.End {
			return c.Module, true
		}
	}
	return w.modules.Find(addr)
}

// stepCandidates finds the caller of a frame in code compiled at run time, which was not read at the same moment as the
// stack. It accepts a candidate under these conditions:
//
//   - If the frame has called another frame: an instruction before its return address can have called that frame's
//     function.
//   - From the candidate's call frame information, the walk reaches the base of the stack by call frame information and
//     instructions alone, and each return address on the way follows a call.
//
// If several candidates are accepted, they must agree. Within a trial, the walk uses the first candidate with which the
// caller's address follows a call instruction, because the trial itself has to reach the base of the stack.
func (w *walk) stepCandidates(frame *Frame) (Frame, Stop, bool) {
	source, ok := w.modules.(Candidates)
	if !ok {
		return Frame{}, Stop{}, false
	}
	var won *leftCandidate
	for _, c := range source.Candidates(frame.Lookup(), !w.trial) {
		found := w.tryCandidate(frame, &c)
		switch {
		case found == nil:
		case w.trial:
			return found.take(w, frame)
		case won == nil:
			won = found
		case won.next != found.next || won.after.regs != found.after.regs:
			return Frame{}, Stop{Reason: Generated, Address: frame.PC}, true
		}
	}
	switch {
	case won != nil:
		return won.take(w, frame)
	case source.Frameless(frame.Lookup()):
		return Frame{}, Stop{Reason: Generated, Address: frame.PC}, true
	}
	return Frame{}, Stop{}, false
}

// leftCandidate is the result of a step that used a candidate's code. The field after is the walk's state after the
// step. The field frame is the frame from which the step began, and the field next is its caller.
type leftCandidate struct {
	after walk
	frame Frame
	next  Frame
}

// take sets w to the state after the step, and returns the caller. The boolean result is always true, so that
// stepCandidates can return the results of take.
func (l *leftCandidate) take(w *walk, frame *Frame) (Frame, Stop, bool) {
	*frame = l.frame
	w.regs, w.low, w.row, w.chosen = l.after.regs, l.after.low, l.after.row, l.after.chosen
	return l.next, Stop{}, true
}

// tryCandidate makes the step from a frame to its caller with a candidate's call frame information. It returns nil if
// the candidate is not accepted.
func (w *walk) tryCandidate(frame *Frame, c *Candidate) *leftCandidate {
	t := *w
	t.trial, t.followed = true, nil // results for other code at these addresses do not apply
	t.chosen = append(slices.Clip(w.chosen), *c)
	if !frame.Exact && !frame.Signal && !t.calledFrame(frame) {
		return nil
	}
	l := &leftCandidate{frame: *frame}
	var stop Stop
	l.next, stop = t.step(&l.frame)
	if stop.Reason != running || l.next.Method != ByCFI {
		return nil
	}
	l.after = t
	entry := t.row.FDEStart + t.row.Bias
	if w.trial {
		if t.calls(l.next.PC, entry) == refuted {
			return nil
		}
		return l
	}
	proof := trial{w: w, frame: &l.frame, budget: maxTrialSteps}
	found := proof.follow(&t, l.frame, l.next, stop, entry)
	w.instructions = t.instructions
	if found != proven {
		return nil
	}
	l.after.chosen = t.chosen
	return l
}

// calledFrame reports whether the instruction before the parameter frame's return address can have called the next
// inner frame, from which the walk has just come. The walk's list chosen already includes the candidate under trial.
func (w *walk) calledFrame(frame *Frame) bool {
	var entry uint64
	if frame.Method == ByCFI && w.row.FDEEnd > w.row.FDEStart {
		entry = w.row.FDEStart + w.row.Bias
	}
	return w.calls(frame.PC, entry) != refuted
}

// loadedTarget returns the function that the code before a return address calls, if this code loads the function's
// address into a register and calls the register. LLVM generates such calls.
func (w *walk) loadedTarget(ra uint64, m *Module) (target uint64, known bool) {
	const move, most = 10, 13 // bytes of MOV r64, imm64, and of both instructions (Intel SDM)
	if w.arch.Instructions != arch.X86 {
		return 0, false
	}
	for length := uint64(most); length >= most-1; length-- { // the call of R8 to R15 has a prefix
		p, err := m.Code.Code(ra-length-m.Bias, length)
		if err != nil {
			continue
		}
		reg, call := p[1]&7, p[move:]
		rex, prefixed := byte(0x48), length == most
		if prefixed {
			rex = 0x49
		}
		if p[0] == rex && p[1] == 0xb8|reg && (!prefixed || call[0] == 0x41) &&
			call[len(call)-2] == 0xff && call[len(call)-1] == 0xd0|reg {
			return binary.LittleEndian.Uint64(p[2:]), true
		}
	}
	return 0, false
}
