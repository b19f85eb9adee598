package epilogue

import (
	"golang.org/x/arch/x86/x86asm"
)

const slot = 8 // bytes that a push takes

// flow is where an instruction leads.
type flow uint8

const (
	on      flow = iota // to the next one
	jump                // elsewhere
	branch              // to the next one or elsewhere
	calls               // elsewhere, and back to the next one unless what is called never returns
	returns             // to the caller
	ends                // nowhere
	lost                // it is not known where
)

// instruction is one with its address.
type instruction struct {
	x86asm.Inst

	next uint64 // the address behind it
}

// flow is where the instruction leads; to is where a jump or a call goes, 0 if that is not known.
func (x *instruction) flow() (f flow, to uint64) {
	target, relative := x.Args[0].(x86asm.Rel)
	if relative {
		to = x.next + uint64(int64(target))
	}
	switch x.Op {
	case x86asm.JMP:
		if relative {
			return jump, to
		}
		return lost, 0 // another function, or an entry of a table
	case x86asm.CALL:
		return calls, to
	case x86asm.RET:
		return returns, 0
	case x86asm.HLT, x86asm.UD1, x86asm.UD2:
		return ends, 0
	case x86asm.LJMP, x86asm.LCALL, x86asm.LRET, x86asm.IRET, x86asm.IRETD, x86asm.IRETQ, x86asm.SYSRET, x86asm.SYSEXIT,
		x86asm.ENTER:
		return lost, 0
	case x86asm.INT:
		if x.Args[0] == x86asm.Imm(3) {
			return ends, 0
		}
	default:
	}
	if relative {
		return branch, to
	}
	return on, 0
}

// execute does what an instruction does that goes on or branches, as far as that is known. What it writes becomes
// unknown unless it is one of those by which frames are made and left. False if the stack pointer is lost.
func (s *state) execute(mem Memory, x *instruction) bool {
	ok := s.change(mem, x)
	_, known := s.regs.Get(rsp)
	return ok && known
}

// change makes the changes of an instruction that goes on; false if they cannot be followed.
func (s *state) change(mem Memory, x *instruction) bool {
	switch x.Op {
	case x86asm.CMP, x86asm.TEST, x86asm.BT, x86asm.NOP:
		return true
	case x86asm.PUSH, x86asm.PUSHF, x86asm.PUSHFQ:
		return x.DataSize != 16 && s.push(mem, x)
	case x86asm.POP, x86asm.POPF, x86asm.POPFQ:
		return x.DataSize != 16 && s.pop(mem, x)
	case x86asm.LEAVE:
		fp, known := s.regs.Get(rbp)
		saved, ok := s.word(mem, fp)
		s.regs.Set(rsp, fp+slot)
		s.set(rbp, saved, ok)
		return known
	case x86asm.MOV, x86asm.LEA, x86asm.ADD, x86asm.SUB, x86asm.AND:
		value, known := s.result(mem, x)
		return s.assign(x, value, known)
	default:
	}
	for _, reg := range hidden[x.Op] {
		s.regs.Clear(reg)
	}
	if x.Op == x86asm.XCHG || x.Op == x86asm.XADD || x.Op == x86asm.CMPXCHG {
		if reg, ok := number(x.Args[1]); ok {
			s.regs.Clear(reg)
		}
	}
	return s.assign(x, 0, false)
}

func (s *state) push(mem Memory, x *instruction) bool {
	sp, _ := s.regs.Get(rsp)
	value, known := s.value(mem, x, x.Args[0])
	s.regs.Set(rsp, sp-slot)
	return s.write(store{sp - slot, slot, value, known})
}

func (s *state) pop(mem Memory, x *instruction) bool {
	sp, _ := s.regs.Get(rsp)
	value, known := s.word(mem, sp)
	s.regs.Set(rsp, sp+slot)
	if reg, ok := number(x.Args[0]); ok {
		s.set(reg, value, known)
		return true
	}
	return s.assign(x, value, known)
}

// result is what an instruction writes to its first operand.
func (s *state) result(mem Memory, x *instruction) (uint64, bool) {
	if m, ok := x.Args[1].(x86asm.Mem); ok && x.Op == x86asm.LEA {
		return s.address(x, m)
	}
	b, known := s.value(mem, x, x.Args[1])
	if x.Op == x86asm.MOV {
		return b, known
	}
	a, also := s.value(mem, x, x.Args[0])
	known = known && also
	switch x.Op {
	case x86asm.ADD:
		return a + b, known
	case x86asm.SUB:
		return a - b, known
	case x86asm.AND:
		return a & b, known
	default:
		return 0, false
	}
}

// assign gives an instruction's first operand its value; false if that is more than can be remembered.
func (s *state) assign(x *instruction, value uint64, known bool) bool {
	if m, ok := x.Args[0].(x86asm.Mem); ok && x.MemBytes > 0 {
		addr, found := s.address(x, m)
		// Through a pointer that is not known nobody writes to this frame.
		return !found || s.write(store{addr, uint64(x.MemBytes), value, known && x.MemBytes == slot})
	}
	if reg, ok := whole(x.Args[0]); ok {
		s.set(reg, value, known)
	} else if reg, ok := number(x.Args[0]); ok {
		s.regs.Clear(reg)
	}
	return true
}

func (s *state) set(reg int, value uint64, known bool) {
	if known {
		s.regs.Set(reg, value)
	} else {
		s.regs.Clear(reg)
	}
}

// value is the value of an operand of 64 bits.
func (s *state) value(mem Memory, x *instruction, a x86asm.Arg) (uint64, bool) {
	switch a := a.(type) {
	case x86asm.Imm:
		return uint64(int64(a)), true
	case x86asm.Mem:
		addr, ok := s.address(x, a)
		if !ok || x.MemBytes != slot {
			return 0, false
		}
		return s.word(mem, addr)
	}
	if reg, ok := whole(a); ok {
		return s.regs.Get(reg)
	}
	return 0, false
}

// address is the address of an operand in memory.
func (s *state) address(x *instruction, m x86asm.Mem) (uint64, bool) {
	if m.Segment != 0 && m.Segment != x86asm.SS && m.Segment != x86asm.DS || x.AddrSize != 64 {
		return 0, false
	}
	addr := uint64(m.Disp)
	if m.Base == x86asm.RIP {
		return addr + x.next, true
	}
	for _, part := range [...]struct {
		reg   x86asm.Reg
		times uint64
	}{{m.Base, 1}, {m.Index, uint64(m.Scale)}} {
		if part.reg == 0 {
			continue
		}
		reg, ok := whole(part.reg)
		v, known := s.regs.Get(reg)
		if !ok || !known {
			return 0, false
		}
		addr += v * part.times
	}
	return addr, true
}
