package cfi

import "encoding/binary"

// maxLEB is the maximum length of a LEB128 number: ten bytes contain 64 bits.
const maxLEB = 10

// reader is a cursor over a section's bytes. A read past the limit, or a malformed number, sets the field failed. All
// reads then return zeros. So callers need to check the field failed only once, after a group of reads.
type reader struct {
	data   []byte // the section up to the reader's limit
	pos    int    // offset in the section
	big    bool
	failed bool
}

// take returns the next n bytes; nil after a failure.
func (r *reader) take(n int) []byte {
	if r.failed || n < 0 || n > len(r.data)-r.pos {
		r.failed = true
		return nil
	}
	b := r.data[r.pos : r.pos+n]
	r.pos += n
	return b
}

func (r *reader) more() bool { return !r.failed && r.pos < len(r.data) }

func (r *reader) u8() byte {
	if r.failed || r.pos >= len(r.data) {
		r.failed = true
		return 0
	}
	b := r.data[r.pos]
	r.pos++
	return b
}

func (r *reader) u16() uint16 {
	b := r.take(2)
	switch {
	case b == nil:
		return 0
	case r.big:
		return binary.BigEndian.Uint16(b)
	}
	return binary.LittleEndian.Uint16(b)
}

func (r *reader) u32() uint32 {
	b := r.take(4)
	switch {
	case b == nil:
		return 0
	case r.big:
		return binary.BigEndian.Uint32(b)
	}
	return binary.LittleEndian.Uint32(b)
}

func (r *reader) u64() uint64 {
	b := r.take(8)
	switch {
	case b == nil:
		return 0
	case r.big:
		return binary.BigEndian.Uint64(b)
	}
	return binary.LittleEndian.Uint64(b)
}

func (r *reader) i8() int64  { return int64(int8(r.u8())) }
func (r *reader) i16() int64 { return int64(int16(r.u16())) }
func (r *reader) i32() int64 { return int64(int32(r.u32())) }

// uint reads an unsigned number of 1, 2, 4 or 8 bytes.
func (r *reader) uint(size int) uint64 {
	switch size {
	case 1:
		return uint64(r.u8())
	case 2:
		return uint64(r.u16())
	case 4:
		return uint64(r.u32())
	case 8:
		return r.u64()
	}
	r.failed = true
	return 0
}

// uleb reads an unsigned LEB128 number (DWARF 5 §7.6). The read fails if the number has more than 64 bits.
func (r *reader) uleb() uint64 {
	if b := r.u8(); b < 0x80 {
		return uint64(b)
	}
	r.pos--
	var v uint64
	for i := range maxLEB {
		b := r.u8()
		if i == maxLEB-1 && b > 1 {
			break
		}
		v |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return v
		}
	}
	r.failed = true
	return 0
}

// sleb reads a signed LEB128 number. Bits after the 64th must repeat the sign, else the read fails.
func (r *reader) sleb() int64 {
	var v int64
	for i := range maxLEB {
		b := r.u8()
		if i == maxLEB-1 && b != 0 && b != 0x7f {
			break
		}
		v |= int64(b&0x7f) << (7 * i)
		if b < 0x80 {
			if shift := 7 * (i + 1); shift < 64 && b&0x40 != 0 {
				v |= -1 << shift
			}
			return v
		}
	}
	r.failed = true
	return 0
}

// cstring reads a string of at most limit bytes, with the zero byte that ends it. It returns the string without this
// byte.
func (r *reader) cstring(limit int) []byte {
	start := r.pos
	for r.pos-start <= limit {
		if r.u8() == 0 {
			break
		}
	}
	if r.failed || r.pos-start > limit {
		r.failed = true
		return nil
	}
	return r.data[start : r.pos-1]
}
