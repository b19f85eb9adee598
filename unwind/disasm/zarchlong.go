package disasm

// six decodes instructions of six bytes.
func (x *zInstruction) six(w zWord) bool {
	switch op := w.op(); op {
	case 0xc0, 0xc2, 0xc4, 0xc6, 0xcc:
		return x.wide(w)
	case 0xc5, 0xc7: // BPRP, BPP
		return true
	case 0xc8:
		return x.several(w)
	case 0xe3:
		return x.long(w)
	case 0xe5:
		return x.immediate(w)
	case 0xe6, 0xe7:
		return x.vectors(w)
	case 0xeb:
		return x.multiple(w)
	case 0xec:
		return x.compare(w)
	case 0xed:
		return x.longFloat(w)
	default:
		return x.bytes(w)
	}
}

// wide decodes the formats RIL: 32 bits relative to the code, or to compute with.
func (x *zInstruction) wide(w zWord) bool {
	r1, imm, large := w.r1(), w.signed(16, 32), int64(w.bits(16, 32))
	switch w.op()<<4 | w.bits(12, 4) {
	case 0xc00: // LARL
		x.set(r1, w.target32())
		x.Op = Here
		return true
	case 0xc01: // LGFI
		return x.set(r1, imm)
	case 0xc04: // BRCL
		return x.branch(w.bits(8, 4), w.target32())
	case 0xc05: // BRASL
		x.call(r1)
		return x.To(w.target32())
	case 0xc24: // SLGFI
		return x.add(r1, r1, -large)
	case 0xc28: // AGFI
		return x.add(r1, r1, imm)
	case 0xc2a: // ALGFI
		return x.add(r1, r1, large)
	case 0xc2c, 0xc2d, 0xc2e, 0xc2f, 0xccd, 0xccf: // CGFI and similar
		return true
	case 0xc47, 0xc4b, 0xc4f: // STHRL, STGRL, STRL: in no frame
		return true
	case 0xcc6: // BRCTH
		x.Flow = Branch
		x.To(w.target32())
		return x.writes(r1)
	}
	if w.op() == 0xc6 { // EXRL, as EX; comparisons
		return true
	}
	return x.writes(r1)
}

// several decodes 0xc8.
func (x *zInstruction) several(w zWord) bool {
	switch w.bits(12, 4) {
	case 0x0, 0x2: // MVCOS, CSST
		x.place(0, w.reg(16), w.disp12(), 256)
		x.store()
		return x.writes(0, 1, w.r1())
	case 0x1: // ECTG
		return x.writes(0, 1, w.r1())
	case 0x4, 0x5: // LPD, LPDG
		return x.pair(w.r1())
	}
	return false
}

// stores are the sizes of the stores of instructions with 0xe3, by their last byte.
var stores = map[uint64]uint64{ //nolint:gochecknoglobals // a table
	0x24: 8, 0x25: 8, 0x50: 4, 0x70: 2, 0x72: 1, 0x2f: 8, 0x3e: 4, 0x3f: 2, 0x8e: 16, 0x26: 8, 0x2e: 8,
	0xc3: 1, 0xc7: 2, 0xcb: 4, 0x49: 24,
}

// long decodes 0xe3: the formats RXY.
func (x *zInstruction) long(w zWord) bool {
	r1, index, reg, disp := w.r1(), w.r2(), w.reg(16), w.disp20()
	op := w.bits(40, 8)
	if size := stores[op]; size != 0 {
		x.place(index, reg, disp, size)
		if op == 0x24 { // STG
			return x.store(r1)
		}
		return x.store()
	}
	switch op {
	case 0x04: // LG
		x.place(index, reg, disp, 8)
		return x.load(r1)
	case 0x71: // LAY
		return x.address(r1, index, reg, disp)
	case 0x20, 0x21, 0x30, 0x31, 0x34, 0x36, 0x55, 0x59, 0x79, 0xcd, 0xcf:
		return true // CG, CLG, CGF, CLGF, CGH, PFD, CLY, CY, CHY, CHF, CLHF
	case 0x46, 0x47: // BCTG, BIC
		x.away()
		return x.writes(r1)
	case 0x0d, 0x1d, 0x5c, 0x84, 0x86, 0x87, 0x8f, 0x96, 0x97: // DSG, DSGF, MFY, MG, MLG, DLG, LPQ, ML, DL
		return x.pair(r1)
	}
	return x.writes(r1)
}

// immediate decodes 0xe5: moves of numbers to memory, comparisons, transactions.
func (x *zInstruction) immediate(w zWord) bool {
	reg, disp := w.reg(16), w.disp12()
	switch op := w.bits(8, 8); op {
	case 0x44, 0x48, 0x4c: // MVHHI, MVGHI, MVHI
		x.place(0, reg, disp, map[uint64]uint64{0x44: 2, 0x48: 8, 0x4c: 4}[op])
		return x.store()
	case 0x54, 0x55, 0x58, 0x59, 0x5c, 0x5d, 0x60, 0x61: // comparisons; TBEGIN, TBEGINC
		return true
	case 0x0a: // MVCRL
		x.place(0, reg, disp, 256)
		return x.store()
	}
	return false
}

// vectors decodes 0xe6 and 0xe7: some write a general register.
func (x *zInstruction) vectors(w zWord) bool {
	op := w.bits(40, 8)
	switch w.op()<<8 | op {
	case 0xe721, 0xe727, 0xe650, 0xe652: // VLGV, LCBB, VCVB, VCVBG
		return x.writes(w.r1())
	case 0xe70e, 0xe73e: // VST, VSTM
		x.place(0, w.reg(16), w.disp12(), 16*16)
		x.Access.Known = x.Access.Known && (op == 0x3e || w.r2() == 0)
		return x.store()
	case 0xe708, 0xe709, 0xe70a, 0xe70b, 0xe73f, 0xe63c, 0xe63d, 0xe63f: // other stores
		x.place(0, w.reg(16), w.disp12(), 16)
		x.Access.Known = false
		return x.store()
	}
	return x.vector()
}

// multiple decodes 0xeb: the formats RSY and SIY.
func (x *zInstruction) multiple(w zWord) bool {
	r1, r3, reg, disp := w.r1(), w.r2(), w.reg(16), w.disp20()
	const unit = 8
	switch op := w.bits(40, 8); op {
	case 0x04: // LMG
		x.place(0, reg, disp, unit)
		return x.load(through(r1, r3)...)
	case 0x24: // STMG
		x.place(0, reg, disp, unit)
		return x.store(through(r1, r3)...)
	case 0x96, 0x98: // LMH, LMY
		return x.writes(through(r1, r3)...)
	case 0x26, 0x90: // STMH, STMY
		x.place(0, reg, disp, 4*uint64(len(through(r1, r3))))
		return x.store()
	case 0x20, 0x21, 0x23, 0x2b, 0x51, 0x55, 0x9a, 0xc0: // CLMH, CLMY, CLT, CLGT, TMY, CLIY, LAMY, TP
		return true
	case 0x52, 0x54, 0x56, 0x57, 0x6a, 0x6e, 0x7a, 0x7e, 0xe1, 0xe3, 0xf3, 0x2c, 0x2d: // MVIY to XIY, ASI and similar
		x.place(0, reg, disp, unit) // STOCG and similar, STCMH, STCMY
		return x.store()
	case 0x9b: // STAMY
		x.place(0, reg, disp, 64)
		return x.store()
	case 0x44, 0x45: // BXHG, BXLEG
		x.away()
		return x.writes(r1)
	case 0x8e, 0x8f: // MVCLU, CLCLU
		x.pair(r1)
		return x.pair(r3)
	case 0x31, 0x3e: // CDSY, CDSG
		x.place(0, reg, disp, 16)
		x.store()
		return x.pair(r1)
	case 0x14, 0x30, 0xe4, 0xe6, 0xe7, 0xe8, 0xea, 0xf4, 0xf6, 0xf7, 0xf8, 0xfa: // CSY, CSG, LANG and similar
		x.place(0, reg, disp, unit)
		x.store()
		return x.writes(r1)
	case 0x0a, 0x0b, 0x0c, 0x0d, 0x1c, 0x1d, 0xdc, 0xdd, 0xde, 0xdf, // shifts
		0x80, 0x81, 0xe0, 0xe2, 0xf2, 0x4c: // ICMH, ICMY, LOCFH, LOCG, LOC, ECAG
		return x.writes(r1)
	}
	return false
}

// compare decodes 0xec: comparisons that branch, moves on a condition, and bits.
func (x *zInstruction) compare(w zWord) bool {
	r1, r3 := w.r1(), w.r2()
	switch op := w.bits(40, 8); op {
	case 0x44, 0x45: // BRXHG, BRXLG
		x.Flow = Branch
		x.To(w.target16())
		return x.writes(r1)
	case 0x64, 0x65, 0x76, 0x77, 0x7c, 0x7d, 0x7e, 0x7f: // CGRJ and similar
		x.Flow = Branch
		return x.To(w.target16())
	case 0xe4, 0xe5, 0xf6, 0xf7, 0xfc, 0xfd, 0xfe, 0xff: // CGRB and similar
		if w.disp12() != 0 {
			return x.away()
		}
		return x.branchTo(1, w.reg(16))
	case 0x70, 0x71, 0x72, 0x73: // CGIT and similar
		return true
	case 0xd9, 0xdb: // AGHIK, ALGHSIK
		return x.add(r1, r3, w.signed(16, 16))
	case 0x42, 0x46, 0x4e, 0x51, 0x54, 0x55, 0x56, 0x57, 0x59, 0x5d, 0xd8, 0xda:
		return x.writes(r1) // LOCHI, RISBG and similar, AHIK, ALHSIK
	}
	return false
}

// longFloat decodes 0xed: floating point with memory.
func (x *zInstruction) longFloat(w zWord) bool {
	size := uint64(4)
	switch w.bits(40, 8) {
	case 0x67: // STDY
		size = 8
	case 0x66: // STEY
	case 0xa8, 0xa9, 0xac, 0xad: // CZDT, CZXT, CPDT, CPXT
		size = 256
	default:
		return x.vector()
	}
	x.place(w.r2(), w.reg(16), w.disp20(), size)
	if size == 256 {
		x.place(0, w.reg(16), w.disp12(), size)
	}
	return x.store()
}

// bytes decodes the formats SS: of up to 256 bytes.
func (x *zInstruction) bytes(w zWord) bool {
	reg, disp := w.reg(16), w.disp12()
	switch op := w.op(); op {
	case 0xd5, 0xf9: // CLC, CP
		return true
	case 0xdd: // TRT
		return x.writes(1, 2)
	case 0xdf: // EDMK
		x.writes(1)
	case 0xd0: // TRTR
		return x.writes(1, 2)
	case 0xd1, 0xd2, 0xd3, 0xd4, 0xd6, 0xd7, 0xdc, 0xde, 0xe2, 0xe8, 0xe9, 0xea, 0xe1:
	case 0xf0, 0xf1, 0xf2, 0xf3, 0xf8, 0xfa, 0xfb, 0xfc, 0xfd:
	default:
		return false
	}
	x.place(0, reg, disp, 256)
	if op := w.op(); op >= 0xd1 && op <= 0xd7 || op == 0xdc {
		x.Access.Size = w.bits(8, 8) + 1
	}
	return x.store()
}
