package disasm

import "golang.org/x/arch/x86/x86asm"

// decodeLegacy decodes some instructions without VEX and EVEX that golang.org/x/arch does not support (see known). The
// result is false for all others.
func decodeLegacy(p []byte) (x86asm.Inst, bool) {
	x := x86asm.Inst{Op: OtherX86, Mode: 64, AddrSize: 64, DataSize: 32}
	v := x86Instruction{encoding: inLegacy, table: table0F, prefix: plain}
	r := reader{p: p}
	b := r.next()
	for prefix := true; prefix; {
		switch b {
		case 0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65:
			b = r.next() // segments are ignored: none of the known instructions writes to memory
		case 0x66:
			v.prefix, b = with66, r.next()
		case 0xf3:
			v.prefix, b = withF3, r.next()
		default:
			prefix = false
		}
	}
	if b&0xf0 == 0x40 { // REX
		v.w, v.r, v.x, v.b = b&8 != 0, int(b>>2&1)<<3, int(b>>1&1)<<3, int(b&1)<<3
		b = r.next()
	}
	if b != 0x0f {
		return x86asm.Inst{}, false
	}
	switch v.opcode = r.next(); v.opcode {
	case 0x38:
		v.table, v.opcode = table0F38, r.next()
	case 0x3a:
		v.table, v.opcode = table0F3A, r.next()
	}
	v.readOperands(&r)
	if v.immediate() {
		r.next()
	}
	x.Len = r.at
	if !v.known() || r.cut || x.Len > LongestX86 {
		return x86asm.Inst{}, false
	}
	v.setWritten(&x)
	return x, true
}

// known reports whether decodeLegacy supports the instruction in v (Intel SDM, volume 2; AMD64 manual, volume 3, for
// prefetch).
func (v *x86Instruction) known() bool {
	switch v.table {
	case table0F:
		return v.opcode == 0x0d || // prefetch, prefetchw, prefetchwt1
			v.opcode == 0xc7 && v.reg&7 == 7 && v.mod == 3 // rdseed, rdpid
	case table0F38:
		return v.opcode >= 0xc8 && v.opcode <= 0xcd && v.prefix == plain || // sha…
			v.opcode == 0xcf && v.prefix == with66 || // gf2p8mulb
			v.opcode == 0xf6 && v.prefix != plain // adcx, adox
	case table0F3A:
		return v.opcode == 0xcc && v.prefix == plain || // sha1rnds4
			(v.opcode == 0xce || v.opcode == 0xcf) && v.prefix == with66 // gf2p8affine…
	}
	return false
}
