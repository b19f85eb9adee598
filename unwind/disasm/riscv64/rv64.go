// Package riscv64 decodes RV64 instructions for an unwinder, see package disasm. It follows the RISC-V Instruction
// Set Manual, volume I, chapter "RV32/64G Instruction Set Listings". It also follows the chapters on extensions:
// compressed instructions, atomic operations, floating point, bits and vectors. The input is bytes. The package does
// not depend on processes or images.
package riscv64

import (
	"encoding/binary"
	"fmt"

	"pg_stat_backtrace/unwind/disasm"
)

// Longest is the length of the longest instruction in bytes.
const Longest = 4

// Numbers of registers that the ABI names.
const (
	Zero = 0 // always zero
	RA   = 1 // where a call leaves its return address
	SP   = 2
	a0   = 10
)

// Decode decodes the instruction at the beginning of p, which may hold more. The error is an disasm.ErrCode.
func Decode(p []byte) (disasm.Instruction, error) {
	if len(p) < 2 {
		return disasm.Instruction{}, fmt.Errorf("%w: it ends within an instruction", disasm.ErrCode)
	}
	if half := word(binary.LittleEndian.Uint16(p)); half&3 != 3 {
		x := instruction{disasm.New(2)}
		if !x.compressed(half) {
			return disasm.Instruction{}, fmt.Errorf("%w: %#04x", disasm.ErrCode, uint32(half))
		}
		return x.Instruction, nil
	}
	if len(p) < Longest {
		return disasm.Instruction{}, fmt.Errorf("%w: it ends within an instruction", disasm.ErrCode)
	}
	w := word(binary.LittleEndian.Uint32(p))
	x := instruction{disasm.New(Longest)}
	if !x.decode(w) {
		return disasm.Instruction{}, fmt.Errorf("%w: %#08x", disasm.ErrCode, uint32(w))
	}
	return x.Instruction, nil
}

// instruction is the instruction being decoded.
type instruction struct{ disasm.Instruction }

// word is an encoded instruction.
type word uint32

// bits returns count bits from bit low on.
func (w word) bits(low, count uint) uint32 { return uint32(w) >> low & (1<<count - 1) }

// signed returns count bits from bit low on, with their sign.
func (w word) signed(low, count uint) int64 {
	return int64(uint64(w)<<(64-low-count)) >> (64 - count)
}

// reg returns the register in five bits from bit low on.
func (w word) reg(low uint) int { return register(w.bits(low, 5)) }

func register(n uint32) int {
	if n == Zero {
		return disasm.None
	}
	return int(n)
}

// The formats' fields.
func (w word) rd() int      { return w.reg(7) }
func (w word) rs1() int     { return w.reg(15) }
func (w word) rs2() int     { return w.reg(20) }
func (w word) kind() uint32 { return w.bits(12, 3) } // funct3
func (w word) immI() int64  { return w.signed(20, 12) }
func (w word) immS() int64  { return w.signed(25, 7)<<5 | int64(w.bits(7, 5)) }

func (w word) immB() int64 {
	return w.signed(31, 1)<<12 | int64(w.bits(7, 1)<<11|w.bits(25, 6)<<5|w.bits(8, 4)<<1)
}

func (w word) immJ() int64 {
	return w.signed(31, 1)<<20 | int64(w.bits(12, 8)<<12|w.bits(20, 1)<<11|w.bits(21, 10)<<1)
}

// decode decodes an instruction of 32 bits by its major opcode.
func (x *instruction) decode(w word) bool {
	switch w.bits(2, 5) {
	case 0b00000:
		return x.load(w)
	case 0b00001, 0b01001: // floating point and vectors
		return x.floating(w)
	case 0b00011: // FENCE, and cache operations
	case 0b00100:
		x.immediate(w)
	case 0b00101: // AUIPC
		if x.set(w.rd(), disasm.None, w.signed(12, 20)<<12); x.Rd != disasm.None {
			x.Op = disasm.Here
		}
	case 0b01000:
		return x.store(w)
	case 0b01011:
		x.atomic(w)
	case 0b01100:
		x.register(w)
	case 0b01101: // LUI
		x.set(w.rd(), disasm.None, w.signed(12, 20)<<12)
	case 0b00110, 0b01110: // of 32 bits
		x.Write(w.rd())
	case 0b10000, 0b10001, 0b10010, 0b10011: // FMADD and similar
	case 0b10100:
		x.calculate(w)
	case 0b10101:
		x.vector(w)
	case 0b11000:
		x.Flow = disasm.Branch
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
func (x *instruction) set(rd, rn int, imm int64) {
	if rd == disasm.None {
		return
	}
	x.Op, x.Rd, x.Rn, x.Imm = disasm.Add, rd, rn, uint64(imm)
	if rn == disasm.None {
		x.Op = disasm.Set
	}
	x.Write(rd)
}

// load decodes LB to LWU; LD loads a register as a whole.
func (x *instruction) load(w word) bool {
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
func (x *instruction) access(base int, disp int64, size uint64) {
	x.Access.Base, x.Access.Disp, x.Access.Size, x.Access.Known = base, disp, size, base != disasm.None
}

// moved notes the register that an access moves.
func (x *instruction) moved(reg int) {
	if x.Access.Size == 8 {
		x.Access.Whole[0], x.Access.Count = reg, 1
	}
}

func (x *instruction) store(w word) bool {
	if w.kind() > 3 {
		return false
	}
	x.access(w.rs1(), w.immS(), 1<<w.kind())
	x.Access.Store = true
	x.moved(w.rs2())
	return true
}

// floating decodes loads and stores of floating point registers and of vectors. The length of vectors is unknown.
func (x *instruction) floating(w word) bool {
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
func (x *instruction) atomic(w word) {
	x.access(w.rs1(), 0, 1<<w.kind())
	x.Access.Load, x.Access.Store = true, true
	x.Write(w.rd())
	if w.bits(27, 5) == 0b00101 && w.kind() == 4 && w.rd() != disasm.None {
		x.Write(w.rd() | 1)
	}
}

// immediate decodes ADDI and similar instructions.
func (x *instruction) immediate(w word) {
	x.Write(w.rd())
	switch w.kind() {
	case 0: // ADDI
		x.set(w.rd(), w.rs1(), w.immI())
	case 7: // ANDI
		if w.rs1() != disasm.None && w.rd() != disasm.None {
			x.Op, x.Rd, x.Rn, x.Imm = disasm.And, w.rd(), w.rs1(), uint64(w.immI())
		}
	}
}

// register decodes ADD and similar instructions.
func (x *instruction) register(w word) {
	x.Write(w.rd())
	if w.kind() != 0 || w.bits(25, 7)&^0x20 != 0 {
		return
	}
	x.sum(w.rd(), w.rs1(), w.rs2(), w.bits(30, 1) != 0)
}

// sum notes the sum or the difference of two registers.
func (x *instruction) sum(rd, rn, rm int, less bool) {
	x.Write(rd)
	switch {
	case rd == disasm.None:
	case rm == disasm.None:
		x.set(rd, rn, 0)
	case less && rn != disasm.None:
		x.Op, x.Rd, x.Rn, x.Rm = disasm.SubRegister, rd, rn, rm
	case less:
	case rn == disasm.None:
		x.set(rd, rm, 0)
	default:
		x.Op, x.Rd, x.Rn, x.Rm = disasm.AddRegister, rd, rn, rm
	}
}

// calculate decodes floating point instructions, of which comparisons, conversions to integers and moves from there
// write general registers.
func (x *instruction) calculate(w word) {
	switch w.bits(27, 5) {
	case 0b10100, 0b11000, 0b11100:
		x.Write(w.rd())
	}
}

// vector decodes vector instructions. VSETVL and the instructions on one element write general registers.
func (x *instruction) vector(w word) {
	const configure, integer, single = 7, 2, 0b010000
	if w.kind() == configure || w.kind() == integer && w.bits(26, 6) == single {
		x.Write(w.rd())
	}
}

// jump decodes JAL. With another register for the return address it is part of a function's entry code.
func (x *instruction) jump(rd int, target int64) bool {
	switch rd {
	case disasm.None:
		x.Flow = disasm.Jump
	case RA:
		x.Flow = disasm.Call
	default:
		x.Flow = disasm.Unknown
	}
	x.Write(rd)
	return x.To(target)
}

// jumpTo decodes JALR: to RA it is a return.
func (x *instruction) jumpTo(rd, rn int, disp int64) bool {
	x.Write(rd)
	x.Rn = rn
	switch {
	case rd == RA:
		x.Flow = disasm.Call
	case rd == disasm.None && rn == RA && disp == 0:
		x.Flow = disasm.Return
	default:
		x.Flow = disasm.Unknown
	}
	return true
}

// system decodes ECALL, EBREAK, and accesses to control registers. Linux resumes behind ECALL with the result in a0.
func (x *instruction) system(w word) bool {
	switch {
	case w == 0x00000073:
		x.Write(a0)
	case w == 0x00100073:
		x.Flow = disasm.Ends
	case w.kind() == 0: // to wait for a reservation (Zawrs); the others are a kernel's
		return w == 0x00d00073 || w == 0x01d00073
	default:
		x.Write(w.rd())
	}
	return true
}
