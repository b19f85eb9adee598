package codeflow

import (
	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/disasm"
)

const slot = 8 // bytes that a push takes

// ofX86 is the machine for x86-64: a call pushes the return address.
//
//nolint:gochecknoglobals // a table
var ofX86 = machine{
	pc: rip, sp: rsp, link: none,
	scratch:   []int{rax, rdx, rcx, rsi, rdi, r8, r9, r10, r11}, // psABI, figure 3.4
	decode:    decodeX86,
	change:    changeX86,
	returnsTo: popsAddress,
}

// decodeX86 decodes an instruction.
func decodeX86(p []byte, addr uint64, out *instruction) error {
	x, err := disasm.DecodeX86(p)
	if err != nil {
		return err
	}
	out.x86 = x
	out.next = addr + uint64(x.Len)
	out.flow, out.to = flowX86(&x, out.next)
	return nil
}

// popsAddress is a machine.returnsTo. The return address is on top of the stack, also after a jump to the beginning of
// another function.
func popsAddress(_ *machine, s *state, mem Memory, x *instruction) (ra, sp uint64, ok bool) {
	sp, _ = s.regs.Get(rsp)
	if ra, ok = s.word(mem, sp); !ok {
		return 0, 0, false
	}
	sp += slot
	if extra, has := x.x86.Args[0].(x86asm.Imm); has && x.flow == returns {
		sp += uint64(extra)
	}
	return ra, sp, true
}

// flowX86 returns the control flow of an instruction. to is the target of a jump or a call, 0 if unknown.
func flowX86(x *x86asm.Inst, next uint64) (f flow, to uint64) {
	target, relative := x.Args[0].(x86asm.Rel)
	if relative {
		to = next + uint64(int64(target))
	}
	switch x.Op {
	case x86asm.JMP:
		if relative {
			return jump, to
		}
		// If the jump reads its target from a fixed address, the target is a function. If the address is indexed, or
		// the target is in a register, the target may be in a jump table of this function.
		if m, ok := x.Args[0].(x86asm.Mem); ok && m.Base == x86asm.RIP && m.Index == 0 {
			return away, 0
		}
		return lost, 0
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

// changeX86 is the machine.change of x86-64.
func changeX86(s *state, mem Memory, at *instruction) bool {
	x := x86Instruction{&at.x86, at.next}
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
	if x.Op == x86asm.XCHG || x.Op == x86asm.XADD || x.Op == x86asm.CMPXCHG || x.Op == disasm.OtherX86 {
		if reg, ok := number(x.Args[1]); ok {
			s.regs.Clear(reg)
		}
	}
	return s.assign(x, 0, false)
}

// x86Instruction is an instruction, and the address of the next instruction.
type x86Instruction struct {
	*x86asm.Inst

	next uint64
}

func (s *state) push(mem Memory, x x86Instruction) bool {
	sp, _ := s.regs.Get(rsp)
	value, known := s.value(mem, x, x.Args[0])
	s.regs.Set(rsp, sp-slot)
	return s.write(store{sp - slot, slot, value, known})
}

func (s *state) pop(mem Memory, x x86Instruction) bool {
	sp, _ := s.regs.Get(rsp)
	value, known := s.word(mem, sp)
	s.regs.Set(rsp, sp+slot)
	if reg, ok := number(x.Args[0]); ok {
		s.set(reg, value, known)
		return true
	}
	return s.assign(x, value, known)
}

// result returns the value that an instruction writes to its first operand. The boolean result is false if the value is
// unknown.
func (s *state) result(mem Memory, x x86Instruction) (uint64, bool) {
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

// assign sets an instruction's first operand to a value. The result is false if the state has more than maxStores
// writes.
func (s *state) assign(x x86Instruction, value uint64, known bool) bool {
	if m, ok := x.Args[0].(x86asm.Mem); ok && x.MemBytes > 0 {
		addr, found := s.address(x, m)
		// By assumption, a store through an unknown pointer does not change this frame.
		return !found || s.write(store{addr, uint64(x.MemBytes), value, known && x.MemBytes == slot})
	}
	if reg, ok := whole(x.Args[0]); ok {
		s.set(reg, value, known)
	} else if reg, ok := number(x.Args[0]); ok {
		s.regs.Clear(reg)
	}
	return true
}

// value returns the value of a 64-bit operand. The result is false if it is unknown.
func (s *state) value(mem Memory, x x86Instruction, a x86asm.Arg) (uint64, bool) {
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

// address returns the address of an operand in memory. The result is false if it is unknown.
func (s *state) address(x x86Instruction, m x86asm.Mem) (uint64, bool) {
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
