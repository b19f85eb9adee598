package selfnames

import (
	"encoding/binary"
	"fmt"

	"pg_stat_backtrace/unwind/disasm"
)

// effect says how an instruction changes the addresses in registers, and where the program continues.
type effect struct {
	// target is the target of a direct jump, branch or call. slot is the address of the word through which an
	// indirect jump or call goes, if known.
	target, slot uint64
	// The register rd gets the number in the field value (if the field set is true), or the sum of the register rn and
	// this number (if the field copied is true). The number may be an address. Before that, the registers in the field
	// writes (bit n for register n) get unknown values.
	value       uint64
	writes      uint32
	rd, rn      uint8
	set, copied bool
	// page is set if the field value is the address of a page, to which a later instruction adds the offset.
	page   bool
	flow   disasm.Flow
	length uint8
}

// state has the registers with known values.
type state struct {
	values [registers]uint64
	known  uint32 // bit n for register n
}

const registers = 32

// of returns the value of a register, 0 if unknown.
func (s *state) of(reg uint8) uint64 {
	if s.known>>(reg&31)&1 == 0 {
		return 0
	}
	return s.values[reg&31]
}

func (s *state) set(reg uint8, value uint64) {
	if s.values[reg&31] = value; value != 0 {
		s.known |= 1 << (reg & 31)
	}
}

// apply changes the state by the effect of an instruction.
func (s *state) apply(e *effect) {
	value := e.value
	if e.copied {
		if value = s.of(e.rn); value != 0 {
			value += e.value
		}
	}
	s.known &^= e.writes
	if e.set || e.copied {
		s.set(e.rd, value)
	}
}

// typicalRefs is about how many pointers the code of PostgreSQL has, typicalSites how many reports, and how many jumps
// out of functions.
const (
	typicalRefs  = 1 << 17
	typicalSites = 1 << 14
)

// pending is a jump at which an argument register points to a function's name. The code at the jump's target may call a
// reporter with this argument.
type pending struct {
	fn   int32
	to   uint64
	args [4]uint64
}

// sweeper decodes all code of an image once.
type sweeper struct {
	*code
	args     [4]uint8
	clobber  uint32
	pendings []pending
	decode   func(p []byte, pc uint64, e *effect, writes bool) bool
	// low and high bound the image's addresses.
	low, high uint64
}

// sweep decodes all functions. It collects their pointers, jumps and calls of reporters.
func (c *code) sweep() error {
	s := sweeper{code: c, args: c.machine.args, clobber: c.machine.clobber, decode: c.machine.decode}
	s.low, s.high = c.image.AddrRange()
	c.refs = make([]reference, 0, typicalRefs)
	c.sites, c.jumps = make([]site, 0, typicalSites), make([]jump, 0, typicalSites)
	for fn := range c.fns {
		s.function(int32(fn))
		if len(c.refs) > maxRefs || len(c.jumps) > maxRefs || len(c.sites) > maxSites || len(s.pendings) > maxRefs {
			return fmt.Errorf("%w: too many pointers or jumps", ErrTooLarge)
		}
	}
	for _, r := range c.refs {
		if fn := c.starting(r.to); fn >= 0 && fn != r.fn {
			c.fns[fn].called = true
		}
	}
	for i := range s.pendings {
		s.follow(&s.pendings[i])
	}
	return nil
}

// function decodes the code of one function from start to end.
func (s *sweeper) function(fn int32) {
	f := &s.fns[fn]
	p := s.bytes(f.start, f.end-f.start)
	var regs state
	var e effect
	for pc := f.start; len(p) > 0; pc, p = pc+uint64(e.length), p[e.length:] {
		if !s.decode(p, pc, &e, regs.known != 0) {
			f.opaque = true
			return
		}
		switch e.flow {
		case disasm.Next:
			if e.copied && e.value != 0 && regs.of(e.rn) != 0 {
				s.based(fn, regs.of(e.rn))
			}
			regs.apply(&e)
			if (e.set && !e.page || e.copied) && regs.of(e.rd) != 0 {
				s.refer(fn, regs.of(e.rd))
			}
		case disasm.Call:
			s.call(fn, &e, &regs)
			regs.known &^= s.clobber
		case disasm.Jump, disasm.Branch:
			s.jump(fn, &e, &regs)
			if e.flow == disasm.Jump {
				regs.known = 0
			}
		default:
			if e.slot != 0 { // a tail call: a jump to an imported function
				s.report(fn, reporters[s.image.Imported(e.slot)], &regs)
			}
			regs.known = 0
		}
	}
}

// refer records a pointer of function fn, if it points into the image.
func (s *sweeper) refer(fn int32, to uint64) {
	if to >= s.low && to < s.high {
		s.refs = append(s.refs, reference{fn: fn, to: to})
	}
}

// based sets the field base of the function's newest pointer to an address, because the code computes another pointer
// from it. aarch64's compilers address the constants of a source file relative to the first constant, which may be the
// name of a function.
func (s *sweeper) based(fn int32, addr uint64) {
	const near = 64
	for i := len(s.refs) - 1; i >= max(0, len(s.refs)-near) && s.refs[i].fn == fn; i-- {
		if s.refs[i].to == addr {
			s.refs[i].base = true
			return
		}
	}
}

// call records that the function at the target of a call is called. If it is a reporter, call also records the names in
// the arguments.
func (s *sweeper) call(fn int32, e *effect, regs *state) {
	switch {
	case e.target != 0:
		if to := s.starting(e.target); to >= 0 {
			s.fns[to].called = true
		}
		s.report(fn, s.callee(e.target), regs)
	case e.slot != 0:
		s.report(fn, reporters[s.image.Imported(e.slot)], regs)
	}
}

// jump handles a jump with a known target. It records a jump out of the function or, if the target is a reporter, a
// call of it. If argument registers point to a function's name, other jumps become pending jumps, even inside the
// function.
func (s *sweeper) jump(fn int32, e *effect, regs *state) {
	if e.target == 0 {
		return
	}
	f := &s.fns[fn]
	inside := e.target >= f.start && e.target < f.end
	if !inside {
		if kind := s.callee(e.target); kind != noReporter {
			s.report(fn, kind, regs)
			return
		}
		s.jumps = append(s.jumps, jump{fn, e.flow == disasm.Branch, e.target})
	}
	if regs.of(s.args[2]) == 0 && regs.of(s.args[3]) == 0 {
		return
	}
	var args [4]uint64
	for i, r := range s.args {
		args[i] = regs.of(r)
	}
	if s.identifier(args[2]) != "" || s.identifier(args[3]) != "" {
		s.pendings = append(s.pendings, pending{fn, e.target, args})
	}
}

// report records a call of a reporter in function fn. If the function name in the arguments is unknown, report marks fn
// as opaque instead.
func (s *sweeper) report(fn int32, kind reporter, regs *state) {
	at := site{fn: fn}
	switch kind {
	case thirdIsName:
		at.name, at.file = regs.of(s.args[2]), regs.of(s.args[0])
	case fourthIsName:
		at.name, at.file = regs.of(s.args[3]), regs.of(s.args[1])
	case noReporter:
		return
	}
	if at.name == 0 || s.identifier(at.name) == "" {
		s.fns[fn].opaque = true
		return
	}
	s.sites = append(s.sites, at)
}

// follow follows a pending jump for up to 24 instructions from its target, to find a call of a reporter.
func (s *sweeper) follow(p *pending) {
	const steps = 24
	var regs state
	for i, r := range s.args {
		regs.set(r, p.args[i])
	}
	var e effect
	pc := p.to
	for range steps {
		const longest = 15
		code := s.bytes(pc, longest)
		if code == nil || !s.decode(code, pc, &e, true) {
			return
		}
		switch e.flow {
		case disasm.Next:
			regs.apply(&e)
			pc += uint64(e.length)
		case disasm.Branch:
			pc += uint64(e.length)
		case disasm.Jump:
			if e.target == 0 || s.callee(e.target) != noReporter {
				s.call(p.fn, &e, &regs)
				return
			}
			pc = e.target
		case disasm.Call:
			if e.slot != 0 || e.target != 0 && s.callee(e.target) != noReporter {
				s.call(p.fn, &e, &regs)
			}
			return
		default:
			return
		}
	}
}

func decodeAArch64(p []byte, pc uint64, e *effect, _ bool) bool {
	x, err := disasm.DecodeA64(p)
	if err != nil {
		return false
	}
	*e = effect{length: uint8(x.Length), flow: x.Flow, writes: x.Writes}
	if x.Direct {
		e.target = pc + uint64(x.Target)
	}
	if x.Rd < 0 || x.Rd >= registers {
		return true
	}
	switch x.Op {
	case disasm.Page:
		e.set, e.page, e.rd, e.value = true, true, uint8(x.Rd), pc&^0xfff+x.Imm
	case disasm.Add:
		if x.Rn >= 0 && x.Rn < registers {
			e.copied, e.rd, e.rn, e.value = true, uint8(x.Rd), uint8(x.Rn), x.Imm
		}
	default:
	}
	return true
}

// stubSlot returns the address of the slot that contains a stub's target; 0 if the code at addr is not a stub.
func (c *code) stubSlot(addr uint64) uint64 {
	const longest = 16
	p := c.bytes(addr, longest)
	if p == nil {
		return 0
	}
	return c.machine.stub(p, addr)
}

// stubX86 returns the slot in jmp *slot(%rip), after an optional endbr64 and an optional bnd prefix; 0 for other code.
func stubX86(p []byte, addr uint64) uint64 {
	at := 0
	if binary.LittleEndian.Uint32(p) == 0xfa1e0ff3 { // endbr64
		at = 4
	}
	if p[at] == 0xf2 { // bnd
		at++
	}
	if p[at] != 0xff || p[at+1] != 0x25 {
		return 0
	}
	return addr + uint64(at) + 6 + uint64(int64(int32(binary.LittleEndian.Uint32(p[at+2:]))))
}

// stubAArch64 returns the slot in adrp x16, page; ldr x17, [x16, offset], after an optional bti; 0 for other code.
func stubAArch64(p []byte, addr uint64) uint64 {
	if binary.LittleEndian.Uint32(p)&0xffffff3f == 0xd503241f {
		p, addr = p[4:], addr+4
	}
	x, err := disasm.DecodeA64(p)
	load := binary.LittleEndian.Uint32(p[4:])
	if err != nil || x.Op != disasm.Page || load&0xffc00000 != 0xf9400000 || load>>5&31 != uint32(x.Rd) {
		return 0
	}
	return addr&^0xfff + x.Imm + uint64(load>>10&0xfff)<<3
}
