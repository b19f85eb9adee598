// Package aarch64 decodes A64 instructions for an unwinder, see package disasm. It follows the Arm Architecture
// Reference Manual (DDI 0487), chapter C4, "A64 Instruction Set Encoding". The input is words. The package does not
// depend on processes or images.
package aarch64

import (
	"encoding/binary"
	"fmt"

	"pg_stat_backtrace/unwind/disasm"
)

// Length is the length of every instruction in bytes.
const Length = 4

// Numbers of registers that the architecture names; X0 to X30 have their own numbers.
const (
	FP = 29 // the frame pointer of the ABI
	LR = 30 // where a call leaves its return address
	SP = 31
)

// Decode decodes the instruction at the beginning of p, which may hold more. The error is an disasm.ErrCode.
func Decode(p []byte) (disasm.Instruction, error) {
	if len(p) < Length {
		return disasm.Instruction{}, fmt.Errorf("%w: it ends within an instruction", disasm.ErrCode)
	}
	w := word(binary.LittleEndian.Uint32(p))
	x := instruction{disasm.New(Length)}
	ok := false
	switch w.bits(25, 4) { // op0 of C4.1
	case 0b0000:
		ok = x.reserved(w)
	case 0b1000, 0b1001:
		ok = x.immediate(w)
	case 0b1010, 0b1011:
		ok = x.branch(w)
	case 0b0100, 0b0110, 0b1100, 0b1110:
		ok = x.memory(w)
	case 0b0101, 0b1101:
		ok = x.register(w)
	case 0b0111, 0b1111:
		ok = x.vector(w)
	}
	if !ok {
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

func (w word) bit(n uint) bool { return w>>n&1 != 0 }

// signed returns count bits from bit low on, with their sign.
func (w word) signed(low, count uint) int64 {
	return int64(uint64(w)<<(64-low-count)) >> (64 - count)
}

// is reports whether the bits in mask equal the bits of value.
func (w word) is(mask, value uint32) bool { return uint32(w)&mask == value }

// reg returns the general register in five bits from bit low on, where 31 is the zero register.
func (w word) reg(low uint) int {
	if r := int(w.bits(low, 5)); r != 31 {
		return r
	}
	return disasm.None
}

// regSP is reg, except that 31 is SP.
func (w word) regSP(low uint) int { return int(w.bits(low, 5)) }

// reserved decodes op0 0000: UDF, and the Scalable Matrix Extension, which is not supported.
func (x *instruction) reserved(w word) bool {
	x.Flow = disasm.Ends
	return w.is(0xffff0000, 0)
}
