package unwind

// perf and bpftrace set return probes (uretprobes). At the entry of a probed function the kernel replaces the return
// address by the address of kernel-provided code in the mapping [uprobes]. The kernel keeps the original return
// address, so the process's memory does not contain it.

// Probes is implemented by Modules that can detect return probes.
type Probes interface {
	// ReturnProbe reports whether addr is the code to which probed functions return.
	ReturnProbe(addr uint64) bool
}

// smallestPage divides all page sizes: the kernel's code begins at a page boundary.
const smallestPage = 4096

// probed reports whether an address is the return address of a return probe.
func (w *walk) probed(ra uint64) bool {
	if ra%smallestPage != 0 || ra == 0 {
		return false
	}
	probes, ok := w.modules.(Probes)
	return ok && probes.ReturnProbe(ra)
}

// stepProbe finds the caller of a probed function. It looks for a place on the stack whose code calls the probed
// function. If it finds none, it uses the frame pointer, provided that the caller has set it.
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
				return Frame{}, p.missing // with more memory, perhaps
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

// behindProbe tries the places where a caller of a probed function may be. A place counts under three conditions. Its
// function calls the probed function there directly, or calls a function that finally jumps to it. Call frame
// information for the place leads to a return address behind a call of the place's function. The walk from there
// reaches the base of the stack.
type behindProbe struct {
	trial

	site  uint64 // of the first proven place
	next  Frame  // and its caller, with the values known at that time
	after walk
	agree bool // all that are proven have the same caller
}

// maxCallerFrame bounds the frame of a probed function's caller in bytes.
const maxCallerFrame = 1 << 16

// searchStack tries all places in functions that are called before an address on the stack. entry is where the probed
// function begins.
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

// enterSite tries a place in a function that is called before ra.
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

// returnsTo makes a step from a place of a possible caller. It is false if that does not lead to ra.
func (w *walk) returnsTo(site, ra uint64) (t walk, next Frame, ok bool) {
	const cost = 8 // as many instructions
	w.instructions -= cost
	t = *w
	t.trial, t.followed = true, nil
	t.regs.Set(t.arch.PC, site)
	frame := Frame{PC: site, Method: ByReturnProbe}
	next, stop := t.step(&frame)
	return t, next, stop.Reason == running && next.PC == ra
}

// take moves to the place if there is only one. Otherwise it moves to the place's caller, which all places share.
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

// recordIsNext reports whether the record at the frame pointer belongs to the probed function's caller, as far as
// this can be checked. The record's return address must be behind a call, or must be another probe. No frame may lie
// in between.
func (w *walk) recordIsNext() bool {
	saved, ra, ok := w.record()
	if !ok || !w.probed(ra) && w.calls(ra, 0) == refuted {
		return false
	}
	c := &w.arch.Chain
	if c.Mandatory {
		return true // the caller has made a record there
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

// mayReturn reports whether the word at an address can be the return address of a probed function's caller. There
// must be a call before it. The called function must contain a call for which call frame information has the return
// address there.
func (w *walk) mayReturn(ra, at uint64) bool {
	if w.calls(ra, 0) == refuted {
		return false
	}
	function, direct := w.calledBefore(ra)
	if !direct {
		return true // any function
	}
	if !w.knowsSP() {
		return true // a frame of any size
	}
	for _, c := range w.callsIn(function) {
		if t, _, ok := w.returnsTo(c.back, ra); ok && t.floor()+w.savedAbove() > at || w.instructions <= 0 {
			return true
		}
	}
	return false
}
