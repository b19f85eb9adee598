// Package s390x decodes z/Architecture instructions for an unwinder, see package disasm. It follows the
// z/Architecture Principles of Operation (SA22-7832), appendix B, "Lists of Instructions". The input is bytes. The
// package does not depend on processes or images.
//
// The architecture has some thousand instructions. The decoder describes branches, and the instructions that create
// and remove frames, exactly. For other instructions it lists the registers that they may write. This list can be too
// long.
package s390x

import (
	"encoding/binary"
	"fmt"

	"pg_stat_backtrace/unwind/disasm"
)

// Longest is the length of the longest instruction in bytes.
const Longest = 6

// Numbers of registers that the ABI names. Floating point registers have the numbers of package arch, from 16 on.
// Leaf functions save general registers there.
const (
	RA = 14 // where a call leaves its return address
	SP = 15
)

// general and floating are the registers as bits of disasm.Instruction.Writes.
const (
	general  = 0x0000ffff
	floating = 0xffff0000
)

// Decode decodes the instruction at the beginning of p, which may hold more. The error is an disasm.ErrCode.
func Decode(p []byte) (disasm.Instruction, error) {
	length := uint64(Longest)
	if len(p) > 0 {
		length = [4]uint64{2, 4, 4, 6}[p[0]>>6]
	}
	if uint64(len(p)) < length {
		return disasm.Instruction{}, fmt.Errorf("%w: it ends within an instruction", disasm.ErrCode)
	}
	var padded [8]byte
	copy(padded[:], p[:length])
	w := word(binary.BigEndian.Uint64(padded[:]))
	x := instruction{disasm.New(length)}
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
		return disasm.Instruction{}, fmt.Errorf("%w: %x", disasm.ErrCode, p[:length])
	}
	return x.Instruction, nil
}

// instruction is the instruction being decoded.
type instruction struct{ disasm.Instruction }

// word is an encoded instruction, its first byte highest. Bits are numbered as the manual does, from the left.
type word uint64

// bits returns count bits from bit from on.
func (w word) bits(from, count uint) uint64 { return uint64(w) << from >> (64 - count) }

// signed returns count bits from bit from on, with their sign.
func (w word) signed(from, count uint) int64 { return int64(uint64(w)<<from) >> (64 - count) }

// reg returns the register in four bits from bit from on.
func (w word) reg(from uint) int { return int(w.bits(from, 4)) }

// The fields that most formats have.
func (w word) r1() int         { return w.reg(8) }
func (w word) r2() int         { return w.reg(12) } // R2 of two bytes, R3, X2
func (w word) op() uint64      { return w.bits(0, 8) }
func (w word) disp12() int64   { return int64(w.bits(20, 12)) }
func (w word) disp20() int64   { return w.signed(32, 8)<<12 | int64(w.bits(20, 12)) }
func (w word) target16() int64 { return 2 * w.signed(16, 16) }
func (w word) target32() int64 { return 2 * w.signed(16, 32) }

// writes notes registers that may be written.
func (x *instruction) writes(regs ...int) bool {
	for _, reg := range regs {
		x.Write(reg & 15)
	}
	return true
}

// pair records that a register and the next one are written.
func (x *instruction) pair(reg int) bool { return x.writes(reg, reg|1) }

// vector notes that floating point registers may be written.
func (x *instruction) vector() bool {
	x.Writes |= floating
	return true
}

// add records that a register becomes the sum of another register and a number.
func (x *instruction) add(rd, rn int, imm int64) bool {
	x.Op, x.Rd, x.Rn, x.Imm = disasm.Add, rd, rn, uint64(imm)
	x.Write(rd)
	return true
}

// set notes that a register becomes a number.
func (x *instruction) set(rd int, imm int64) bool {
	x.Op, x.Rd, x.Imm = disasm.Set, rd, uint64(imm)
	x.Write(rd)
	return true
}

// sum notes the sum or the difference of two registers.
func (x *instruction) sum(op disasm.Op, rd, rn, rm int) bool {
	x.Op, x.Rd, x.Rn, x.Rm = op, rd, rn, rm
	x.Write(rd)
	return true
}

// base returns a base or index register; 0 means none.
func base(reg int) int {
	if reg == 0 {
		return disasm.None
	}
	return reg
}

// place records a memory access, for formats with an index register, or without one (0).
func (x *instruction) place(index, reg int, disp int64, size uint64) {
	if index != 0 && reg == 0 {
		index, reg = 0, index
	}
	x.Access.Size, x.Access.Base, x.Access.Disp = size, base(reg), disp
	x.Access.Known = index == 0 && reg != 0
}

// load notes that registers are loaded from there, as a whole if there are some.
func (x *instruction) load(whole ...int) bool {
	x.Access.Load = true
	x.move(whole)
	return x.writes(whole...)
}

// store notes that memory is written there: registers, or something else.
func (x *instruction) store(whole ...int) bool {
	x.Access.Store = true
	x.move(whole)
	return true
}

func (x *instruction) move(whole []int) {
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
func (x *instruction) branch(mask uint64, target int64) bool {
	switch mask {
	case 0:
		return true
	case 15:
		x.Flow = disasm.Jump
	default:
		x.Flow = disasm.Branch
	}
	return x.To(target)
}

// branchTo records a branch to the address in a register. A conditional return counts as a return, because the code
// behind it returns to the same caller.
func (x *instruction) branchTo(mask uint64, reg int) bool {
	switch {
	case mask == 0 || reg == 0:
		return true
	case reg == RA:
		x.Flow = disasm.Return
	default:
		x.Flow = disasm.Unknown
	}
	x.Rn = reg
	return true
}

// call records a call. If the call leaves the return address in another register than RA, its flow is unknown.
func (x *instruction) call(link int) bool {
	x.Flow = disasm.Call
	if link != RA {
		x.Flow = disasm.Unknown
	}
	return x.writes(link)
}

// away notes a way that is not followed.
func (x *instruction) away() bool {
	x.Flow = disasm.Unknown
	return true
}
