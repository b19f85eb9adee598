package unwind

import (
	"bytes"

	"pg_stat_backtrace/unwind/arch"
)

// maxTrampoline is the maximum length of an arch.Trampoline's code in bytes.
const maxTrampoline = 16

// stepTrampoline recognises a signal trampoline by its instructions and reads the interrupted registers from its frame.
// A handler returns to a trampoline's first instruction. An exact frame may also be at a later instruction, up to the
// system call that restores the registers. The result is false if the frame is not in a trampoline.
func (w *walk) stepTrampoline(frame *Frame) (Frame, Stop, bool) {
	next, stop, done := w.stepTrampolineAt(frame, frame.PC)
	for back := uint64(1); !done && frame.Exact && back < maxTrampoline; back++ {
		next, stop, done = w.stepTrampolineAt(frame, frame.PC-back)
	}
	return next, stop, done
}

// stepTrampolineAt is like stepTrampoline, but only for a trampoline that begins at start.
func (w *walk) stepTrampolineAt(frame *Frame, start uint64) (Frame, Stop, bool) {
	t := w.trampolineCode(start, frame.PC-start)
	if t == nil {
		return Frame{}, Stop{}, false
	}
	next, stop := w.interrupted(frame, t)
	return next, stop, true
}

// trampolineCode returns the trampoline whose instructions begin at start and are longer than offset; nil if there is
// none.
func (w *walk) trampolineCode(start, offset uint64) *arch.Trampoline {
	code, ok := w.modules.(Code)
	if !ok {
		return nil
	}
	for i := range w.arch.Trampolines {
		t := &w.arch.Trampolines[i]
		var buf [maxTrampoline]byte
		p := buf[:min(len(t.Code), maxTrampoline)]
		if offset < uint64(len(p)) && code.Code(start, p) && bytes.Equal(p, t.Code) {
			return t
		}
	}
	return nil
}

// trampolineAt reports whether a signal trampoline begins at an address, by its instructions or by call frame
// information.
func (w *walk) trampolineAt(addr uint64) bool {
	if w.trampolineCode(addr, 0) != nil {
		return true
	}
	module, ok := w.find(addr - 1) // call frame information of a trampoline begins a byte before it
	if !ok || module.CFI == nil {
		return false
	}
	fde, err := module.CFI.Find(addr - 1 - module.Bias)
	return err == nil && fde.Signal
}

// interrupted finds the function that the signal interrupted, which counts as the trampoline's caller. Its registers
// are in the trampoline's frame.
func (w *walk) interrupted(frame *Frame, t *arch.Trampoline) (Frame, Stop) {
	frame.Signal = true
	sp, ok := w.trampolineSP(t)
	if !ok {
		return Frame{}, Stop{Reason: NoRegisters, Address: frame.PC}
	}
	var caller arch.Registers
	for reg, addr := range w.arch.InterruptedRegisters(t, sp) {
		if v, ok := w.mem.Word(addr); ok {
			caller.Set(reg, v)
		}
	}
	pc, ok := caller.Get(w.arch.PC)
	if !ok {
		return Frame{}, Stop{Reason: NoMemory, Address: w.mem.missing}
	}
	caller.Set(w.arch.PC, w.arch.StripCode(pc))
	return w.advance(frame, sp, caller, BySignalFrame)
}

// trampolineSP returns the trampoline's stack pointer. After a step along frame pointers, the walk does not know it.
// But the kernel has created a frame record for the interrupted registers. If the registers lie at a fixed distance
// from the record, the record gives the stack pointer. The result is false if the stack pointer is unknown.
func (w *walk) trampolineSP(t *arch.Trampoline) (uint64, bool) {
	if sp, ok := w.regs.Get(w.arch.SP); ok {
		return sp, true
	}
	record, ok := w.regs.Get(w.arch.Chain.Base)
	if !ok || t.BelowRecord == 0 || record < t.BelowRecord {
		return 0, false
	}
	sp := record - t.BelowRecord
	saved, ok := w.mem.Word(record + uint64(w.arch.Chain.Saved))
	if !ok || sp < w.floor() {
		return 0, false
	}
	for reg, addr := range w.arch.InterruptedRegisters(t, sp) {
		if reg == w.arch.Chain.Base {
			v, ok := w.mem.Word(addr)
			return sp, ok && v == saved
		}
	}
	return 0, false
}
