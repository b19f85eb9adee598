package disasm

import (
	"encoding/binary"
	"fmt"
)

// LongestRV64 is the length of the longest instruction in bytes.
const LongestRV64 = 4

// Numbers of registers that the ABI names.
const (
	Zero   = 0 // always zero
	RV64RA = 1 // where a call leaves its return address
	RV64SP = 2
	a0     = 10
)

// DecodeRV64 decodes the instruction at the beginning of p, which may hold more. The error is an disasm.ErrCode.
func DecodeRV64(p []byte) (Instruction, error) {
	if len(p) < 2 {
		return Instruction{}, fmt.Errorf("%w: it ends within an instruction", ErrCode)
	}
	if half := rvWord(binary.LittleEndian.Uint16(p)); half&3 != 3 {
		x := rvInstruction{New(2)}
		if !x.compressed(half) {
			return Instruction{}, fmt.Errorf("%w: %#04x", ErrCode, uint32(half))
		}
		return x.Instruction, nil
	}
	if len(p) < LongestRV64 {
		return Instruction{}, fmt.Errorf("%w: it ends within an instruction", ErrCode)
	}
	w := rvWord(binary.LittleEndian.Uint32(p))
	x := rvInstruction{New(LongestRV64)}
	if !x.decode(w) {
		return Instruction{}, fmt.Errorf("%w: %#08x", ErrCode, uint32(w))
	}
	return x.Instruction, nil
}

// rvInstruction is the instruction being decoded.
type rvInstruction struct{ Instruction }

// rvWord is an encoded instruction.
type rvWord uint32

// bits returns count bits from bit low on.
func (w rvWord) bits(low, count uint) uint32 { return uint32(w) >> low & (1<<count - 1) }

// signed returns count bits from bit low on, with their sign.
func (w rvWord) signed(low, count uint) int64 {
	return int64(uint64(w)<<(64-low-count)) >> (64 - count)
}

// reg returns the register in five bits from bit low on.
func (w rvWord) reg(low uint) int { return rvRegister(w.bits(low, 5)) }

func rvRegister(n uint32) int {
	if n == Zero {
		return None
	}
	return int(n)
}

// The formats' fields.
func (w rvWord) rd() int      { return w.reg(7) }
func (w rvWord) rs1() int     { return w.reg(15) }
func (w rvWord) rs2() int     { return w.reg(20) }
func (w rvWord) kind() uint32 { return w.bits(12, 3) } // funct3
func (w rvWord) immI() int64  { return w.signed(20, 12) }
func (w rvWord) immS() int64  { return w.signed(25, 7)<<5 | int64(w.bits(7, 5)) }

func (w rvWord) immB() int64 {
	return w.signed(31, 1)<<12 | int64(w.bits(7, 1)<<11|w.bits(25, 6)<<5|w.bits(8, 4)<<1)
}

func (w rvWord) immJ() int64 {
	return w.signed(31, 1)<<20 | int64(w.bits(12, 8)<<12|w.bits(20, 1)<<11|w.bits(21, 10)<<1)
}

// decode decodes an instruction of 32 bits by its major opcode.
func (x *rvInstruction) decode(w rvWord) bool {
	switch w.bits(2, 5) {
	case 0b00000:
		return x.load(w)
	case 0b00001, 0b01001: // floating point and vectors
		return x.floating(w)
	case 0b00011: // FENCE, and cache operations
	case 0b00100:
		x.immediate(w)
	case 0b00101: // AUIPC
		if x.set(w.rd(), None, w.signed(12, 20)<<12); x.Rd != None {
			x.Op = Here
		}
	case 0b01000:
		return x.store(w)
	case 0b01011:
		x.atomic(w)
	case 0b01100:
		x.register(w)
	case 0b01101: // LUI
		x.set(w.rd(), None, w.signed(12, 20)<<12)
	case 0b00110, 0b01110: // of 32 bits
		x.Write(w.rd())
	case 0b10000, 0b10001, 0b10010, 0b10011: // FMADD and similar
	case 0b10100:
		x.calculate(w)
	case 0b10101:
		x.vector(w)
	case 0b11000:
		x.Flow = Branch
		return w.kind()&6 != 2 && x.To(w.immB())
	case 0b11001:
		return w.kind() == 0 && x.jumpTo(w.rd(), w.rs1(), w.immI())
	case 0b11011:
		return x.jump(w.rd(), w.immJ())
	case 0b11100:
		return x.system(w)
	case 0b11101: // of vectors alone
	default:
		return false
	}
	return true
}

// set records that a register becomes the sum of another register and a number, or only the number for disasm.None.
func (x *rvInstruction) set(rd, rn int, imm int64) {
	if rd == None {
		return
	}
	x.Op, x.Rd, x.Rn, x.Imm = Add, rd, rn, uint64(imm)
	if rn == None {
		x.Op = Set
	}
	x.Write(rd)
}

// load decodes LB to LWU; LD loads a register as a whole.
func (x *rvInstruction) load(w rvWord) bool {
	if w.kind() == 7 {
		return false
	}
	x.access(w.rs1(), w.immI(), 1<<(w.kind()&3))
	x.Access.Load = true
	x.moved(w.rd())
	x.Write(w.rd())
	return true
}

// access notes an access to memory.
func (x *rvInstruction) access(base int, disp int64, size uint64) {
	x.Access.Base, x.Access.Disp, x.Access.Size, x.Access.Known = base, disp, size, base != None
}

// moved notes the register that an access moves.
func (x *rvInstruction) moved(reg int) {
	if x.Access.Size == 8 {
		x.Access.Whole[0], x.Access.Count = reg, 1
	}
}

func (x *rvInstruction) store(w rvWord) bool {
	if w.kind() > 3 {
		return false
	}
	x.access(w.rs1(), w.immS(), 1<<w.kind())
	x.Access.Store = true
	x.moved(w.rs2())
	return true
}

// floating decodes loads and stores of floating point registers and of vectors. The length of vectors is unknown.
func (x *rvInstruction) floating(w rvWord) bool {
	store := w.bits(5, 1) != 0
	x.Access.Load, x.Access.Store = !store, store
	if w.kind() == 0 || w.kind() > 4 {
		x.access(w.rs1(), 0, 1)
		x.Access.Known = false
		return true
	}
	disp := w.immI()
	if store {
		disp = w.immS()
	}
	x.access(w.rs1(), disp, 1<<w.kind())
	return true
}

// atomic decodes LR, SC and the AMOs; AMOCAS.Q has a pair of registers.
func (x *rvInstruction) atomic(w rvWord) {
	x.access(w.rs1(), 0, 1<<w.kind())
	x.Access.Load, x.Access.Store = true, true
	x.Write(w.rd())
	if w.bits(27, 5) == 0b00101 && w.kind() == 4 && w.rd() != None {
		x.Write(w.rd() | 1)
	}
}

// immediate decodes ADDI and similar instructions.
func (x *rvInstruction) immediate(w rvWord) {
	x.Write(w.rd())
	switch w.kind() {
	case 0: // ADDI
		x.set(w.rd(), w.rs1(), w.immI())
	case 7: // ANDI
		if w.rs1() != None && w.rd() != None {
			x.Op, x.Rd, x.Rn, x.Imm = And, w.rd(), w.rs1(), uint64(w.immI())
		}
	}
}

// rvRegister decodes ADD and similar instructions.
func (x *rvInstruction) register(w rvWord) {
	x.Write(w.rd())
	if w.kind() != 0 || w.bits(25, 7)&^0x20 != 0 {
		return
	}
	x.sum(w.rd(), w.rs1(), w.rs2(), w.bits(30, 1) != 0)
}

// sum notes the sum or the difference of two registers.
func (x *rvInstruction) sum(rd, rn, rm int, less bool) {
	x.Write(rd)
	switch {
	case rd == None:
	case rm == None:
		x.set(rd, rn, 0)
	case less && rn != None:
		x.Op, x.Rd, x.Rn, x.Rm = SubRegister, rd, rn, rm
	case less:
	case rn == None:
		x.set(rd, rm, 0)
	default:
		x.Op, x.Rd, x.Rn, x.Rm = AddRegister, rd, rn, rm
	}
}

// calculate decodes floating point instructions, of which comparisons, conversions to integers and moves from there
// write general registers.
func (x *rvInstruction) calculate(w rvWord) {
	switch w.bits(27, 5) {
	case 0b10100, 0b11000, 0b11100:
		x.Write(w.rd())
	}
}

// vector decodes vector instructions. VSETVL and the instructions on one element write general registers.
func (x *rvInstruction) vector(w rvWord) {
	const configure, integer, single = 7, 2, 0b010000
	if w.kind() == configure || w.kind() == integer && w.bits(26, 6) == single {
		x.Write(w.rd())
	}
}

// jump decodes JAL. With another register for the return address it is part of a function's entry code.
func (x *rvInstruction) jump(rd int, target int64) bool {
	switch rd {
	case None:
		x.Flow = Jump
	case RV64RA:
		x.Flow = Call
	default:
		x.Flow = Unknown
	}
	x.Write(rd)
	return x.To(target)
}

// jumpTo decodes JALR: to RA it is a return.
func (x *rvInstruction) jumpTo(rd, rn int, disp int64) bool {
	x.Write(rd)
	x.Rn = rn
	switch {
	case rd == RV64RA:
		x.Flow = Call
	case rd == None && rn == RV64RA && disp == 0:
		x.Flow = Return
	default:
		x.Flow = Unknown
	}
	return true
}

// system decodes ECALL, EBREAK, and accesses to control registers. Linux resumes behind ECALL with the result in a0.
func (x *rvInstruction) system(w rvWord) bool {
	switch {
	case w == 0x00000073:
		x.Write(a0)
	case w == 0x00100073:
		x.Flow = Ends
	case w.kind() == 0: // to wait for a reservation (Zawrs); the others are a kernel's
		return w == 0x00d00073 || w == 0x01d00073
	default:
		x.Write(w.rd())
	}
	return true
}
