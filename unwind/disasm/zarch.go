package disasm

import (
	"encoding/binary"
	"fmt"
)

// LongestZArch is the length of the longest instruction in bytes.
const LongestZArch = 6

// Numbers of registers that the ABI names. Floating point registers have the numbers of package arch, from 16 on.
// Leaf functions save general registers there.
const (
	ZArchRA = 14 // where a call leaves its return address
	ZArchSP = 15
)

// zGeneral and floating are the registers as bits of disasm.Instruction.Writes.
const (
	zGeneral = 0x0000ffff
	floating = 0xffff0000
)

// DecodeZArch decodes the instruction at the beginning of p, which may hold more. The error is an disasm.ErrCode.
func DecodeZArch(p []byte) (Instruction, error) {
	length := uint64(LongestZArch)
	if len(p) > 0 {
		length = [4]uint64{2, 4, 4, 6}[p[0]>>6]
	}
	if uint64(len(p)) < length {
		return Instruction{}, fmt.Errorf("%w: it ends within an instruction", ErrCode)
	}
	var padded [8]byte
	copy(padded[:], p[:length])
	w := zWord(binary.BigEndian.Uint64(padded[:]))
	x := zInstruction{New(length)}
	var ok bool
	switch length {
	case 2:
		ok = x.two(w)
	case 4:
		ok = x.four(w)
	default:
		ok = x.six(w)
	}
	if !ok {
		return Instruction{}, fmt.Errorf("%w: %x", ErrCode, p[:length])
	}
	return x.Instruction, nil
}

// zInstruction is the instruction being decoded.
type zInstruction struct{ Instruction }

// zWord is an encoded instruction, its first byte highest. Bits are numbered as the manual does, from the left.
type zWord uint64

// bits returns count bits from bit from on.
func (w zWord) bits(from, count uint) uint64 { return uint64(w) << from >> (64 - count) }

// signed returns count bits from bit from on, with their sign.
func (w zWord) signed(from, count uint) int64 { return int64(uint64(w)<<from) >> (64 - count) }

// reg returns the register in four bits from bit from on.
func (w zWord) reg(from uint) int { return int(w.bits(from, 4)) }

// The fields that most formats have.
func (w zWord) r1() int         { return w.reg(8) }
func (w zWord) r2() int         { return w.reg(12) } // R2 of two bytes, R3, X2
func (w zWord) op() uint64      { return w.bits(0, 8) }
func (w zWord) disp12() int64   { return int64(w.bits(20, 12)) }
func (w zWord) disp20() int64   { return w.signed(32, 8)<<12 | int64(w.bits(20, 12)) }
func (w zWord) target16() int64 { return 2 * w.signed(16, 16) }
func (w zWord) target32() int64 { return 2 * w.signed(16, 32) }

// writes notes registers that may be written.
func (x *zInstruction) writes(regs ...int) bool {
	for _, reg := range regs {
		x.Write(reg & 15)
	}
	return true
}

// pair records that a register and the next one are written.
func (x *zInstruction) pair(reg int) bool { return x.writes(reg, reg|1) }

// vector notes that floating point registers may be written.
func (x *zInstruction) vector() bool {
	x.Writes |= floating
	return true
}

// add records that a register becomes the sum of another register and a number.
func (x *zInstruction) add(rd, rn int, imm int64) bool {
	x.Op, x.Rd, x.Rn, x.Imm = Add, rd, rn, uint64(imm)
	x.Write(rd)
	return true
}

// set notes that a register becomes a number.
func (x *zInstruction) set(rd int, imm int64) bool {
	x.Op, x.Rd, x.Imm = Set, rd, uint64(imm)
	x.Write(rd)
	return true
}

// sum notes the sum or the difference of two registers.
func (x *zInstruction) sum(op Op, rd, rn, rm int) bool {
	x.Op, x.Rd, x.Rn, x.Rm = op, rd, rn, rm
	x.Write(rd)
	return true
}

// base returns a base or index register; 0 means none.
func base(reg int) int {
	if reg == 0 {
		return None
	}
	return reg
}

// place records a memory access, for formats with an index register, or without one (0).
func (x *zInstruction) place(index, reg int, disp int64, size uint64) {
	if index != 0 && reg == 0 {
		index, reg = 0, index
	}
	x.Access.Size, x.Access.Base, x.Access.Disp = size, base(reg), disp
	x.Access.Known = index == 0 && reg != 0
}

// load notes that registers are loaded from there, as a whole if there are some.
func (x *zInstruction) load(whole ...int) bool {
	x.Access.Load = true
	x.move(whole)
	return x.writes(whole...)
}

// store notes that memory is written there: registers, or something else.
func (x *zInstruction) store(whole ...int) bool {
	x.Access.Store = true
	x.move(whole)
	return true
}

func (x *zInstruction) move(whole []int) {
	x.Access.Count = copy(x.Access.Whole[:], whole)
}

// through are the registers from one to another, behind 15 comes 0.
func through(from, to int) []int {
	all := []int{from}
	for from != to {
		from = (from + 1) & 15
		all = append(all, from)
	}
	return all
}

// branch notes a branch that is taken on a condition: never, always, or sometimes.
func (x *zInstruction) branch(mask uint64, target int64) bool {
	switch mask {
	case 0:
		return true
	case 15:
		x.Flow = Jump
	default:
		x.Flow = Branch
	}
	return x.To(target)
}

// branchTo records a branch to the address in a register. A conditional return counts as a return, because the code
// behind it returns to the same caller.
func (x *zInstruction) branchTo(mask uint64, reg int) bool {
	switch {
	case mask == 0 || reg == 0:
		return true
	case reg == ZArchRA:
		x.Flow = Return
	default:
		x.Flow = Unknown
	}
	x.Rn = reg
	return true
}

// call records a call. If the call leaves the return address in another register than RA, its flow is unknown.
func (x *zInstruction) call(link int) bool {
	x.Flow = Call
	if link != ZArchRA {
		x.Flow = Unknown
	}
	return x.writes(link)
}

// away notes a way that is not followed.
func (x *zInstruction) away() bool {
	x.Flow = Unknown
	return true
}
