package disasm

import (
	"encoding/binary"
	"fmt"
)

// LengthA64 is the length of every aarch64 instruction in bytes.
const LengthA64 = 4

// Numbers of special registers; X0 to X30 have their own numbers.
const (
	A64FP = 29 // the frame pointer of the ABI
	A64LR = 30 // a call stores its return address here
	A64SP = 31
)

// DecodeA64 decodes the instruction at the beginning of p, which may contain more bytes. The error is ErrCode.
func DecodeA64(p []byte) (Instruction, error) {
	if len(p) < LengthA64 {
		return Instruction{}, fmt.Errorf("%w: it ends within an instruction", ErrCode)
	}
	w := a64Word(binary.LittleEndian.Uint32(p))
	x := a64Instruction{New(LengthA64)}
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
		return Instruction{}, fmt.Errorf("%w: %#08x", ErrCode, uint32(w))
	}
	return x.Instruction, nil
}

// a64Instruction is the instruction under construction, with the methods that decode it.
type a64Instruction struct{ Instruction }

// a64Word is an encoded instruction.
type a64Word uint32

// bits returns a part of the word: count bits, the lowest of which is bit number low.
func (w a64Word) bits(low, count uint) uint32 { return uint32(w) >> low & (1<<count - 1) }

func (w a64Word) bit(n uint) bool { return w>>n&1 != 0 }

// signed returns the same part of the word as bits, as a signed number.
func (w a64Word) signed(low, count uint) int64 {
	return int64(uint64(w)<<(64-low-count)) >> (64 - count)
}

// is reports whether the bits in mask equal the bits of value.
func (w a64Word) is(mask, value uint32) bool { return uint32(w)&mask == value }

// reg returns the general register in five bits from bit low on. 31 is the zero register, so the result is None.
func (w a64Word) reg(low uint) int {
	if r := int(w.bits(low, 5)); r != 31 {
		return r
	}
	return None
}

// regSP is like reg, but for fields in which 31 means SP.
func (w a64Word) regSP(low uint) int { return int(w.bits(low, 5)) }

// reserved decodes the instructions with op0 0000, of which it supports only UDF. The Scalable Matrix Extension has the
// same op0; it is not supported.
func (x *a64Instruction) reserved(w a64Word) bool {
	x.Flow = Ends
	return w.is(0xffff0000, 0)
}
