package selfnames

import "encoding/binary"

// mattersOne and mattersTwo are the opcodes of one and two bytes that do more than write the registers that ModRM
// names: jumps, calls, and copies of addresses.
var mattersOne, mattersTwo = func() (one, two [256]bool) {
	for _, op := range []int{
		opLea, opMovLoad, opMovStore, opMovOperand, opCall, opJump, opJumpShort, opGroup5, 0xc2, 0xc3, 0xcc, 0xf4,
		0xe0, 0xe1, 0xe2, 0xe3,
	} {
		one[op] = true
	}
	for i := range 8 {
		one[opMovImm+i] = true
	}
	for i := range 16 {
		one[0x70+i], two[0x80+i] = true, true
	}
	two[0x0b], two[0xff], two[0xb9] = true, true, true
	return one, two
}()

// quickX86 does the same as effectX86, in a fraction of the time, for most instructions: opcodes of one or two bytes,
// with or without a REX prefix. It returns false for all others.
func quickX86(p []byte, pc uint64, e *effect, writes bool) bool {
	const longest = 15
	if len(p) < longest {
		return false
	}
	p = p[:longest]
	b, at, rex := p[0], 1, uint8(0)
	if b&0xf0 == 0x40 {
		rex, b, at = b, p[1], 2
	}
	op, flags, matters := uint16(b), oneByte[b], mattersOne[b]
	if b == 0x0f {
		b = p[at]
		at++
		op = 0x0f00 | uint16(b)
		if flags, matters = twoByte[b], mattersTwo[b]; b == 0x38 || b == 0x3a {
			return false
		}
	} else if leads[b] {
		return false
	}
	if flags&(opBad|opOffset|opImm16) != 0 {
		return false
	}
	if !matters && !writes {
		*e = effect{length: uint8(quickLength(p, at, op, flags))}
		return true
	}
	x := instruction{op: op, wide: rex&8 != 0}
	if flags&opModRM != 0 {
		at = x.quickOperand(p, at, rex)
		if x.op|1 == 0xf7 && x.reg&7 < 2 { // TEST has an immediate operand
			flags |= opImm8 << (x.op & 1) // opImmZ is the next bit
		}
	}
	if flags&^opModRM != 0 {
		at = x.quickImmediate(p, at, rex, flags)
	}
	x.length = at
	x.effect(pc, e, writes)
	return true
}

// operandLengths are the lengths of ModRM, SIB and displacement in bytes, by ModRM. With a certain SIB, the
// displacement has four bytes more.
var operandLengths = func() (n [256]uint8) {
	for m := range n {
		n[m] = 1
		mod, rm := m>>6, m&7
		if mod == 3 {
			continue
		}
		if rm == 4 {
			n[m]++
		}
		switch {
		case mod == 1:
			n[m]++
		case mod == 2 || rm == 5:
			n[m] += 4
		}
	}
	return n
}()

// quickLength returns the length of an instruction whose ModRM or immediate operand is at p[at].
func quickLength(p []byte, at int, op uint16, flags uint8) int {
	if flags&opModRM != 0 {
		m := p[at]
		if m&0xc7 == 4 && p[at+1]&7 == 5 {
			at += 4
		}
		at += int(operandLengths[m])
		if op|1 == 0xf7 && m>>3&7 < 2 { // TEST has an immediate operand
			flags |= opImm8 << (op & 1) // opImmZ is the next bit
		}
	}
	switch {
	case flags&opImm8 != 0:
		return at + 1
	case flags&(opImmZ|opRel) != 0:
		return at + 4
	}
	return at
}

// quickOperand reads ModRM at p[at], SIB and displacement. It returns the index of the next byte.
func (x *instruction) quickOperand(p []byte, at int, rex uint8) int {
	m := p[at]
	at++
	x.modrm, x.mod, x.reg, x.rm = true, m>>6, m>>3&7|rex&4<<1, m&7|rex&1<<3
	if x.mod == 3 {
		return at
	}
	base := m & 7
	if base == 4 {
		x.sib, base = true, p[at]&7
		at++
	}
	switch {
	case x.mod == 1:
		x.disp = int32(int8(p[at]))
		at++
	case x.mod == 2 || base == 5:
		x.disp = int32(binary.LittleEndian.Uint32(p[at:]))
		at += 4
	}
	return at
}

// quickImmediate reads the immediate operand at p[at]. It returns the index of the next byte.
func (x *instruction) quickImmediate(p []byte, at int, rex, flags uint8) int {
	switch {
	case flags&opImm8 != 0:
		x.imm = int64(int8(p[at]))
		return at + 1
	case flags&opImmV != 0:
		if x.rm = uint8(x.op&7) | rex&1<<3; x.wide {
			x.imm = int64(binary.LittleEndian.Uint64(p[at:]))
			return at + 8
		}
	}
	x.imm = int64(int32(binary.LittleEndian.Uint32(p[at:])))
	return at + 4
}
