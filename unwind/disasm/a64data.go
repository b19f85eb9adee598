package disasm

import (
	"math/bits"
)

// immediate decodes data processing with an immediate (C4.1.93).
func (x *a64Instruction) immediate(w a64Word) bool {
	x.Rd = w.reg(0)
	switch op := w.bits(23, 3); op {
	case 0b000, 0b001: // ADR, ADRP
		if w.bit(31) {
			x.Op, x.Imm = Page, uint64(w.signed(5, 19)<<2|int64(w.bits(29, 2)))<<12
		}
	case 0b010: // ADD, SUB
		x.addImmediate(w)
	case 0b011: // with a tag; minimum and maximum
		x.Rd = w.regSP(0)
	case 0b100: // AND, ORR, EOR, ANDS
		x.logicalImmediate(w)
	case 0b101: // MOVN, MOVZ, MOVK
		x.moveWide(w)
	case 0b110, 0b111: // bit fields, EXTR
	}
	x.Write(x.Rd)
	return true
}

func (x *a64Instruction) addImmediate(w a64Word) {
	x.Rn = w.regSP(5)
	if !w.bit(29) { // instructions that set flags do not write SP
		x.Rd = w.regSP(0)
	}
	imm := uint64(w.bits(10, 12))
	if w.bit(22) {
		imm <<= 12
	}
	if w.bit(30) {
		imm = -imm
	}
	if w.bit(31) {
		x.Op, x.Imm = Add, imm
	}
}

func (x *a64Instruction) logicalImmediate(w a64Word) {
	x.Rn = w.reg(5)
	if w.bits(29, 2) != 0b11 {
		x.Rd = w.regSP(0)
	}
	imm, ok := bitMask(w)
	switch opc := w.bits(29, 2); {
	case !w.bit(31) || !ok:
	case opc == 0b00 && x.Rn != None:
		x.Op, x.Imm = And, imm
	case opc == 0b01 && x.Rn == None:
		x.Op, x.Imm = Set, imm // a move
	}
}

// bitMask returns the immediate of a 64-bit logical instruction, like DecodeBitMasks in the manual's pseudocode. The
// result is false if the encoding is invalid.
func bitMask(w a64Word) (uint64, bool) {
	n, immr, imms := w.bits(22, 1), w.bits(16, 6), w.bits(10, 6)
	length := bits.Len32(n<<6|^imms&0x3f) - 1
	if length < 1 {
		return 0, false
	}
	size := uint(1) << uint(length)
	levels := uint32(size - 1)
	ones, turn := uint(imms&levels)+1, uint(immr&levels)
	if ones == size {
		return 0, false
	}
	element := uint64(1)<<ones - 1
	if turn != 0 {
		element = (element>>turn | element<<(size-turn)) & (^uint64(0) >> (64 - size))
	}
	for ; size < 64; size *= 2 {
		element |= element << size
	}
	return element, true
}

func (x *a64Instruction) moveWide(w a64Word) {
	imm, shift := uint64(w.bits(5, 16)), uint8(16*w.bits(21, 2))
	switch opc := w.bits(29, 2); {
	case !w.bit(31) && shift >= 32:
	case opc == 0b10: // MOVZ
		x.Op, x.Imm = Set, imm<<shift
	case opc == 0b00 && w.bit(31): // MOVN
		x.Op, x.Imm = Set, ^(imm << shift)
	case opc == 0b00:
		x.Op, x.Imm = Set, uint64(^uint32(imm<<shift))
	case opc == 0b11 && w.bit(31): // MOVK
		x.Op, x.Imm, x.Shift, x.Rn = Insert, imm, shift, x.Rd
	}
}

// register decodes data processing with registers (C4.1.95).
func (x *a64Instruction) register(w a64Word) bool {
	x.Rd, x.Rn, x.Rm = w.reg(0), w.reg(5), w.reg(16)
	switch {
	case w.is(0x1f000000, 0x0a000000):
		x.logical(w)
	case w.is(0x1f200000, 0x0b000000): // ADD, SUB with a shifted register
		if shift := w.bits(22, 2); shift == 0 && w.bit(31) { // LSL
			x.addRegister(w, uint64(w.bits(10, 6)))
		}
	case w.is(0x1fe00000, 0x0b200000): // ADD, SUB with an extended register
		x.Rn = w.regSP(5)
		if !w.bit(29) {
			x.Rd = w.regSP(0)
		}
		if extend := w.bits(13, 3); extend&3 == 3 && w.bit(31) { // UXTX, SXTX: the whole register
			x.addRegister(w, uint64(w.bits(10, 3)))
		}
	case w.is(0x1fe0fc00, 0x1a000000): // with carry
	case w.is(0x1fe0e000, 0x1a002000): // ADDPT, SUBPT
		x.Rd = w.regSP(0)
	case w.is(0x1fe00000, 0x1a000000): // RMIF, SETF: these write only flags
		x.Rd = None
	case w.is(0x1fe00000, 0x1a400000): // conditional compare: these write only flags
		x.Rd = None
	case w.is(0x1fe00000, 0x1a800000): // conditional select
	case w.is(0x1fe00000, 0x1ac00000): // one or two sources
		if w.bit(30) && w.bits(16, 5) == 1 && x.Rd == A64LR {
			x.Rd = None // PACIA and similar instructions on X30 do not change its address
		}
	case w.is(0x1f000000, 0x1b000000): // three sources
	default:
		return false
	}
	x.Write(x.Rd)
	return true
}

// logical decodes AND, ORR and so on with a shifted register. ORR with the zero register is a move.
func (x *a64Instruction) logical(w a64Word) {
	if !w.is(0xffe0fc00, 0xaa000000) || x.Rn != None {
		return
	}
	x.Op, x.Rn, x.Rm = Add, x.Rm, None
	if x.Rn == None {
		x.Op = Set
	}
}

func (x *a64Instruction) addRegister(w a64Word, shift uint64) {
	if x.Rn == None || x.Rm == None {
		return
	}
	x.Op, x.Imm = AddRegister, shift
	if w.bit(30) {
		x.Op = SubRegister
	}
}

// vector decodes instructions on floating point and vector registers (C4.1.96). Some conversions and moves write a
// general register.
func (x *a64Instruction) vector(w a64Word) bool {
	switch {
	case w.is(0x5f200000, 0x1e000000), w.is(0x5f20fc00, 0x1e200000): // conversions, FMOV
		if opcode := w.bits(16, 3); opcode != 0b010 && opcode != 0b011 && opcode != 0b111 { // does not write a vector register
			x.Rd = w.reg(0)
		}
	case w.is(0xbfe0fc00, 0x0e003c00), w.is(0xbfe0fc00, 0x0e002c00): // UMOV, SMOV
		x.Rd = w.reg(0)
	}
	x.Write(x.Rd)
	return true
}
