package capture

import "pg_stat_backtrace/unwind/arch"

// codePlace is a program counter and a stack pointer.
type codePlace struct{ pc, sp uint64 }

// call is a call that has not returned yet: its return address, and the stack pointer after the return.
type call struct {
	back codePlace
	// own is the highest stack pointer that belongs to the called function.
	own uint64
	// taken is set while the function keeps its return address elsewhere. It puts the address back before it returns.
	// vfork of the GNU C library and sigsetjmp of musl do this.
	taken bool
}

// calls are the calls of a process that have not returned.
type calls struct {
	open   []call // outermost first
	pushed uint64 // bytes that a call leaves on the stack; 0: the return address is in a register
}

func newCalls(a *arch.Arch) calls {
	if a.Index(uint64(a.ReturnColumn)) == a.PC {
		return calls{pushed: uint64(a.AddrSize)}
	}
	return calls{}
}

// begin records a call.
func (c *calls) begin(back codePlace) {
	c.open = append(c.open, call{back: back, own: back.sp - c.pushed})
}

// clear forgets all calls, because the process has executed another program.
func (c *calls) clear() { c.open = nil }

// step is the effect of an instruction that is not a call.
type step struct {
	kind kind
	at   uint64    // the instruction's address
	now  codePlace // the state after the instruction
	link uint64    // the register for return addresses, if there is one
}

// settle drops the calls that are over, by a return, by the stack pointer, or by a jump. It reports whether the
// outermost dropped call ended in another way than by a return.
func (c *calls) settle(s *step) (left bool) {
	n := len(c.open)
	for n > 0 && c.over(&c.open[n-1], s) {
		n--
	}
	left = n < len(c.open) && s.now.pc != c.open[n].back.pc
	c.open = c.open[:n]
	return left
}

// over reports whether a call is over. A function may only have taken its return address off the stack, to put it back
// later. The call is then not over, unless the function jumps. longjmp and the end of an exception jump after they have
// set the stack pointer. On architectures whose calls put the return address in a register, these jumps change the
// register. A jump to another function keeps the call's return address there.
func (c *calls) over(one *call, s *step) bool {
	switch {
	case s.now == one.back:
		return true
	case s.now.sp <= one.own:
		one.taken = false
		return c.pushed == 0 && s.now.sp == one.own && s.kind == leaps && s.link != one.back.pc
	}
	popped := s.kind == pops && s.at != one.back.pc
	one.taken = (one.taken || popped) && s.now.sp == one.own+c.pushed && s.kind != leaps
	return !one.taken
}
