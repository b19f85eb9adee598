package disasm

// branch decodes branches, exception generating and system instructions (C4.1.94).
func (x *a64Instruction) branch(w a64Word) bool {
	switch {
	case w.is(0x7c000000, 0x14000000): // B, BL
		x.Flow = Jump
		if w.bit(31) {
			x.Flow = Call
			x.Write(A64LR)
		}
		return x.To(4 * w.signed(0, 26))
	case w.is(0x7e000000, 0x34000000): // CBZ, CBNZ
		x.Flow = Branch
		return x.To(4 * w.signed(5, 19))
	case w.is(0x7e000000, 0x36000000): // TBZ, TBNZ
		x.Flow = Branch
		return x.To(4 * w.signed(5, 14))
	case w.is(0xff000000, 0x54000000): // B.cond, BC.cond
		x.Flow = Branch
		return x.To(4 * w.signed(5, 19))
	case w.is(0xff000000, 0xd4000000):
		return x.exception(w)
	case w.is(0xffc00000, 0xd5000000):
		return x.system(w)
	case w.is(0xfe000000, 0xd6000000):
		return x.indirect(w)
	}
	return false
}

// exception decodes SVC, BRK and HLT. After SVC, Linux continues at the next instruction with the result in X0. BRK and
// HLT end the program.
func (x *a64Instruction) exception(w a64Word) bool {
	switch {
	case w.is(0xffe0001f, 0xd4000001): // SVC
		x.Write(0)
		return true
	case w.is(0xffe0001f, 0xd4200000), w.is(0xffe0001f, 0xd4400000): // BRK, HLT
		x.Flow = Ends
		return true
	}
	return false
}

// system decodes hints, barriers and accesses to system registers.
func (x *a64Instruction) system(w a64Word) bool {
	switch {
	case w.is(0xfffff01f, 0xd503201f): // hints
		x.hint(w.bits(5, 7))
		return true
	case w.is(0xfffff000, 0xd5033000), w.is(0xfff8f01f, 0xd500401f): // barriers; MSR of a field of PSTATE
		return true
	case w.is(0xfffff000, 0xd5031000): // WFET, WFIT
		return true
	}
	// SYS, SYSL, MSR and MRS. If bit 21 is set, they write the register in the last field (Rt). If bit 22 is set, Rt is
	// the first register of a pair.
	if w.is(0xffc00000, 0xd5000000) && w.bits(19, 2) != 0 {
		if w.bit(21) {
			x.Write(w.reg(0))
		}
		return true
	}
	return false
}

// hint records the registers that some hints write. Hints that sign or authenticate X30 are ignored, because the
// address in X30 stays the same.
func (x *a64Instruction) hint(number uint32) {
	switch number {
	case 8, 10, 12, 14: // PACIA1716, PACIB1716, AUTIA1716, AUTIB1716
		x.Write(17)
	case 40: // CHKFEAT
		x.Write(16)
	}
}

// indirect decodes branches to registers (C4.1.94.14).
func (x *a64Instruction) indirect(w a64Word) bool {
	signed := w.bits(10, 6) // 000000, or 000010 and 000011 for instructions with authentication
	if w.bits(16, 5) != 31 || signed != 0 && signed&^1 != 2 {
		return false
	}
	x.Rn = w.reg(5)
	switch opc := w.bits(21, 4); opc {
	case 0b0000, 0b1000: // BR, BRAAZ, BRAA
		x.Flow = Unknown
	case 0b0001, 0b1001: // BLR, BLRAAZ, BLRAA
		x.Flow = Call
		x.Write(A64LR)
	case 0b0010: // RET, RETAA
		x.Flow = Return
		if signed != 0 {
			x.Rn = A64LR
		}
		return x.Rn != None
	case 0b0100: // ERET
		x.Flow = Unknown
	default:
		return false
	}
	return true
}
