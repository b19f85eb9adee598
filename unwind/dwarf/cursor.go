package dwarf

import "math"

// cursor reads values one after the other from a piece of a section. A read beyond the piece's end returns zero and
// sets the field bad, so that all later reads fail. Callers check the field bad once, after the last read.
type cursor struct {
	data []byte
	pos  int
	// base is the section offset of the piece's first byte.
	base uint64
	big  bool
	bad  bool
}

// offset returns the position in the section.
func (c *cursor) offset() uint64 { return c.base + uint64(c.pos) }

// left is the number of bytes that remain.
func (c *cursor) left() int { return len(c.data) - c.pos }

// fail marks the cursor as bad.
func (c *cursor) fail() {
	c.bad = true
	c.pos = len(c.data)
}

// take returns the next n bytes, or nil.
func (c *cursor) take(n uint64) []byte {
	if n > uint64(c.left()) {
		c.fail()
		return nil
	}
	p := c.data[c.pos:][:n]
	c.pos += int(n)
	return p
}

// uint reads an unsigned number of n bytes, at most 8.
func (c *cursor) uint(n int) uint64 {
	p := c.take(uint64(n))
	v := uint64(0)
	if c.big {
		for _, b := range p {
			v = v<<8 | uint64(b)
		}
		return v
	}
	for i := len(p) - 1; i >= 0; i-- {
		v = v<<8 | uint64(p[i])
	}
	return v
}

func (c *cursor) u8() uint8 {
	if c.pos >= len(c.data) {
		c.fail()
		return 0
	}
	b := c.data[c.pos]
	c.pos++
	return b
}

func (c *cursor) u16() uint16 { return uint16(c.uint(2)) }
func (c *cursor) u32() uint32 { return uint32(c.uint(4)) }

// sized reads an unsigned number of 4 or 8 bytes.
func (c *cursor) sized(eight bool) uint64 {
	if eight {
		return c.uint(8)
	}
	return c.uint(4)
}

// initialLength reads the length at the start of a unit, in bytes after the length itself. is64 reports whether offsets
// in the unit have 8 bytes (DWARF 5 §7.4).
func (c *cursor) initialLength() (length uint64, is64 bool) {
	const escape, reserved = 0xffffffff, 0xfffffff0
	switch n := c.u32(); {
	case n == escape:
		return c.uint(8), true
	case n >= reserved:
		c.fail()
		return 0, false
	default:
		return uint64(n), false
	}
}

// uleb reads an unsigned LEB128 number (DWARF 5 §7.6). It ignores bits beyond the 64th.
func (c *cursor) uleb() uint64 {
	v := uint64(0)
	for shift := uint(0); ; shift += 7 {
		b := c.u8()
		if shift < 64 {
			v |= uint64(b&0x7f) << shift
		}
		if b&0x80 == 0 {
			return v
		}
	}
}

// sleb reads a signed LEB128 number.
func (c *cursor) sleb() int64 {
	v := int64(0)
	for shift := uint(0); ; {
		b := c.u8()
		if shift < 64 {
			v |= int64(b&0x7f) << shift
		}
		shift += 7
		if b&0x80 != 0 {
			continue
		}
		if b&0x40 != 0 && shift < 64 {
			v |= -1 << shift
		}
		return v
	}
}

// str reads a string that ends with a NUL.
func (c *cursor) str() string {
	for i := c.pos; i < len(c.data); i++ {
		if c.data[i] == 0 {
			s := string(c.data[c.pos:i])
			c.pos = i + 1
			return s
		}
	}
	c.fail()
	return ""
}

// skipStr skips a string that ends with a NUL.
func (c *cursor) skipStr() {
	for c.u8() != 0 {
	}
}

// seek moves forward to an offset in the section. If the offset is not in the rest of the piece, seek sets bad.
func (c *cursor) seek(off uint64) {
	n := off - c.base
	if off < c.base || n > uint64(len(c.data)) || n > math.MaxInt || int(n) < c.pos {
		c.fail()
		return
	}
	c.pos = int(n)
}
