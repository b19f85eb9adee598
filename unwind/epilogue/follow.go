package epilogue

import (
	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/x86"
)

// Follow returns the registers that the caller of a frame will have when the frame's function has returned: the program
// counter, the stack pointer, and those of RBX, RBP and R12 to R15 that are known. regs are the frame's, its program
// counter and stack pointer must be among them; numbers are those of arch.AMD64.
//
// All ways through the code are followed that its instructions allow, the nearest first, until it is long enough since
// one has returned; those that return have to agree on the return address and the stack pointer. A jump to code that is
// covered, where the return address is on top of the stack, is a return, too; any other way into covered code is none.
// Errors are those of this package, and x86.ErrCode if not even one way could be decoded to its end.
//
// budget is how many instructions may be looked at, for all frames that the caller has to follow; it is what is left of
// that afterwards.
func Follow(code Code, regs arch.Registers, mem Memory, budget *int) (arch.Registers, error) {
	pc, ok := regs.Get(rip)
	if _, known := regs.Get(rsp); !ok || !known {
		return arch.Registers{}, ErrNoReturn
	}
	regs.Clear(rip)
	w := follower{code: code, mem: mem, met: make(map[uint64]*state), budget: budget}
	if err := w.reach(pc, state{regs: regs}); err != nil {
		return arch.Registers{}, err
	}
	for n, enough := 0, maxSteps; len(w.todo) > 0 && n < enough && *budget > 0; n++ {
		addr := w.todo[0] // the nearest first: farther away it is more often another function
		w.todo = w.todo[1:]
		if err := w.step(addr); err != nil {
			return arch.Registers{}, err
		}
		if w.returned {
			enough = min(enough, n+1+maxBehind)
		}
	}
	switch {
	case w.returned:
		return w.caller, nil
	case len(w.todo) > 0:
		return arch.Registers{}, ErrTooLong
	case w.failed != nil:
		return arch.Registers{}, w.failed
	}
	return arch.Registers{}, ErrNeverReturns
}

// follower is the state of following one frame's function.
type follower struct {
	code Code
	mem  Memory
	met  map[uint64]*state // by address of an instruction
	todo []uint64          // addresses to go on from

	budget   *int
	returned bool
	caller   arch.Registers
	failed   error // why a way was left before its end

	back    map[uint64]bool // of functions: whether they return
	looking map[uint64]bool // those of them that are being looked at
	looked  int             // instructions that were looked at for it
	cut     bool            // a function was taken to return because enough had been looked at
}

// reach goes on at an address with a state.
func (w *follower) reach(addr uint64, s state) error {
	before := w.met[addr]
	if before == nil {
		w.met[addr] = &s
		w.todo = append(w.todo, addr)
		return nil
	}
	if !before.join(w.mem, &s) {
		return nil
	}
	if _, ok := before.regs.Get(rsp); !ok {
		return ErrAmbiguous
	}
	w.todo = append(w.todo, addr)
	return nil
}

// step follows one instruction.
func (w *follower) step(addr uint64) error {
	x, err := w.decode(addr)
	if err != nil {
		w.failed = err
		return nil //nolint:nilerr // there may be other ways
	}
	s := *w.met[addr]
	f, to := x.flow()
	switch f {
	case returns:
		return w.leave(&s, &x)
	case ends:
		return nil
	case lost:
		w.failed = ErrNoReturn
		return nil
	case jump:
		return w.enter(to, &s)
	case calls:
		if to != 0 && !w.comesBack(to, 0) {
			return nil
		}
		s.called()
	case on, branch:
		if !s.execute(w.mem, &x) {
			w.failed = ErrNoReturn
			return nil
		}
		if f == branch {
			if err := w.enter(to, &s); err != nil {
				return err
			}
		}
	}
	if covered, _ := w.code.Covered(x.next); covered {
		w.failed = ErrNoReturn
		return nil // another function follows: the one before it does not come here
	}
	return w.reach(x.next, s)
}

func (w *follower) decode(addr uint64) (instruction, error) {
	*w.budget--
	x, err := x86.Decode(w.code.Bytes(addr))
	return instruction{Inst: x, next: addr + uint64(x.Len)}, err
}

// enter follows a jump.
func (w *follower) enter(to uint64, s *state) error {
	covered, entry := w.code.Covered(to)
	switch {
	case !covered:
		return w.reach(to, *s)
	case entry:
		return w.leave(s, nil)
	}
	w.failed = ErrNoReturn
	return nil
}

// leave notes a way that returns: by instruction x, or, if that is nil, in the function that it goes on as.
func (w *follower) leave(s *state, x *instruction) error {
	sp, _ := s.regs.Get(rsp)
	ra, ok := s.word(w.mem, sp)
	if !ok {
		w.failed = ErrMemory
		return nil
	}
	sp += slot
	if x != nil {
		if extra, has := x.Args[0].(x86asm.Imm); has {
			sp += uint64(extra)
		}
	}
	caller := s.regs
	for _, reg := range scratch {
		caller.Clear(reg)
	}
	caller.Set(rip, ra)
	caller.Set(rsp, sp)
	if !w.returned {
		w.caller, w.returned = caller, true
		return nil
	}
	keepEqual(&w.caller, &caller)
	_, pc := w.caller.Get(rip)
	if _, ok := w.caller.Get(rsp); !ok || !pc {
		return ErrAmbiguous
	}
	return nil
}
