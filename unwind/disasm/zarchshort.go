package disasm

// two decodes instructions of two bytes.
func (x *zInstruction) two(w zWord) bool {
	r1, r2 := w.r1(), w.r2()
	switch op := w.op(); {
	case op == 0x00: // no instruction begins with this byte
		x.Flow = Ends
		return w.bits(0, 16) <= 1
	case op == 0x04: // SPM
		return true
	case op == 0x06: // BCTR
		if r2 != 0 {
			x.away()
		}
		return x.writes(r1)
	case op == 0x07: // BCR
		x.branchTo(w.bits(8, 4), r2)
		return true
	case op == 0x0a: // SVC: Linux resumes behind it with the result in R2
		return x.writes(2)
	case op == 0x05, op == 0x0d: // BALR, BASR
		if r2 == 0 {
			return x.writes(r1)
		}
		x.Rn = r2
		return x.call(r1)
	case op == 0x0e, op == 0x0f: // MVCL, CLCL
		x.pair(r1)
		return x.pair(r2)
	case op == 0x15, op == 0x19: // CLR, CR
		return true
	case op == 0x1c, op == 0x1d: // MR, DR
		return x.pair(r1)
	case op >= 0x10 && op <= 0x1f:
		return x.writes(r1)
	case op >= 0x20 && op <= 0x3f:
		return x.vector()
	}
	return false
}

// four decodes instructions of four bytes.
func (x *zInstruction) four(w zWord) bool {
	switch op := w.op(); {
	case op < 0x80:
		return x.indexed(w)
	case op == 0xa5:
		return x.writes(w.r1())
	case op == 0xa7:
		return x.relative(w)
	case op == 0xb2:
		return x.control(w)
	case op == 0xb3:
		return x.float(w)
	case op == 0xb9:
		return x.registers(w)
	default:
		return x.storage(w)
	}
}

// indexed decodes the formats RX.
func (x *zInstruction) indexed(w zWord) bool {
	r1, index, reg, disp := w.r1(), w.r2(), w.reg(16), w.disp12()
	size := uint64(4)
	switch op := w.op(); {
	case op == 0x41: // LA
		return x.address(r1, index, reg, disp)
	case op == 0x44: // EX: an instruction that moves, compares or translates memory
		return true
	case op == 0x45, op == 0x4d: // BAL, BAS
		x.away()
		return x.writes(r1)
	case op == 0x46: // BCT
		x.away()
		return x.writes(r1)
	case op == 0x47: // BC
		if w.bits(8, 4) != 0 {
			x.away()
		}
		return true
	case op == 0x40, op == 0x42, op == 0x50, op == 0x60, op == 0x70, op == 0x4e: // STH, STC, ST, STD, STE, CVD
		switch op {
		case 0x40:
			size = 2
		case 0x42:
			size = 1
		case 0x60, 0x4e:
			size = 8
		}
		x.place(index, reg, disp, size)
		return x.store()
	case op == 0x49, op == 0x55, op == 0x59: // CH, CL, C
		return true
	case op == 0x5c, op == 0x5d: // M, D
		return x.pair(r1)
	case op >= 0x40 && op <= 0x5f, op == 0x71: // MS
		return x.writes(r1)
	case op >= 0x60:
		return x.vector()
	}
	return false
}

// address notes the address that LA and LAY compute.
func (x *zInstruction) address(rd, index, reg int, disp int64) bool {
	switch {
	case index != 0 && reg != 0:
		if disp == 0 {
			return x.sum(AddRegister, rd, reg, index)
		}
		return x.writes(rd)
	case index == 0 && reg == 0:
		return x.set(rd, disp)
	}
	return x.add(rd, index|reg, disp)
}

// relative decodes 0xa7: tests, branches, and arithmetic with 16 bits.
func (x *zInstruction) relative(w zWord) bool {
	r1, imm := w.r1(), w.signed(16, 16)
	switch w.bits(12, 4) {
	case 0x0, 0x1, 0x2, 0x3, 0xe, 0xf: // TMLH and similar, CHI, CGHI
	case 0x4: // BRC
		x.branch(w.bits(8, 4), w.target16())
	case 0x5: // BRAS
		x.call(r1)
		return x.To(w.target16())
	case 0x6, 0x7: // BRCT, BRCTG
		x.Flow = Branch
		x.To(w.target16())
		return x.writes(r1)
	case 0x9: // LGHI
		return x.set(r1, imm)
	case 0xb: // AGHI
		return x.add(r1, r1, imm)
	default:
		return x.writes(r1)
	}
	return true
}

// storage decodes the formats RS and SI.
func (x *zInstruction) storage(w zWord) bool {
	r1, r3, reg, disp := w.r1(), w.r2(), w.reg(16), w.disp12()
	switch op := w.op(); op {
	case 0x84, 0x85: // BRXH, BRXLE
		x.Flow = Branch
		x.To(w.target16())
		return x.writes(r1)
	case 0x86, 0x87: // BXH, BXLE
		x.away()
		return x.writes(r1)
	case 0x88, 0x89, 0x8a, 0x8b, 0xbf: // SRL, SLL, SRA, SLA; ICM
		return x.writes(r1)
	case 0x8c, 0x8d, 0x8e, 0x8f: // SRDL, SLDL, SRDA, SLDA
		return x.pair(r1)
	case 0x90: // STM
		x.place(0, reg, disp, 4*uint64(len(through(r1, r3))))
		return x.store()
	case 0x91, 0x95, 0x9a, 0xaf, 0xbd: // TM, CLI, LAM, MC, CLM
		return true
	case 0x92, 0x93, 0x94, 0x96, 0x97: // MVI, TS, NI, OI, XI
		x.place(0, reg, disp, 1)
		return x.store()
	case 0x98: // LM
		return x.writes(through(r1, r3)...)
	case 0x9b: // STAM
		x.place(0, reg, disp, 64)
		return x.store()
	case 0xa8, 0xa9: // MVCLE, CLCLE
		x.pair(r1)
		return x.pair(r3)
	case 0xba: // CS
		x.place(0, reg, disp, 4)
		x.store()
		return x.writes(r1)
	case 0xbb: // CDS
		x.place(0, reg, disp, 8)
		x.store()
		return x.pair(r1)
	case 0xbe: // STCM
		x.place(0, reg, disp, 4)
		return x.store()
	}
	return false
}

// control decodes 0xb2.
func (x *zInstruction) control(w zWord) bool {
	r1, r2, reg, disp := w.reg(24), w.reg(28), w.reg(16), w.disp12()
	switch w.bits(8, 8) {
	case 0x4d, 0x4e, 0x99, 0x9d, 0xb8, 0xb9, 0xbd, 0xe8, 0xf8, 0xfa, 0xff:
		return true // CPYA, SAR, SRNM, LFPC, SRNMB, SRNMT, LFAS, PPA, TEND, NIAI, TRAP4
	case 0x4f, 0x22, 0x52, 0xec: // EAR, IPM, MSR, ETND
		return x.writes(r1)
	case 0x05, 0x7c, 0x78, 0x9c: // STCK, STCKF, STCKE, STFPC
		x.place(0, reg, disp, 16)
		return x.store()
	case 0xb0: // STFLE
		x.place(0, reg, disp, 256)
		x.store()
		return x.writes(0)
	case 0x2d, 0x44, 0x45: // DXR, SQDR, SQER
		return x.vector()
	case 0x41, 0x55, 0x57, 0x5d, 0x5e, 0x63, 0xa5, 0xa6, 0xa7: // CKSM, MVST, CUSE, CLST, SRST, CMPSC, TRE, CU21, CU12
		x.writes(0, 1)
		x.pair(r1)
		return x.pair(r2)
	}
	return false
}

// float decodes 0xb3, floating point with registers. Conversions to integers write general registers.
func (x *zInstruction) float(w zWord) bool {
	r1, r2 := w.reg(24), w.reg(28)
	switch op := w.bits(8, 8); {
	case op == 0xcd: // LGDR
		return x.add(r1, number(r2), 0)
	case op == 0xc1: // LDGR
		return x.add(number(r1), r2, 0)
	case op == 0x8c, op >= 0x98 && op <= 0x9f, op >= 0xa8 && op <= 0xaf, op >= 0xb8 && op <= 0xbf,
		op >= 0xc8 && op <= 0xcf, op >= 0xe1 && op <= 0xe3, op == 0xe5, op == 0xe7,
		op >= 0xe9 && op <= 0xeb, op == 0xed, op == 0xef:
		x.pair(r1)
	}
	return x.vector()
}

// number is the number of a floating point register in package arch (zSeries ELF ABI, table 1.2).
func number(f int) int {
	return [16]int{16, 20, 17, 21, 18, 22, 19, 23, 24, 28, 25, 29, 26, 30, 27, 31}[f]
}

// registers decodes 0xb9.
func (x *zInstruction) registers(w zWord) bool {
	r1, r2, r3 := w.reg(24), w.reg(28), w.reg(16)
	switch op := w.bits(8, 8); {
	case op == 0x04: // LGR
		return x.add(r1, r2, 0)
	case op == 0x08: // AGR
		return x.sum(AddRegister, r1, r1, r2)
	case op == 0x09: // SGR
		return x.sum(SubRegister, r1, r1, r2)
	case op == 0xe8: // AGRK
		return x.sum(AddRegister, r1, r2, r3)
	case op == 0xe9: // SGRK
		return x.sum(SubRegister, r1, r2, r3)
	case op == 0x20, op == 0x21, op == 0x30, op == 0x31, op == 0x60, op == 0x61, op == 0x72, op == 0x73,
		op == 0xcd, op == 0xcf, op == 0xdd, op == 0xdf:
		return true // CGR, CLGR, CGFR, CLGFR, CGRT, CLGRT, CRT, CLRT, CHHR, CLHHR, CHLR, CLHLR
	case op == 0x46: // BCTGR
		if r2 != 0 {
			x.away()
		}
		return x.writes(r1)
	case op == 0x0d, op == 0x1d, op == 0x83, op == 0x86, op == 0x87, op == 0x96, op == 0x97, op == 0xec:
		return x.pair(r1) // DSGR, DSGFR, FLOGR, MLGR, DLGR, MLR, DLR, MGRK
	case op >= 0x51 && op <= 0x5b: // CDFTR and similar
		return x.vector()
	case op == 0x1e, op >= 0x28 && op <= 0x2f, op >= 0x38 && op <= 0x3f, op == 0x8d, op >= 0x8a && op <= 0x93,
		op >= 0x9a && op <= 0xbf: // cryptography, translation, and privileged instructions
		x.writes(0, 1)
		x.pair(r1)
		x.pair(r2)
		return x.pair(r3)
	}
	return x.writes(r1)
}
