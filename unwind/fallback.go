package unwind

import (
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/codeflow"
)

// stepChain finds the caller of a frame without call frame information by a chain on the stack: the chain of frame
// pointers or the back chain of the architecture's ABI. A record of the chain has the caller's base and the return
// address. The record must lie on the stack beyond the stack pointer, and its return address must lie in code.
func (w *walk) stepChain(frame *Frame) (Frame, Stop) {
	saved, ra, ok := w.record()
	if frame.Exact {
		if next, stop, done := w.stepInner(frame, ra, ok); done {
			return next, stop
		}
	}
	if !ok && w.chainEnds(frame) {
		return Frame{}, Stop{Reason: EndOfStack}
	}
	if !ok {
		return Frame{}, Stop{Reason: NoCFI, Address: frame.PC}
	}
	c := &w.arch.Chain
	base, _ := w.regs.Get(c.Base)
	if c.InCaller {
		base = saved
	}
	// The places of the other saved registers are unknown, so no other register is valid in the caller.
	var caller arch.Registers
	cfa := base + uint64(c.SP)
	caller.Set(w.arch.PC, ra)
	caller.Set(c.Base, saved)
	if c.Loose {
		return w.advanceBeyond(frame, cfa, caller)
	}
	caller.Set(w.arch.SP, cfa)
	return w.advance(frame, cfa, caller, ByFramePointer)
}

// chainEnds reports whether a zero in the chain marks the outermost frame. If the ABI does not require a chain, the
// zero may come from the thread's first function, or may be a chance value. Then chainEnds accepts the zero only in a
// function that never returns, or in a frame that the chain itself has found.
func (w *walk) chainEnds(frame *Frame) bool {
	c := &w.arch.Chain
	if !c.Mandatory && !w.settled && frame.Method != ByFramePointer {
		return false
	}
	base, ok := w.regs.Get(c.Base)
	if ok && c.InCaller {
		base, ok = w.mem.Word(base + uint64(c.Saved))
	}
	return ok && base == 0 && c.ZeroEnds
}

// record reads the chain's record at the frame's base register. ok is false if the record is invalid.
func (w *walk) record() (saved, ra uint64, ok bool) {
	c := &w.arch.Chain
	base, ok := w.regs.Get(c.Base)
	// The lowest byte of the record must lie on the stack.
	if !ok || base%uint64(w.arch.AddrSize) != 0 || base+uint64(min(c.Saved, c.Return, 0)) < w.floor() {
		return 0, 0, false
	}
	if base > ^uint64(0)-uint64(max(c.Saved, c.Return, 0))-uint64(w.arch.AddrSize) {
		return 0, 0, false
	}
	if saved, ok = w.mem.Word(base + uint64(c.Saved)); !ok {
		return 0, 0, false
	}
	at := base
	if c.InCaller {
		if saved <= base || saved%uint64(w.arch.AddrSize) != 0 {
			return 0, 0, false
		}
		at = saved
	}
	if ra, ok = w.mem.Word(at + uint64(c.Return)); !ok {
		return 0, 0, false
	}
	ra = w.arch.StripCode(ra)
	return saved, ra, w.isReturnAddress(ra)
}

// isReturnAddress reports whether an address can be a return address: the byte before it lies in code.
func (w *walk) isReturnAddress(ra uint64) bool {
	if ra == 0 {
		return false
	}
	if _, ok := w.find(ra - 1); ok {
		return true
	}
	_, ok := w.find(ra) // the byte before a trampoline may not be code
	return ok || w.probed(ra)
}

// stepStub finds the caller of a stub. The caller's address is in the link register. The stub belongs to the procedure
// linkage table, or a linker has put it among the functions; some linkers create no call frame information for such
// stubs. The result is false if the frame is not in such a stub.
func (w *walk) stepStub(frame *Frame) (Frame, Stop, bool) {
	code, ok := w.modules.(Code)
	reg, has := linkRegister(w.arch)
	link, known := w.regs.Get(reg)
	link = w.arch.StripCode(link)
	if !ok || !has || !known || !frame.Exact || !w.isReturnAddress(link) ||
		!code.Stub(frame.PC) && !w.arch.InCallStub(frame.PC, code.Code) {
		return Frame{}, Stop{}, false
	}
	caller := w.regs
	caller.Set(w.arch.PC, link)
	next, stop := w.advance(frame, w.floor(), caller, ByReturnRegister)
	return next, stop, true
}

// maxLeaf limits the bytes of code that are searched for changes of the stack pointer.
const maxLeaf = 256

// stepInner finds the caller of the innermost function, or of a function that a signal interrupted, if the function has
// not saved its return address. On architectures where calls push the return address, it is on top of the stack until
// an instruction moves the stack pointer. On others it is in the link register. But once the function has made a call,
// the link register contains an address in the function itself. If the frame's record contains the link register's
// value, the function has saved it, and the record is used. The result is false if stepInner finds no caller.
func (w *walk) stepInner(frame *Frame, recorded uint64, hasRecord bool) (Frame, Stop, bool) {
	code, ok := w.modules.(Code)
	if !ok {
		return Frame{}, Stop{}, false
	}
	start, end, ok := code.Function(frame.PC)
	if !ok || !w.knowsSP() {
		return Frame{}, Stop{}, false
	}
	var buf [maxLeaf]byte
	n := min(frame.PC-start, maxLeaf)
	read := n == frame.PC-start && code.Code(start, buf[:n])
	still := read && w.still(buf[:n])
	caller := w.stackRegisters()
	reg, has := linkRegister(w.arch)
	if !has {
		return w.stepPushed(frame, caller, still)
	}
	link, known := w.regs.Get(reg)
	link = w.arch.StripCode(link)
	inside := link-1 >= start && link-1 < end
	if restored := w.arch.Restored; read && restored != nil && restored(buf[:n]) {
		return w.stepRestored(frame, caller, link, known && !inside)
	}
	if !known || link == 0 || inside || hasRecord && recorded == link && !still || !w.isReturnAddress(link) {
		return Frame{}, Stop{}, false
	}
	caller.Set(w.arch.PC, link)
	if !still && !w.leaveLeaf(&caller) {
		return Frame{}, Stop{}, false
	}
	next, stop := w.advanceBeyond(frame, w.floor(), caller)
	next.Method = ByReturnRegister
	return next, stop, true
}

// stepRestored finds the caller of a function that has already removed its frame, on an architecture with a back chain.
// SP already has the caller's value. The return address is in the link register. If the link register has the return
// address of a call in the function itself (linked is false), the function's return address is still in the place where
// the function saved it, in its caller's frame.
func (w *walk) stepRestored(frame *Frame, caller arch.Registers, link uint64, linked bool) (Frame, Stop, bool) {
	method := ByReturnRegister
	if !linked {
		method = ByFramePointer
		var ok bool
		if link, ok = w.mem.Word(w.floor() + uint64(w.arch.Chain.Return)); !ok {
			return Frame{}, Stop{}, false
		}
	}
	if !w.isReturnAddress(link) {
		return Frame{}, Stop{}, false
	}
	caller.Set(w.arch.PC, link)
	next, stop := w.advanceBeyond(frame, w.floor(), caller)
	next.Method = method
	return next, stop, true
}

// still reports whether running the code from start to end does not change the stack pointer. One of two checks is
// enough: the bytes cannot contain an instruction that moves the stack pointer, or the decoded instructions do not move
// it.
func (w *walk) still(code []byte) bool {
	return !w.arch.MovesSP(code) || w.arch.Decoded && codeflow.Still(code)
}

// stackRegisters returns the registers that a function without a frame preserves. The function may have saved and
// changed any other register.
func (w *walk) stackRegisters() arch.Registers {
	var r arch.Registers
	for _, reg := range [...]int{w.arch.SP, w.arch.FP} {
		if v, ok := w.regs.Get(reg); ok && (reg == w.arch.SP || w.arch.Chain.Base == reg) {
			r.Set(reg, v)
		}
	}
	return r
}

// stepPushed uses the word on top of the stack as the return address. The parameter still means that the code before PC
// has not moved SP. The result is false if still is not set, or if the word cannot be read or is not a return address.
func (w *walk) stepPushed(frame *Frame, caller arch.Registers, still bool) (Frame, Stop, bool) {
	sp := w.floor()
	ra, ok := w.mem.Word(sp)
	if !still || !ok || !w.isReturnAddress(ra) {
		return Frame{}, Stop{}, false
	}
	caller.Set(w.arch.PC, ra)
	caller.Set(w.arch.SP, sp+uint64(w.arch.AddrSize))
	next, stop := w.advance(frame, sp+uint64(w.arch.AddrSize), caller, ByReturnRegister)
	return next, stop, true
}

// leaveLeaf sets the caller's stack registers when only the link register gives the caller's address and the function
// has moved SP. If the ABI chains frames by SP, the caller's SP is the first word of the frame, and the result is false
// if this word is invalid. Otherwise the caller's SP is unknown, except in functions with a record.
func (w *walk) leaveLeaf(caller *arch.Registers) bool {
	c := &w.arch.Chain
	base, ok := w.regs.Get(c.Base)
	if c.Base == w.arch.SP {
		saved, found := w.mem.Word(base + uint64(c.Saved))
		caller.Set(w.arch.SP, saved)
		return ok && found && saved > base && saved%uint64(w.arch.AddrSize) == 0
	}
	caller.Clear(w.arch.SP)
	if !ok || c.LeafSaved == 0 || base+uint64(c.LeafSaved) < w.floor() {
		return true
	}
	// A leaf function that has no record leaves the frame pointer unchanged. This word is then the caller's return
	// address.
	saved, ok := w.mem.Word(base + uint64(c.LeafSaved))
	if ok && saved > base && saved%uint64(w.arch.AddrSize) == 0 && !w.isReturnAddress(saved) {
		caller.Set(c.Base, saved)
		caller.Set(w.arch.SP, base+uint64(c.SP))
	}
	return true
}

// stepNoCode handles an address without code. In an exact frame this is a call through a bad pointer. On architectures
// where calls push the return address, it is on top of the stack, because no instruction has run since the call. The
// kernel calls a signal handler with the address of a trampoline in its place. In any other frame the stack is corrupt.
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
		ra = w.arch.StripCode(ra)
	} else {
		if ra, ok = w.mem.Word(sp); !ok {
			return Frame{}, Stop{Reason: NoMemory, Address: sp}
		}
		caller.Set(w.arch.SP, sp+uint64(w.arch.AddrSize))
	}
	if !ok || ra == 0 {
		return Frame{}, lost
	}
	if w.calls(ra, 0) == refuted && !w.trampolineAt(ra) {
		return Frame{}, lost // the address is not the target of a call, but of a return to a damaged return address
	}
	caller.Set(w.arch.PC, ra)
	newSP, _ := caller.Get(w.arch.SP)
	return w.advance(frame, newSP, caller, ByReturnAddress)
}
