package steps

import "pg_stat_backtrace/unwind/arch"

// place is a program counter and a stack pointer.
type place struct{ pc, sp uint64 }

// call is one that has not returned: where it will, and with which stack pointer.
type call struct {
	back place
	// own is the highest stack pointer that is the called function's.
	own uint64
	// taken is set while the function has its return address elsewhere, to put it back before it returns, as vfork of
	// the GNU C library and sigsetjmp of musl do.
	taken bool
}

// calls are those of a process that have not returned.
type calls struct {
	open     []call         // outermost first
	returned map[place]bool // where others have returned to
	pushed   uint64         // bytes that a call leaves on the stack; 0: the return address is in a register
}

func newCalls(a *arch.Arch) calls {
	c := calls{returned: make(map[place]bool)}
	if a.Index(uint64(a.ReturnColumn)) == a.PC {
		c.pushed = uint64(a.AddrSize)
	}
	return c
}

// begin notes a call.
func (c *calls) begin(back place) {
	c.open = append(c.open, call{back: back, own: back.sp - c.pushed})
}

// clear forgets them all, since another program runs.
func (c *calls) clear() {
	c.open = nil
	clear(c.returned)
}

// settle drops the calls that are over where the process is now: they have returned, or the stack pointer has left them
// behind, or longjmp has led to where a call has returned before. popped tells whether the instruction, at an address,
// was a pop.
func (c *calls) settle(now place, popped bool, at uint64) {
	n := len(c.open)
	for n > 0 && c.over(&c.open[n-1], now, popped && at != c.open[n-1].back.pc) {
		n--
	}
	switch {
	case n < len(c.open):
		c.returned[now] = true
	case c.pushed == 0 && c.returned[now]:
		for n > 0 && c.open[n-1].own <= now.sp {
			n--
		}
	}
	c.open = c.open[:n]
}

// over tells whether a call is. One that looks so because its function has taken the return address off the stack is
// not.
func (c *calls) over(one *call, now place, popped bool) bool {
	switch {
	case now == one.back:
		return true
	case now.sp <= one.own:
		one.taken = false
		return false
	}
	one.taken = (one.taken || popped) && now.sp == one.own+c.pushed
	return !one.taken
}
