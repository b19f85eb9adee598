package cfi

// Pointer encodings of .eh_frame and .eh_frame_hdr (Linux Standard Base 5.0, "DWARF Exception Header Encoding"). Some
// are only in GCC's dwarf2.h.
const (
	peAbsPtr  = 0x00
	peULEB    = 0x01
	peUData2  = 0x02
	peUData4  = 0x03
	peUData8  = 0x04
	peSigned  = 0x08 // absptr, sign extended
	peSLEB    = 0x09
	peSData2  = 0x0a
	peSData4  = 0x0b
	peSData8  = 0x0c
	peFormat  = 0x0f
	pePCRel   = 0x10
	peTextRel = 0x20
	peDataRel = 0x30
	peFuncRel = 0x40
	peAligned = 0x50
	peBase    = 0x70
	peIndir   = 0x80
	peOmit    = 0xff
)

// bases are the addresses to which encoded pointers may be relative.
type bases struct {
	section uint64 // address of the section that the reader reads, for pcrel and aligned
	data    uint64
	fn      uint64 // start of the function, for funcrel
	hasFn   bool
}

// pointer reads an encoded pointer. If it cannot, it sets r.failed.
func (t *Table) pointer(r *reader, enc byte, b bases) uint64 {
	if enc == peOmit {
		r.failed = true
		return 0
	}
	if enc&peBase == peAligned {
		return t.alignedPointer(r, enc, b)
	}
	var base uint64
	switch enc & peBase {
	case peAbsPtr:
	case pePCRel:
		base = b.section + uint64(r.pos)
	case peTextRel:
		base = t.text
	case peDataRel:
		base = b.data
	case peFuncRel:
		base = b.fn
		r.failed = r.failed || !b.hasFn
	default:
		r.failed = true
	}
	return t.indirect(r, enc, (base+t.pointerValue(r, enc))&t.addrMask)
}

// alignedPointer reads an absolute address at the next multiple of the address size. The address of the pointer is
// aligned, not its offset in the section.
func (t *Table) alignedPointer(r *reader, enc byte, b bases) uint64 {
	size := uint64(t.addrSize)
	here := b.section + uint64(r.pos)
	r.take(int(-here & (size - 1)))
	return t.indirect(r, enc, r.uint(t.addrSize))
}

// pointerValue reads the number of an encoded pointer and does not add its base.
func (t *Table) pointerValue(r *reader, enc byte) uint64 {
	switch enc & peFormat {
	case peAbsPtr, peSigned:
		return r.uint(t.addrSize)
	case peULEB:
		return r.uleb()
	case peUData2:
		return uint64(r.u16())
	case peUData4:
		return uint64(r.u32())
	case peUData8, peSData8:
		return r.u64()
	case peSLEB:
		return uint64(r.sleb())
	case peSData2:
		return uint64(r.i16())
	case peSData4:
		return uint64(r.i32())
	}
	r.failed = true
	return 0
}

// indirect returns the value of an encoded pointer. With DW_EH_PE_indirect, the encoded value is the address where the
// pointer is stored, so indirect reads the pointer there.
func (t *Table) indirect(r *reader, enc byte, value uint64) uint64 {
	if enc&peIndir == 0 || r.failed {
		return value
	}
	for i := range t.sections {
		s := &t.sections[i]
		if off := value - s.Addr; off < uint64(len(s.Data)) {
			at := reader{data: s.Data, pos: int(off), big: r.big}
			target := at.uint(t.addrSize)
			r.failed = at.failed
			return target
		}
	}
	if t.deref != nil {
		if target, ok := t.deref(value); ok {
			return target & t.addrMask
		}
	}
	r.failed = true
	return 0
}

// fixedSize returns the size of a pointer with this encoding in bytes; 0 if the size varies or no pointer follows.
func (t *Table) fixedSize(enc byte) int {
	if enc&peBase == peAligned || enc == peOmit {
		return 0
	}
	switch enc & peFormat {
	case peAbsPtr, peSigned:
		return t.addrSize
	case peUData2, peSData2:
		return 2
	case peUData4, peSData4:
		return 4
	case peUData8, peSData8:
		return 8
	}
	return 0
}
