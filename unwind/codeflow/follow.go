package codeflow

import (
	"errors"

	"pg_stat_backtrace/unwind/arch"
)

// Place is a position in the code at which a frame continues.
type Place struct {
	Addr uint64
	// Exact is set if the processor continues at the address itself: in the innermost frame and in a frame that a
	// signal interrupted. Otherwise Addr is a return address, and the call before it may never return.
	Exact bool
}

// Follow returns the registers that the caller of a frame will have after the frame's function has returned. They are
// the program counter, the stack pointer, and the known callee-saved registers. regs are the registers of the frame
// at the given place and must include its stack pointer. Register numbers belong to the architecture.
//
// Follow takes all paths that the instructions allow, the nearest instruction first. It stops a fixed number of
// instructions after the first path that returned. The paths that return must agree on the return address and the stack
// pointer.
//
// A jump to covered code (see Code) also counts as a return, if the return address is where a call stores it. If a path
// continues into such code without a jump, this is a return, too, provided that no call is on the path. The GNU C
// library's checks before memcpy run into memcpy like this, through instructions outside any function. Any other path
// into covered code is abandoned.
//
// The errors are the errors of this package. If the last abandoned path has an instruction that cannot be decoded, the
// error is from package disasm.
//
// budget is the number of instructions that Follow may still decode. Follow subtracts the number that it used, so that
// one budget can limit the calls for many frames.
func Follow(
	a *arch.Arch, code Code, at Place, regs arch.Registers, mem Memory, budget *int,
) (arch.Registers, error) {
	m := machineOf(a)
	if m == nil {
		return arch.Registers{}, ErrNoReturn
	}
	if _, known := regs.Get(m.sp); !known {
		return arch.Registers{}, ErrNoReturn
	}
	regs.Clear(m.pc)
	w := follower{arch: a, machine: m, code: code, mem: mem, from: at.Addr, met: make(map[uint64]*state), budget: budget}
	if err := w.reach(at.Addr, state{regs: regs, behindCall: !at.Exact}); err != nil {
		return arch.Registers{}, err
	}
	for n, enough := 0, maxSteps; len(w.todo) > 0 && n < enough && *budget > 0; n++ {
		addr := w.todo[0] // the oldest path first: distant code more often belongs to another function
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
	arch    *arch.Arch
	machine *machine

	code Code
	mem  Memory
	from uint64            // address in the frame's Place
	met  map[uint64]*state // by address of an instruction: the state before it
	todo []uint64          // addresses to continue from

	now      instruction // the current instruction
	budget   *int
	returned bool
	caller   arch.Registers
	failed   error // why a path was abandoned; ErrMemory takes precedence

	back    map[uint64]bool // by entry of a called function: whether it may return
	looking map[uint64]bool // the called functions under analysis
	looked  int             // number of instructions decoded in called functions
	cut     bool            // because of a limit, a called function was assumed to return
}

// reach adds a path that continues at an address with a state. If an earlier path has reached the address, the states
// are joined.
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
	if _, ok := before.regs.Get(w.machine.sp); !ok {
		return ErrAmbiguous
	}
	w.todo = append(w.todo, addr)
	return nil
}

// step follows the instruction at an address.
func (w *follower) step(addr uint64) error {
	x := &w.now
	if err := w.decode(addr, x); err != nil {
		w.fail(err)
		return nil // only this path ends; other paths may return
	}
	s := *w.met[addr]
	next := x.next // w.now changes if a called function is analysed
	switch x.flow {
	case returns:
		return w.leave(&s, x)
	case ends:
		return nil
	case away, lost:
		return w.leaveByStub(&s, x, addr)
	case jump:
		if w.code.Stub(x.to) {
			return w.goOn(&s, x)
		}
		return w.enter(&s, x)
	case calls:
		if w.code.Ends(next) || x.to != 0 && !w.comesBack(x.to, 0) {
			return nil
		}
		s.called(w.machine)
	case on, branch:
		s.missed = false
		if !w.execute(&s, x) {
			if s.missed { // for example because the instruction loads the stack pointer from unknown memory
				w.fail(ErrMemory)
			} else {
				w.fail(ErrNoReturn)
			}
			return nil
		}
		if x.flow == branch {
			if err := w.enter(&s, x); err != nil {
				return err
			}
		}
	}
	switch covered, entry := w.code.Covered(next); {
	case !covered:
		return w.reach(next, s)
	case entry && !s.behindCall:
		return w.leave(&s, x)
	}
	w.fail(ErrNoReturn) // another function follows, so a call on the path never returns
	return nil
}

// fail records why a path was abandoned, for the error of Follow. ErrMemory takes precedence, because the caller may be
// able to read the missing memory.
func (w *follower) fail(why error) {
	if !errors.Is(w.failed, ErrMemory) {
		w.failed = why
	}
}

func (w *follower) decode(addr uint64, x *instruction) error {
	*w.budget--
	return w.machine.decode(w.code.Bytes(addr), addr, x)
}

// leaveByStub handles a path that ends in a jump whose target is not in the instruction. Such a jump may belong to a
// stub, for which some linkers create no call frame information. Then the path continues in the stub's function (see
// goOn). If the frame itself is in the stub, the path counts as a return, because the frame has a caller even if the
// stub's function never returns.
func (w *follower) leaveByStub(s *state, x *instruction, addr uint64) error {
	stub := w.code.Stub(addr)
	switch {
	case !stub && x.flow == away:
		return w.leave(s, x)
	case !stub:
		w.fail(ErrNoReturn)
		return nil
	case addr == w.from:
		return w.leave(s, x)
	}
	x.to = addr
	return w.goOn(s, x)
}

// goOn handles a path that continues in a function of another image. This function returns to the caller of the frame's
// function. If the function never returns, goOn only ends the path.
func (w *follower) goOn(s *state, x *instruction) error {
	if back, known := w.code.Returns(x.to); known && !back {
		return nil
	}
	return w.leave(s, x)
}

// enter handles a jump to a known address: it continues the path there. If call frame information covers the address,
// the path ends: as a return at a function's entry, otherwise without a result.
func (w *follower) enter(s *state, x *instruction) error {
	covered, entry := w.code.Covered(x.to)
	switch {
	case !covered:
		return w.reach(x.to, *s)
	case entry:
		return w.leave(s, x)
	}
	w.fail(ErrNoReturn)
	return nil
}

// leave handles a path that returns, or that continues as another function. It keeps only the registers of the caller
// whose values are the same on all paths so far that returned. If the program counter or the stack pointer differs, the
// error is ErrAmbiguous. A path with an unknown return address is abandoned.
func (w *follower) leave(s *state, x *instruction) error {
	ra, sp, ok := w.machine.returnsTo(w.machine, s, w.mem, x)
	if !ok {
		w.fail(ErrMemory)
		return nil
	}
	caller := s.regs
	for _, reg := range w.machine.scratch {
		caller.Clear(reg)
	}
	caller.Set(w.machine.pc, w.arch.StripCode(ra))
	caller.Set(w.machine.sp, sp)
	if !w.returned {
		w.caller, w.returned = caller, true
		return nil
	}
	keepEqual(&w.caller, &caller)
	_, pc := w.caller.Get(w.machine.pc)
	if _, ok := w.caller.Get(w.machine.sp); !ok || !pc {
		return ErrAmbiguous
	}
	return nil
}
