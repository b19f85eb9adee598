package disasm

// short returns the register in three bits from bit low on: x8 to x15.
func (w rvWord) short(low uint) int { return 8 + int(w.bits(low, 3)) }

// compressed decodes an instruction of 16 bits, of extensions C and Zcb (the manual's chapter on "C").
func (x *rvInstruction) compressed(w rvWord) bool {
	switch w.bits(0, 2)<<3 | w.bits(13, 3) {
	case 0b00_000: // C.ADDI4SPN
		imm := w.bits(7, 4)<<6 | w.bits(11, 2)<<4 | w.bits(5, 1)<<3 | w.bits(6, 1)<<2
		x.set(w.short(2), RV64SP, int64(imm))
		return imm != 0
	case 0b00_001, 0b00_101: // C.FLD, C.FSD
		x.shortAccess(w, 8)
	case 0b00_010, 0b00_110: // C.LW, C.SW
		x.shortAccess(w, 4)
		x.shortMove(w)
	case 0b00_011, 0b00_111: // C.LD, C.SD
		x.shortAccess(w, 8)
		x.shortMove(w)
	case 0b00_100:
		return x.bytes(w)
	case 0b10_000: // C.SLLI
		x.Write(w.rd())
	case 0b10_001, 0b10_101, 0b10_010, 0b10_110, 0b10_011, 0b10_111:
		return x.onStack(w)
	case 0b10_100:
		return x.moveOrJump(w)
	default:
		return x.arithmetic(w)
	}
	return true
}

// shortAccess notes an access of the formats CL and CS.
func (x *rvInstruction) shortAccess(w rvWord, size uint64) {
	disp := w.bits(10, 3) << 3
	if size == 8 {
		disp |= w.bits(5, 2) << 6
	} else {
		disp |= w.bits(5, 1)<<6 | w.bits(6, 1)<<2
	}
	x.access(w.short(7), int64(disp), size)
	x.Access.Store = w.bits(15, 1) != 0
	x.Access.Load = !x.Access.Store
}

func (x *rvInstruction) shortMove(w rvWord) {
	x.moved(w.short(2))
	if x.Access.Load {
		x.Write(w.short(2))
	}
}

// bytes decodes Zcb's loads and stores of one and two bytes.
func (x *rvInstruction) bytes(w rvWord) bool {
	x.access(w.short(7), int64(w.bits(5, 1)<<1|w.bits(6, 1)), 1)
	switch w.bits(10, 3) {
	case 0b000, 0b001: // C.LBU; C.LHU, C.LH
		x.Access.Load = true
		x.Write(w.short(2))
	case 0b010, 0b011: // C.SB, C.SH
		x.Access.Store = true
	default:
		return false
	}
	if w.bits(10, 1) != 0 {
		x.Access.Size, x.Access.Disp = 2, int64(w.bits(5, 1)<<1)
	}
	return true
}

// onStack decodes the loads and stores relative to SP.
func (x *rvInstruction) onStack(w rvWord) bool {
	general, store, size := w.bits(13, 2) != 1, w.bits(15, 1) != 0, uint64(8)
	if w.bits(13, 2) == 2 {
		size = 4
	}
	var disp uint32
	switch {
	case store && size == 8:
		disp = w.bits(7, 3)<<6 | w.bits(10, 3)<<3
	case store:
		disp = w.bits(7, 2)<<6 | w.bits(9, 4)<<2
	case size == 8:
		disp = w.bits(2, 3)<<6 | w.bits(12, 1)<<5 | w.bits(5, 2)<<3
	default:
		disp = w.bits(2, 2)<<6 | w.bits(12, 1)<<5 | w.bits(4, 3)<<2
	}
	x.access(RV64SP, int64(disp), size)
	x.Access.Load, x.Access.Store = !store, store
	switch {
	case !general:
	case store:
		x.moved(w.reg(2))
	default:
		x.moved(w.rd())
		x.Write(w.rd())
		return w.rd() != None
	}
	return true
}

// moveOrJump decodes C.JR, C.MV, C.EBREAK, C.JALR and C.ADD.
func (x *rvInstruction) moveOrJump(w rvWord) bool {
	rd, rm, more := w.rd(), w.reg(2), w.bits(12, 1) != 0
	switch {
	case rm != None && more:
		x.sum(rd, rd, rm, false)
	case rm != None:
		x.set(rd, rm, 0)
	case rd == None && more: // C.EBREAK
		x.Flow = Ends
	case rd == None:
		return false
	case more:
		return x.jumpTo(RV64RA, rd, 0)
	default:
		return x.jumpTo(None, rd, 0)
	}
	return true
}

// arithmetic decodes quadrant 1.
func (x *rvInstruction) arithmetic(w rvWord) bool {
	rd, imm := w.rd(), w.signed(12, 1)<<5|int64(w.bits(2, 5))
	switch w.bits(13, 3) {
	case 0b000: // C.ADDI, C.NOP
		x.set(rd, rd, imm)
	case 0b001: // C.ADDIW
		x.Write(rd)
		return rd != None
	case 0b010: // C.LI
		x.set(rd, None, imm)
	case 0b011:
		return x.upper(w, rd, imm)
	case 0b100:
		return x.short(w, imm)
	case 0b101: // C.J
		target := w.signed(12, 1)<<11 | int64(w.bits(8, 1)<<10|w.bits(9, 2)<<8|w.bits(6, 1)<<7|w.bits(7, 1)<<6|
			w.bits(2, 1)<<5|w.bits(11, 1)<<4|w.bits(3, 3)<<1)
		return x.jump(None, target)
	default: // C.BEQZ, C.BNEZ
		x.Flow = Branch
		return x.To(w.signed(12, 1)<<8 | int64(w.bits(5, 2)<<6|w.bits(2, 1)<<5|w.bits(10, 2)<<3|w.bits(3, 2)<<1))
	}
	return true
}

// upper decodes C.LUI, C.ADDI16SP, and the may-be-operations of Zcmop.
func (x *rvInstruction) upper(w rvWord, rd int, imm int64) bool {
	switch {
	case imm == 0: // with an odd number of at most 15 it has no effect
		return w.bits(7, 5)&0b10001 == 1
	case rd == RV64SP:
		x.set(RV64SP, RV64SP, w.signed(12, 1)<<9|int64(w.bits(3, 2)<<7|w.bits(5, 1)<<6|w.bits(2, 1)<<5|w.bits(6, 1)<<4))
	default:
		x.set(rd, None, imm<<12)
	}
	return true
}

// short decodes C.ANDI, C.SUB and similar instructions on registers x8 to x15.
func (x *rvInstruction) short(w rvWord, imm int64) bool {
	rd, rm := w.short(7), w.short(2)
	x.Write(rd)
	switch w.bits(10, 2) {
	case 0b10: // C.ANDI
		x.Op, x.Rd, x.Rn, x.Imm = And, rd, rd, uint64(imm)
	case 0b11:
		switch w.bits(12, 1)<<2 | w.bits(5, 2) {
		case 0b000: // C.SUB
			x.sum(rd, rd, rm, true)
		case 0b111: // Zcb's of one register
			return w.bits(2, 3) <= 5
		}
	}
	return true
}
