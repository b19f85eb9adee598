package disasm

// memory decodes loads and stores (C4.1.97).
func (x *a64Instruction) memory(w a64Word) bool {
	x.Access.Base = w.regSP(5)
	switch w.bits(28, 2) {
	case 0b00:
		if w.bit(26) {
			return x.structures(w)
		}
		return !w.bit(24) && x.exclusive(w)
	case 0b01:
		if !w.bit(24) {
			return x.literal(w)
		}
		return x.special(w)
	case 0b10:
		return x.pair(w)
	default:
		return x.single(w)
	}
}

// structures decodes loads and stores of several vectors, of up to 64 bytes.
func (x *a64Instruction) structures(w a64Word) bool {
	if w.bit(31) {
		return false
	}
	x.access(w, 64)
	x.Access.Known = true
	if w.bit(23) {
		x.Write(x.Access.Base) // the new value is not decoded
	}
	return true
}

// access sets the size of a memory access, and whether it is a load (bit 22 is set) or a store.
func (x *a64Instruction) access(w a64Word, size uint64) {
	x.Access.Size, x.Access.Load, x.Access.Store = size, w.bit(22), !w.bit(22)
}

// exclusive decodes exclusive and ordered loads and stores, and compare-and-swap.
func (x *a64Instruction) exclusive(w a64Word) bool {
	x.access(w, 16)
	x.Access.Known = true
	pair, ordered := w.bit(21), w.bit(23)
	switch {
	case pair && (ordered || !w.bit(31)): // CAS, CASP
		x.Access.Load, x.Access.Store = true, true
		x.Write(w.reg(16))
		if odd := w.reg(16) | 1; !ordered && odd != A64SP { // 31 is the zero register
			x.Write(odd)
		}
	case x.Access.Load:
		x.Write(w.reg(0))
		if pair {
			x.Write(w.reg(10))
		}
	case !ordered: // STXR writes whether it has stored
		x.Write(w.reg(16))
	}
	return true
}

// literal decodes loads from an address relative to the instruction.
func (x *a64Instruction) literal(w a64Word) bool {
	x.Access = Access{Base: None, Load: true, Size: 8}
	if !w.bit(26) && w.bits(30, 2) != 0b11 { // PRFM
		x.Write(w.reg(0))
	}
	return true
}

// special decodes ordered loads and stores with an offset, and instructions that copy memory. It does not support
// instructions for memory tags, and newer instructions with the same encoding prefix.
func (x *a64Instruction) special(w a64Word) bool {
	switch {
	case w.bit(21):
	case w.bits(10, 2) == 0b00 && !w.bit(26): // LDAPUR, STLUR
		opc := w.bits(22, 2)
		x.Access.Size, x.Access.Load, x.Access.Store = 1<<w.bits(30, 2), opc != 0, opc == 0
		x.Access.Known, x.Access.Disp = true, w.signed(12, 9)
		x.transfer(w, opc == 1)
		return true
	case w.bits(10, 2) == 0b01: // CPYP, SETP and similar: three registers change
		x.Access.Size, x.Access.Load, x.Access.Store = 16, true, true
		x.Write(w.reg(0))
		x.Write(w.reg(5))
		x.Write(w.reg(16))
		return true
	}
	return false
}

// transfer records the register of a load or store of one general register. plain is set if the instruction does not
// extend the sign of the loaded value.
func (x *a64Instruction) transfer(w a64Word, plain bool) {
	if x.Access.Load {
		x.Write(w.reg(0))
	}
	if x.Access.Size == 8 && (plain || x.Access.Store) {
		x.Access.Whole[0], x.Access.Count = w.reg(0), 1
	}
}

// pair decodes LDP, STP and similar instructions.
func (x *a64Instruction) pair(w a64Word) bool {
	opc, vector := w.bits(30, 2), w.bit(26)
	size := uint64(4) << opc
	scale := int64(size)
	switch {
	case vector && opc == 3:
		return false
	case vector:
	case opc == 1 && !w.bit(22): // STGP
		size, scale = 8, 16
	case opc == 1: // LDPSW
		size, scale = 4, 4
	case opc == 2:
		size, scale = 8, 8
	case opc == 3: // instructions on translation tables, which programs do not use
		return false
	}
	x.access(w, size)
	x.Access.Known, x.Access.Disp = true, w.signed(15, 7)*scale
	if !vector {
		if x.Access.Load {
			x.Write(w.reg(0))
			x.Write(w.reg(10))
		}
		if size == 8 {
			x.Access.Whole[0], x.Access.Whole[1], x.Access.Count = w.reg(0), w.reg(10), 2
		}
	}
	if x.Access.Count == 0 {
		x.Access.Size = 2 * size
	}
	switch w.bits(23, 2) {
	case 0b01:
		x.index(Post)
	case 0b11:
		x.index(Pre)
	}
	return true
}

func (x *a64Instruction) index(i Index) {
	x.Access.Index = i
	x.Write(x.Access.Base)
}

// single decodes LDR, STR and similar instructions, prefetches and atomic operations.
func (x *a64Instruction) single(w a64Word) bool {
	size, opc, vector := w.bits(30, 2), w.bits(22, 2), w.bit(26)
	prefetch := !vector && size == 3 && opc == 2
	x.Access.Size = 1 << size
	x.Access.Load, x.Access.Store = opc != 0, opc == 0
	if vector {
		x.Access.Load, x.Access.Store = opc&1 != 0, opc&1 == 0
		if opc&2 != 0 {
			x.Access.Size = 16
		}
	}
	switch {
	case w.bit(24):
		x.Access.Known, x.Access.Disp = true, int64(w.bits(10, 12))*int64(x.Access.Size)
	case !w.bit(21):
		x.Access.Known, x.Access.Disp = true, w.signed(12, 9)
		switch w.bits(10, 2) {
		case 0b01:
			x.index(Post)
		case 0b11:
			x.index(Pre)
		}
	case w.bits(10, 2) == 0b10: // the address uses an index register
	case vector:
		return false
	case w.bits(10, 2) == 0b00:
		return x.atomic(w)
	default:
		return size == 3 && x.authenticated(w)
	}
	switch {
	case prefetch:
		x.Access.Size, x.Access.Load = 0, false
		x.Writes = 0
	case !vector:
		x.transfer(w, opc == 1)
	}
	return true
}

// atomic decodes LDADD and similar instructions, SWP and LDAPR. It does not support 64-byte transfers, or instructions
// on translation tables.
func (x *a64Instruction) atomic(w a64Word) bool {
	if other := w.bits(12, 4); other > 0b1000 && other != 0b1100 {
		return false
	}
	x.Access.Load, x.Access.Store, x.Access.Known = true, true, true
	x.Write(w.reg(0))
	return true
}

// authenticated decodes LDRAA and LDRAB, loads from an authenticated address.
func (x *a64Instruction) authenticated(w a64Word) bool {
	x.Access.Size, x.Access.Load, x.Access.Store = 8, true, false
	x.Access.Known = true
	x.Access.Disp = 8 * (w.signed(22, 1)<<9 | int64(w.bits(12, 9)))
	if w.bit(11) {
		x.index(Pre)
	}
	x.transfer(w, true)
	return true
}
