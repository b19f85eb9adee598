package inflate

import "math/bits"

// A table of codes maps the next bits of a stream to an entry. Codes that are longer than the table's index have
// tables of their own behind it, which the entry of their first bits points to. An entry is packed into 32 bits:
//
//	bits 0-7    how many bits it takes, those of the code and the extra bits that follow it together
//	bits 8-11   how many of these are the code's; of an entry that points to a table, the bits of its index
//	bits 12-15  kinds, below
//	bits 16-31  a literal, the base of a length or a distance, or where the table begins
//
// An entry with 0 bits belongs to no code.
const (
	kindLiteral = 1 << 12
	// kindSpecial is set for everything that is neither a literal nor a length or distance.
	kindSpecial = 1 << 13
	kindTable   = 1 << 14
	kindEnd     = 1 << 15

	invalid = kindSpecial
)

const (
	maxLit, maxDist = 286, 30
	maxCode         = 15 // bits

	litBits, distBits = 11, 8
	// The sizes are the largest that complete codes can need: `enough 288 11 15` and `enough 32 8 15` of zlib's
	// examples/enough.c. build refuses what is larger.
	litSize, distSize = 2342, 402
)

type (
	litTable  [litSize]uint32
	distTable [distSize]uint32
)

// litEntries and distEntries are the entries of all symbols, without their codes' bits.
var (
	litEntries  = makeLitEntries()
	distEntries = makeDistEntries()
)

// makeLitEntries follows the table of lengths in RFC 1951 §3.2.5. 286 and 287 have codes in fixed blocks, but no
// meaning.
func makeLitEntries() [288]uint32 {
	var all [288]uint32
	base := uint32(3)
	for i := range all {
		switch {
		case i < 256:
			all[i] = uint32(i)<<16 | kindLiteral
		case i == 256:
			all[i] = kindSpecial | kindEnd
		case i < 285:
			extra := max(uint32(i-257)/4, 1) - 1
			all[i] = base<<16 | extra
			base += 1 << extra
		case i == 285:
			all[i] = 258 << 16
		default:
			all[i] = invalid
		}
	}
	return all
}

// makeDistEntries follows the table of distances there.
func makeDistEntries() [32]uint32 {
	var all [32]uint32
	base := uint32(1)
	for i := range all {
		if i >= maxDist {
			all[i] = invalid
			continue
		}
		extra := max(uint32(i)/2, 1) - 1
		all[i] = base<<16 | extra
		base += 1 << extra
	}
	return all
}

// code is a set of codes: symbols in the order of their codes (RFC 1951 §3.2.2).
type code struct {
	count   [maxCode + 1]int
	sorted  [288]uint16
	longest int
}

// set sorts the symbols by the lengths of their codes; false if there are more codes than fit, or fewer than would
// fill the space. As an exception there may be a single one of one bit, or none at all: whoever meets the rest of the
// space meets an invalid entry.
func (c *code) set(lens []uint8) bool {
	*c = code{}
	for _, n := range lens {
		c.count[n]++
	}
	c.count[0] = 0
	var next [maxCode + 2]int
	left := 1
	for n := 1; n <= maxCode; n++ {
		left = left<<1 - c.count[n] // once negative, it stays so
		next[n+1] = next[n] + c.count[n]
		if c.count[n] > 0 {
			c.longest = n
		}
	}
	for symbol, n := range lens {
		if n != 0 {
			c.sorted[next[n]] = uint16(symbol)
			next[n]++
		}
	}
	return left == 0 || c.longest == 0 || c.longest == 1 && c.count[1] == 1
}

// build makes the table of a code: an index of the given bits, and behind it the tables of longer codes. It returns
// false if the code does not fit.
func (c *code) build(table []uint32, index int, entries []uint32) bool {
	table[0] = invalid
	size := 1
	prefix := uint32(0) // the next code, its first bit lowest
	symbols := c.sorted[:]
	for n := 1; n <= index; n++ {
		copy(table[size:2*size], table[:size])
		size *= 2
		for range c.count[n] {
			table[prefix] = entries[symbols[0]] + uint32(n)*0x101
			symbols = symbols[1:]
			prefix = following(prefix, n)
		}
	}
	return c.longest <= index || c.buildLong(table, index, entries, symbols, prefix)
}

// buildLong makes the tables of the codes that are longer than the index.
func (c *code) buildLong(table []uint32, index int, entries []uint32, symbols []uint16, prefix uint32) bool {
	mask := uint32(1)<<index - 1
	start, size, of := 1<<index, 0, ^uint32(0)
	for n := index + 1; n <= c.longest; n++ {
		for left := c.count[n]; left > 0; left-- {
			if prefix&mask != of {
				of = prefix & mask
				start += size
				width := c.width(n, index, left)
				size = 1 << width
				if start+size > len(table) {
					return false
				}
				table[of] = uint32(start)<<16 | kindSpecial | kindTable | uint32(width)<<8
			}
			e := entries[symbols[0]] + uint32(n)*0x101
			for i := int(prefix >> index); i < size; i += 1 << (n - index) {
				table[start+i] = e
			}
			symbols = symbols[1:]
			prefix = following(prefix, n)
		}
	}
	return true
}

// width returns the bits that the index of a table of long codes must have: they begin with left codes of n bits.
func (c *code) width(n, index, left int) int {
	space := 1<<(n-index) - left
	for space > 0 && n < c.longest {
		n++
		space = space<<1 - c.count[n]
	}
	return n - index
}

// following returns the code after one of n bits, of the same length or with zeros added; the first bit is the lowest.
func following(code uint32, n int) uint32 {
	// Adding 1 at the last bit carries towards the first.
	last := uint32(1) << (n - 1)
	ones := bits.LeadingZeros32(^(code << (32 - n)))
	if ones >= n {
		return 0
	}
	bit := last >> ones
	return code&(bit-1) | bit
}
