package unwind

// stepFramePointer follows the frame pointer where no call frame information
// covers the frame. It believes only a pair that looks like what a prologue
// pushed: the pair lies on the stack beyond the stack pointer and its return
// address lies in code.
func (w *walk) stepFramePointer(frame *Frame) (Frame, Stop) {
	lost := Stop{Reason: NoCFI, Address: frame.PC}
	sp, ok := w.regs.Get(w.arch.SP)
	if !ok {
		return Frame{}, lost
	}
	fp, ok := w.regs.Get(w.arch.FP)
	word := uint64(w.arch.AddrSize)
	if !ok || fp < sp || fp%word != 0 || fp > ^uint64(0)-2*word {
		return Frame{}, lost
	}
	saved, ok := w.mem.Word(fp)
	if !ok {
		return Frame{}, lost
	}
	ra, ok := w.mem.Word(fp + word)
	if !ok {
		return Frame{}, lost
	}
	if _, ok := w.modules.Find(ra - 1); !ok {
		return Frame{}, lost
	}
	caller := w.regs
	caller.Set(w.arch.PC, ra)
	caller.Set(w.arch.SP, fp+2*word)
	caller.Set(w.arch.FP, saved)
	return w.advance(frame, fp+2*word, caller, ByFramePointer)
}

// stepNoCode handles an address that holds no code. In an exact frame that is
// a call through a bad pointer: where calls push their return address it is
// on top of the stack, and nothing else has changed since. Anywhere else the
// stack is corrupt.
func (w *walk) stepNoCode(frame *Frame) (Frame, Stop) {
	lost := Stop{Reason: NoCode, Address: frame.PC}
	if !frame.Exact {
		return Frame{}, lost
	}
	sp, ok := w.regs.Get(w.arch.SP)
	if !ok {
		return Frame{}, lost
	}
	caller := w.regs
	var ra uint64
	if link, has := linkRegister(w.arch); has {
		ra, ok = w.regs.Get(link)
	} else {
		if ra, ok = w.mem.Word(sp); !ok {
			return Frame{}, Stop{Reason: NoMemory, Address: sp}
		}
		caller.Set(w.arch.SP, sp+uint64(w.arch.AddrSize))
	}
	if !ok || ra == 0 {
		return Frame{}, lost
	}
	if _, ok := w.modules.Find(ra - 1); !ok {
		return Frame{}, lost
	}
	caller.Set(w.arch.PC, ra)
	newSP, _ := caller.Get(w.arch.SP)
	return w.advance(frame, newSP, caller, ByReturnAddress)
}
