package unwind

// perf and bpftrace set return probes (uretprobes). At the entry of a probed function the kernel replaces the return
// address by the address of kernel-provided code in the mapping [uprobes]. The kernel keeps the original return
// address, so the process's memory does not contain it.

// Probes is implemented by Modules that can detect return probes.
type Probes interface {
	// ReturnProbe reports whether addr is the address of the kernel's code to which probed functions return.
	ReturnProbe(addr uint64) bool
}

// smallestPage divides all page sizes. The kernel's code for return probes begins at a page boundary.
const smallestPage = 4096

// probed reports whether an address is the return address of a return probe.
func (w *walk) probed(ra uint64) bool {
	if ra%smallestPage != 0 || ra == 0 {
		return false
	}
	probes, ok := w.modules.(Probes)
	return ok && probes.ReturnProbe(ra)
}

// stepProbe finds the caller of a function with a return probe. It searches the stack for a function that contains a
// call of the probed function (see behindProbe). If it finds none, it uses the frame pointer, provided that the caller
// has set it.
func (w *walk) stepProbe(frame *Frame) (Frame, Stop) {
	lost := Stop{Reason: ReturnProbe, Address: frame.PC}
	if w.trial {
		return Frame{}, lost
	}
	if frame.Method == ByCFI && w.knowsSP() {
		p := behindProbe{trial: trial{w: w, frame: frame, budget: maxTrialSteps}}
		p.searchStack(w.row.FDEStart + w.row.Bias)
		switch {
		case w.instructions <= 0:
			return Frame{}, lost // not all places were tried
		case p.proven > 0 && p.undecided == 0 && p.agree:
			return p.take(frame)
		case p.proven > 0 || p.undecided > 0:
			if p.missing.Reason == NoMemory && p.proven == 0 {
				return Frame{}, p.missing // more memory may give the caller
			}
			return Frame{}, lost
		}
	}
	if !w.recordIsNext() {
		return Frame{}, lost
	}
	next, stop := w.stepChain(frame)
	if stop.Reason == NoCFI {
		stop = lost
	}
	return next, stop
}

// behindProbe tries the places in the code where the caller of a probed function may be. It accepts a place under three
// conditions. At the place, its function calls the probed function directly, or calls a function that finally jumps to
// the probed function. Call frame information for the place leads to a return address that follows a call of the
// place's function. The walk from there reaches the base of the stack.
type behindProbe struct {
	trial

	site  uint64 // return address of the first proven place
	next  Frame  // caller of the site's function, as found for the first proven place
	after walk
	agree bool // all proven places have the same caller
}

// maxCallerFrame bounds the frame of a probed function's caller in bytes.
const maxCallerFrame = 1 << 16

// searchStack looks for words of the stack that are return addresses of direct calls. The function that such a call has
// called may be the caller of the probed function, so searchStack tries all direct calls in it. entry is where the
// probed function begins.
func (p *behindProbe) searchStack(entry uint64) {
	w := p.w
	met := make(map[uint64]bool)
	for at, sp := w.floor(), w.floor(); at-sp < maxCallerFrame && w.instructions > 0; at += uint64(w.arch.AddrSize) {
		ra, ok := w.mem.Word(at)
		if !ok {
			return
		}
		ra = w.arch.StripCode(ra)
		function, direct := w.calledBefore(ra)
		if !direct || met[ra] {
			continue
		}
		met[ra] = true
		for _, c := range w.callsIn(function) {
			if c.direct {
				p.enterSite(c, ra, function, entry)
			}
		}
	}
}

// enterSite tries the call c in the given function as the call of the probed function, which begins at entry. ra is a
// word of the stack: the return address of a call of the given function.
func (p *behindProbe) enterSite(c call, ra, function, entry uint64) {
	t, next, ok := p.w.returnsTo(c.back, ra)
	if !ok || c.function != entry && !p.w.jumps(c.function, entry) {
		return
	}
	after := t
	frame := Frame{PC: c.back, Method: ByReturnProbe}
	v := p.follow(&t, frame, next, Stop{}, function)
	p.w.instructions = t.instructions
	switch v {
	case refuted:
		return
	case undecided:
		p.undecided++
		return
	case proven:
	}
	if p.proven++; p.proven == 1 {
		p.site, p.next, p.after, p.agree = c.back, next, after, true
	}
	p.agree = p.agree && next == p.next && after.regs == p.after.regs
}

// returnsTo makes a step from the address site, where a possible caller would continue, to the next outer frame. t is
// the walk after the step, and next is that frame. ok is false if the step fails or leads to another address than ra.
func (w *walk) returnsTo(site, ra uint64) (t walk, next Frame, ok bool) {
	const cost = 8 // a step costs as much time as following 8 instructions
	w.instructions -= cost
	t = *w
	t.trial, t.followed = true, nil
	t.regs.Set(t.arch.PC, site)
	frame := Frame{PC: site, Method: ByReturnProbe}
	next, stop := t.step(&frame)
	return t, next, stop.Reason == running && next.PC == ra
}

// take moves to the place if only one place is proven. Otherwise it moves to the places' common caller.
func (p *behindProbe) take(frame *Frame) (Frame, Stop) {
	w := p.w
	frame.CFA = w.floor()
	if p.proven == 1 {
		w.regs.Set(w.arch.PC, p.site)
		return Frame{PC: p.site, Method: ByReturnProbe}, Stop{}
	}
	w.regs, w.low, w.row = p.after.regs, p.after.low, p.after.row
	p.next.Method = ByReturnProbe
	return p.next, Stop{}
}

// recordIsNext reports whether the record at the frame pointer belongs to the probed function's caller, as far as this
// can be checked. The record's return address must follow a call, or must be the address of another return probe. No
// other frame may lie between the probed function and the record.
func (w *walk) recordIsNext() bool {
	saved, ra, ok := w.record()
	if !ok || !w.probed(ra) && w.calls(ra, 0) == refuted {
		return false
	}
	c := &w.arch.Chain
	if c.Mandatory {
		return true // the ABI requires that the caller has made a record
	}
	base, _ := w.regs.Get(c.Base)
	if c.InCaller {
		base = saved
	}
	start, end := w.floor()+w.savedAbove(), base+uint64(c.Return)
	if end-start > maxCallerFrame {
		return false
	}
	for at := start; at < end; at += uint64(w.arch.AddrSize) {
		w.instructions--
		word, ok := w.mem.Word(at)
		word = w.arch.StripCode(word)
		if !ok || w.probed(word) || w.mayReturn(word, at) {
			return false
		}
	}
	return true
}

// savedAbove is the distance from a frame's stack pointer up to the highest place where callees save return
// addresses. The frame's own return address lies beyond it.
func (w *walk) savedAbove() uint64 {
	if c := &w.arch.Chain; c.InCaller {
		return uint64(c.Return) + uint64(w.arch.AddrSize)
	}
	return 0
}

// mayReturn reports whether ra, the word at the stack address at, can be the return address of a probed function's
// caller. An instruction before ra must be a call. The called function must contain a call for which call frame
// information has the return address at this place. If this cannot be checked, for example after an indirect call, the
// result is true.
func (w *walk) mayReturn(ra, at uint64) bool {
	if w.calls(ra, 0) == refuted {
		return false
	}
	function, direct := w.calledBefore(ra)
	if !direct {
		return true // an indirect call may call any function
	}
	if !w.knowsSP() {
		return true // the frame may have any size
	}
	for _, c := range w.callsIn(function) {
		if t, _, ok := w.returnsTo(c.back, ra); ok && t.floor()+w.savedAbove() > at || w.instructions <= 0 {
			return true
		}
	}
	return false
}
