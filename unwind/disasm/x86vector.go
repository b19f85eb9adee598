package disasm

import (
	"fmt"

	"golang.org/x/arch/x86/x86asm"
)

// OtherX86 is the operation of all instructions that golang.org/x/arch does not support: the instructions with VEX and
// EVEX encodings (Intel SDM, volume 2, 2.3 and 2.7) and some older ones. Most work on vectors, opmasks and tiles, a few
// on general registers. Their Args are not the operands. Instead, Args are the memory and the general registers that
// the instruction writes, memory first. An address that uses vector registers is not in Args. MemBytes is the number of
// bytes written.
const OtherX86 x86asm.Op = 0xffff

// The tables of opcodes, by their numbers in the VEX and EVEX encodings (mmm).
const (
	table0F   = 1
	table0F38 = 2
	table0F3A = 3
	tableFP16 = 5
	tableFMA  = 6 // fused multiply-add of half precision
)

// The prefixes that the VEX and EVEX encodings imply (field pp), as bits.
const (
	plain = 1 << iota
	with66
	withF3
	withF2

	any4 = plain | with66 | withF3 | withF2
)

// x86Instruction has the fields of an instruction as far as they were read.
type x86Instruction struct {
	encoding     byte // one of inLegacy, inVEX and inEVEX
	table        byte
	prefix       byte // one of plain to withF2
	w            bool // operands of 64 bits
	bytes        int  // size of the vectors
	r, x, b, v   int  // the high bits of register numbers, and the register vvvv
	opcode       byte
	mod, reg, rm int
	memory       x86asm.Mem
	short        bool // the displacement has one byte
}

// decodeVector decodes an instruction with VEX or EVEX, after any prefixes that are legal there.
func decodeVector(p []byte) (x86asm.Inst, error) {
	x := x86asm.Inst{Op: OtherX86, Mode: 64, AddrSize: 64, DataSize: 32}
	var v x86Instruction
	r := reader{p: p}
	b := r.next()
	for ; ; b = r.next() {
		switch b {
		case 0x26, 0x2e, 0x36, 0x3e:
			continue
		case 0x64:
			v.memory.Segment = x86asm.FS
			continue
		case 0x65:
			v.memory.Segment = x86asm.GS
			continue
		case 0x67:
			x.AddrSize = 32
			continue
		}
		break
	}
	if !v.readPrefix(&r, b) {
		return x86asm.Inst{}, fmt.Errorf("%w: a vector instruction", ErrX86Code)
	}
	v.opcode = r.next()
	if v.encoding == inEVEX || v.table != table0F || v.opcode != 0x77 { // vzeroupper, vzeroall
		v.readOperands(&r)
		if v.immediate() {
			r.next()
		}
		v.setWritten(&x)
	}
	x.Len = r.at
	if r.cut || x.Len > LongestX86 {
		return x86asm.Inst{}, fmt.Errorf("%w: it ends within an instruction", ErrX86Code)
	}
	return x, nil
}

// reader reads the bytes of an instruction. cut is set if p ends before the instruction.
type reader struct {
	p   []byte
	at  int
	cut bool
}

func (r *reader) next() byte {
	if r.at >= len(r.p) {
		r.cut = true
		return 0
	}
	r.at++
	return r.p[r.at-1]
}

// signed reads a little-endian number of n bytes.
func (r *reader) signed(n int) int64 {
	var u uint32
	for i := range n {
		u |= uint32(r.next()) << (8 * i)
	}
	if n == 1 {
		return int64(int8(u))
	}
	return int64(int32(u))
}

// readPrefix reads a VEX or EVEX prefix with the first byte b. The result is false for other encodings.
func (v *x86Instruction) readPrefix(r *reader, b byte) bool {
	first := byte(0xe1) // value for the shorter form of VEX: table 0F; R is in the second byte
	switch b {
	case 0xc5:
	case 0xc4, 0x62:
		first = r.next()
	default:
		return false
	}
	second := r.next()
	if b == 0xc5 {
		first = first&^0x80 | second&0x80
		second &^= 0x80
	}
	v.encoding = inVEX
	v.w = second&0x80 != 0
	v.v = int(^second >> 3 & 15)
	v.prefix = 1 << (second & 3)
	v.r, v.x, v.b = int(^first>>7&1)<<3, int(^first>>6&1)<<3, int(^first>>5&1)<<3
	v.table = first & 0x1f
	v.bytes = 16 << (second >> 2 & 1)
	if b == 0x62 {
		v.encoding, v.table = inEVEX, first&7
		third := r.next()
		const rounding = 0x10 // a rounding mode replaces the vector length; the registers are used whole
		if v.bytes = 16 << (third >> 5 & 3); third&rounding != 0 {
			v.bytes = 64
		}
		if first&8 != 0 || second&4 == 0 || v.bytes > 64 {
			return false // reserved, or registers of APX
		}
	}
	switch v.table {
	case table0F, table0F38, table0F3A:
		return true
	case tableFP16, tableFMA:
		return v.encoding == inEVEX
	default:
		return false
	}
}

// readOperands reads ModRM, and the SIB byte and displacement that ModRM implies (Intel SDM, volume 2, 2.1.5 and
// 2.2.1).
func (v *x86Instruction) readOperands(r *reader) {
	modrm := r.next()
	v.mod, v.reg, v.rm = int(modrm>>6), int(modrm>>3&7)|v.r, int(modrm&7)
	if v.mod == 3 {
		v.rm |= v.b
		return
	}
	m := &v.memory
	base, none := v.rm, false
	if v.rm == 4 {
		sib := r.next()
		base = int(sib & 7)
		if index := int(sib>>3&7) | v.x; index != 4 {
			m.Index, m.Scale = x86General(index), 1<<(sib>>6)
		}
	}
	switch v.mod {
	case 0:
		if none = base == 5; none {
			m.Disp = r.signed(4)
		}
	case 1:
		m.Disp, v.short = r.signed(1), true
	case 2:
		m.Disp = r.signed(4)
	}
	switch {
	case !none:
		m.Base = x86General(base | v.b)
	case v.rm == 5:
		m.Base = x86asm.RIP
	}
}

// x86General returns the general register with a number.
func x86General(n int) x86asm.Reg { return x86asm.RAX + x86asm.Reg(n) }

// immediate reports whether the instruction has an immediate byte after its operands.
func (v *x86Instruction) immediate() bool {
	switch v.table {
	case table0F3A:
		return true
	case table0F:
		switch v.opcode {
		case 0x70, 0x71, 0x72, 0x73, 0xc2, 0xc4, 0xc5, 0xc6:
			return true
		}
	}
	return false
}
