package selfnames

import "pg_stat_backtrace/unwind/disasm"

// Opcodes with effects that the sweep follows.
const (
	opLea        = 0x8d
	opMovLoad    = 0x8b // to the register in reg
	opMovStore   = 0x89 // to the operand in rm
	opMovImm     = 0xb8 // the first of eight, up to 0xbf; to the register in the opcode
	opMovOperand = 0xc7
	opCall       = 0xe8
	opJump       = 0xe9
	opJumpShort  = 0xeb
	opGroup5     = 0xff // calls and jumps through the operand, among others
)

// effectX86 decodes the x86-64 instruction at pc into e; see machine.decode.
func effectX86(p []byte, pc uint64, e *effect, writes bool) bool {
	if quickX86(p, pc, e, writes) {
		return true
	}
	var x instruction
	if !decodeX86(p, &x) {
		return false
	}
	x.effect(pc, e, writes)
	return true
}

// effect sets e to the effect of an instruction at pc. If writes is false, e.writes may be incomplete.
func (x *instruction) effect(pc uint64, e *effect, writes bool) {
	*e = effect{length: uint8(x.length)}
	if x.vector {
		if writes {
			e.writes = x.written()
		}
		return
	}
	next := pc + uint64(e.length)
	switch {
	case x.op == opCall:
		e.flow, e.target = disasm.Call, next+uint64(x.imm)
	case x.op == opJump || x.op == opJumpShort:
		e.flow, e.target = disasm.Jump, next+uint64(x.imm)
	case x.op&0xf0 == 0x70 && x.op < 0x100 || x.op&0xfff0 == 0x0f80 || x.op >= 0xe0 && x.op <= 0xe3:
		e.flow, e.target = disasm.Branch, next+uint64(x.imm)
	case x.op == 0xc3 || x.op == 0xc2:
		e.flow = disasm.Return
	case x.op == 0x0f0b || x.op == 0x0fff || x.op == 0x0fb9 || x.op == 0xcc || x.op == 0xf4: // ud2, ud0, ud1, int3, hlt
		e.flow = disasm.Ends
	case x.op == opGroup5 && x.reg&6 == 2:
		e.flow = disasm.Call
	case x.op == opGroup5 && x.reg&6 == 4:
		e.flow = disasm.Unknown
	default:
		x.moves(e, next, writes)
	}
	if x.op == opGroup5 && e.flow != disasm.Next && x.relative() {
		e.slot = next + uint64(int64(x.disp))
	}
}

// moves sets the effect of an instruction on registers. If writes is set, e.writes gets all registers that the
// instruction may write.
func (x *instruction) moves(e *effect, next uint64, writes bool) {
	switch {
	case x.op == opLea:
		e.rd, e.writes = x.reg, 1<<x.reg
		if x.relative() {
			e.set, e.value = true, next+uint64(int64(x.disp))
		}
	case x.op == opMovLoad && x.mod == 3:
		e.copied, e.rd, e.rn, e.writes = true, x.reg, x.rm, 1<<x.reg
	case x.op == opMovStore && x.mod == 3:
		e.copied, e.rd, e.rn, e.writes = true, x.rm, x.reg, 1<<x.rm
	case x.op&0xfff8 == opMovImm:
		e.set, e.rd, e.value, e.writes = true, x.rm, uint64(x.imm), 1<<x.rm
	case x.op == opMovOperand && x.mod == 3:
		e.set, e.rd, e.value, e.writes = true, x.rm, uint64(x.imm), 1<<x.rm
	case writes:
		e.writes = x.written()
	}
}

// written returns the registers that an instruction may write, bit n for register n. Except for pop, it considers only
// registers that ModRM names.
func (x *instruction) written() uint32 {
	if !x.modrm {
		if x.op >= 0x58 && x.op <= 0x5f { // pop
			return 1<<(x.op&7) | 1<<(x.op&7+8)
		}
		return 0
	}
	if !x.vector && (x.op >= 0x38 && x.op <= 0x3d || x.op == 0x84 || x.op == 0x85) { // cmp, test
		return 0
	}
	w := uint32(0)
	if x.mod == 3 {
		w = 1 << x.rm
	}
	store := !x.vector && x.op < 0x100 && (x.op < 0x40 && x.op&2 == 0 || x.op == 0x88 || x.op == opMovStore)
	group := !x.vector && (x.op&0xfc == 0x80 || x.op == 0xc6 || x.op == opMovOperand || x.op|1 == 0xf7 ||
		x.op|1 == 0xff || x.op|1 == 0xc1 || x.op&0xfffc == 0xd0)
	if !store && !group {
		w |= 1 << x.reg
	}
	return w
}
