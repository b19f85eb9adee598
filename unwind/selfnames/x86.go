package selfnames

import "encoding/binary"

// instruction is an x86-64 instruction, with the fields that the sweep (sweep.go) needs (Intel SDM, volume 2, chapter
// 2). Package disasm decodes more of each instruction, but is too slow for all code of a server.
type instruction struct {
	length int
	// op is the opcode. In the two-byte map (0x0f), 0x0f00 is added. vector is set for instructions with a VEX or EVEX
	// prefix, or in a three-byte map.
	op     uint16
	vector bool
	wide   bool // REX.W
	modrm  bool
	// mod, reg and rm are the fields of ModRM. reg and rm include the bits of REX.
	mod, reg, rm uint8
	sib          bool
	disp         int32
	imm          int64
}

// Immediate operands and other properties of an opcode.
const (
	opModRM  = 1 << iota
	opImm8   // one byte
	opImmZ   // two or four bytes, by the operand size
	opImm16  // two bytes
	opImmV   // two, four or eight bytes, by the operand size
	opOffset // an address of eight bytes
	opRel    // four bytes, with any operand size
	opBad    // no instruction of 64-bit code
)

// oneByte and twoByte have the properties of the opcodes in the one-byte map and in the two-byte map (0x0f).
var oneByte, twoByte = opcodeTables()

func opcodeTables() (one, two [256]uint8) {
	set := func(t *[256]uint8, from, to int, flags uint8) {
		for i := from; i <= to; i++ {
			t[i] = flags
		}
	}
	for base := 0; base < 0x40; base += 8 {
		set(&one, base, base+3, opModRM)
		one[base+4], one[base+5] = opImm8, opImmZ
	}
	for _, bad := range []int{
		0x06, 0x07, 0x0e, 0x16, 0x17, 0x1e, 0x1f, 0x27, 0x2f, 0x37, 0x3f, 0x60, 0x61, 0x62, 0x82, 0x9a, 0xc4, 0xc5, 0xce,
		0xd4, 0xd5, 0xd6, 0xea,
	} {
		one[bad] = opBad
	}
	one[0x63], one[0x68], one[0x69], one[0x6a], one[0x6b] = opModRM, opImmZ, opModRM|opImmZ, opImm8, opModRM|opImm8
	set(&one, 0x70, 0x7f, opImm8)
	one[0x80], one[0x81], one[0x83] = opModRM|opImm8, opModRM|opImmZ, opModRM|opImm8
	set(&one, 0x84, 0x8f, opModRM)
	set(&one, 0xa0, 0xa3, opOffset)
	one[0xa8], one[0xa9] = opImm8, opImmZ
	set(&one, 0xb0, 0xb7, opImm8)
	set(&one, 0xb8, 0xbf, opImmV)
	one[0xc0], one[0xc1], one[0xc2], one[0xca] = opModRM|opImm8, opModRM|opImm8, opImm16, opImm16
	one[0xc6], one[0xc7], one[0xc8], one[0xcd] = opModRM|opImm8, opModRM|opImmZ, opImm16|opImm8, opImm8
	set(&one, 0xd0, 0xd3, opModRM)
	set(&one, 0xd8, 0xdf, opModRM)
	set(&one, 0xe0, 0xe7, opImm8)
	one[0xe8], one[0xe9], one[0xeb] = opRel, opRel, opImm8
	one[0xf6], one[0xf7], one[0xfe], one[0xff] = opModRM, opModRM, opModRM, opModRM

	set(&two, 0, 0xff, opModRM)
	for _, plain := range []int{0x05, 0x06, 0x07, 0x08, 0x09, 0x0b, 0x0e, 0x77, 0xa0, 0xa1, 0xa2, 0xa8, 0xa9, 0xaa} {
		two[plain] = 0
	}
	set(&two, 0x30, 0x37, 0)
	set(&two, 0xc8, 0xcf, 0)
	set(&two, 0x70, 0x73, opModRM|opImm8)
	set(&two, 0x80, 0x8f, opRel)
	for _, imm := range []int{0x0f, 0xa4, 0xac, 0xba, 0xc2, 0xc4, 0xc5, 0xc6} {
		two[imm] = opModRM | opImm8
	}
	for _, bad := range []int{0x04, 0x0a, 0x0c, 0x24, 0x25, 0x26, 0x27, 0x36, 0x39, 0x3b, 0x3c, 0x3d, 0x3e, 0x3f} {
		two[bad] = opBad
	}
	return one, two
}

// x86Reader reads one instruction from p into x.
type x86Reader struct {
	p              []byte
	at             int
	x              *instruction
	rex            uint8
	small, address bool // the instruction has the prefix 0x66 or 0x67
	flags          uint8
}

// decodeX86 reads the instruction at the beginning of p into x. It reports whether p contains a complete valid
// instruction.
func decodeX86(p []byte, x *instruction) bool {
	const longest = 15
	if len(p) > longest {
		p = p[:longest]
	}
	*x = instruction{}
	r := x86Reader{p: p, x: x}
	if !r.simple() && !r.opcode() || r.flags&opBad != 0 {
		return false
	}
	if r.flags&opModRM != 0 && !r.operand() {
		return false
	}
	if r.flags == opModRM && (x.vector || x.op|1 != 0xf7) {
		x.length = r.at
		return true
	}
	// In the groups 0xf6 and 0xf7, only the two TEST instructions have an immediate operand.
	if !x.vector && x.op|1 == 0xf7 && x.reg&7 < 2 {
		if r.flags |= opImm8; x.op == 0xf7 {
			r.flags = r.flags&^opImm8 | opImmZ
		}
	}
	if !r.immediate() {
		return false
	}
	x.length = r.at
	return r.at <= len(p)
}

// byte reads the next byte. The result is false at the end of p.
func (r *x86Reader) byte() (uint8, bool) {
	if r.at >= len(r.p) {
		return 0, false
	}
	r.at++
	return r.p[r.at-1], true
}

// simple reads the common beginning of instructions: an opcode of one byte, with or without a REX prefix. It returns
// false for other instructions.
func (r *x86Reader) simple() bool {
	const enough = 2
	if len(r.p) < enough {
		return false
	}
	b, at, rex := r.p[0], 1, uint8(0)
	if b&0xf0 == 0x40 {
		b, at, rex = r.p[1], enough, b
	}
	if leads[b] {
		return false
	}
	r.at, r.rex, r.flags = at, rex, oneByte[b]
	r.x.op, r.x.wide = uint16(b), rex&8 != 0
	return true
}

// leads are the bytes that are not an opcode of one byte: prefixes, and the first bytes of longer opcodes.
var leads = func() (t [256]bool) {
	for _, b := range []byte("\x0f\x26\x2e\x36\x3e\x62\x64\x65\x66\x67\xc4\xc5\xf0\xf2\xf3") {
		t[b] = true
	}
	for b := 0x40; b < 0x50; b++ {
		t[b] = true
	}
	return t
}()

// opcode reads any prefixes and the opcode. It returns false if the opcode is invalid or incomplete.
func (r *x86Reader) opcode() bool {
	for {
		b, ok := r.byte()
		if !ok {
			return false
		}
		switch b {
		case 0x66:
			r.small, r.rex = true, 0
			continue
		case 0x67:
			r.address, r.rex = true, 0
			continue
		case 0xf0, 0xf2, 0xf3, 0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65:
			r.rex = 0
			continue
		}
		switch {
		case b&0xf0 == 0x40:
			r.rex = b
		case b == 0x0f:
			return r.longOpcode()
		case b == 0xc4 || b == 0xc5 || b == 0x62:
			return r.vectorOpcode(b)
		default:
			r.x.wide = r.rex&8 != 0
			r.x.op, r.flags = uint16(b), oneByte[b]
			return true
		}
	}
}

// longOpcode reads the rest of an opcode that begins with 0x0f.
func (r *x86Reader) longOpcode() bool {
	b, ok := r.byte()
	if !ok {
		return false
	}
	r.x.wide = r.rex&8 != 0
	if b != 0x38 && b != 0x3a {
		r.x.op, r.flags = 0x0f00|uint16(b), twoByte[b]
		return true
	}
	r.x.vector, r.flags = true, opModRM
	if b == 0x3a {
		r.flags |= opImm8
	}
	op, ok := r.byte()
	r.x.op = uint16(op)
	return ok
}

// vectorOpcode reads the rest of a VEX or EVEX prefix and the opcode.
func (r *x86Reader) vectorOpcode(prefix uint8) bool {
	opmap, more := uint8(1), 0
	b, ok := r.byte()
	if !ok {
		return false
	}
	switch prefix {
	case 0xc4:
		opmap, more = b&0x1f, 1
	case 0x62:
		opmap, more = b&7, 2
	}
	r.rex = ^b >> 5 & 4 // bit R of REX; the sweep follows no general register through these instructions
	r.at += more
	op, ok := r.byte()
	if !ok || opmap == 0 || opmap > 6 || opmap == 4 {
		return false
	}
	r.x.vector, r.x.op, r.flags = true, uint16(op), opModRM
	switch {
	case opmap == 3:
		r.flags |= opImm8
	case opmap == 1 && op == 0x77 && prefix != 0x62:
		r.flags = 0
	case opmap == 1 && (op >= 0x70 && op <= 0x73 || op == 0xc2 || op >= 0xc4 && op <= 0xc6):
		r.flags |= opImm8
	}
	return true
}

// operand reads ModRM, SIB and displacement. It returns false if they are incomplete.
func (r *x86Reader) operand() bool {
	b, ok := r.byte()
	if !ok {
		return false
	}
	x := r.x
	x.modrm, x.mod, x.reg, x.rm = true, b>>6, b>>3&7|r.rex&4<<1, b&7|r.rex&1<<3
	if x.mod == 3 {
		return true
	}
	base := b & 7
	if base == 4 {
		s, ok := r.byte()
		if !ok {
			return false
		}
		x.sib, base = true, s&7
	}
	switch {
	case x.mod == 1:
		d, ok := r.byte()
		x.disp = int32(int8(d))
		return ok
	case x.mod == 2 || base == 5:
		if r.at += 4; r.at > len(r.p) {
			return false
		}
		x.disp = int32(binary.LittleEndian.Uint32(r.p[r.at-4:]))
	}
	return true
}

// immediate reads the immediate operand. It returns false if the operand is incomplete.
func (r *x86Reader) immediate() bool {
	size := 0
	word := 4
	if r.small {
		word = 2
	}
	switch f := r.flags; {
	case f&opImm16 != 0:
		if size = 2; f&opImm8 != 0 {
			size = 3
		}
	case f&opImm8 != 0:
		size = 1
	case f&opRel != 0:
		size = 4
	case f&opImmZ != 0:
		if size = word; r.x.wide {
			size = 4
		}
	case f&opImmV != 0:
		if size = word; r.x.wide {
			size = 8
		}
	case f&opOffset != 0:
		if size = 8; r.address {
			size = 4
		}
	}
	if r.at += size; r.at > len(r.p) {
		return false
	}
	b := r.p[r.at-size:]
	switch size {
	case 1:
		r.x.imm = int64(int8(b[0]))
	case 4:
		r.x.imm = int64(int32(binary.LittleEndian.Uint32(b)))
	case 8:
		r.x.imm = int64(binary.LittleEndian.Uint64(b))
	}
	if r.flags&opImmV != 0 {
		r.rexRegister()
	}
	return true
}

// rexRegister sets rm to the register in the opcode's low bits.
func (r *x86Reader) rexRegister() { r.x.rm = uint8(r.x.op&7) | r.rex&1<<3 }

// relative reports whether the operand's address is relative to the end of the instruction (RIP).
func (x *instruction) relative() bool { return x.modrm && !x.sib && x.mod == 0 && x.rm&7 == 5 }
