package selfnames

import (
	"encoding/binary"
	"errors"
	"slices"

	"pg_stat_backtrace/unwind/elfimage"
)

// ErrEncoding means that the bytes given to Decode were not made by AppendBinary.
var ErrEncoding = errors.New("not the encoded names of an image")

// encoding is the version of the encoded form.
const encoding = 1

// Concerns reports whether the image reports errors as PostgreSQL does. If not, Derive returns ErrForeign. Concerns
// does not read the image's code.
func Concerns(m *elfimage.Image) bool {
	if m.AddrSize() != 8 || machines[m.Machine()] == nil {
		return false
	}
	c := code{image: m, callees: make(map[uint64]reporter)}
	return c.reports(c.relocations())
}

// AppendBinary appends the encoded names to p. Decode reads them.
func (n *Names) AppendBinary(p []byte) ([]byte, error) {
	order := binary.LittleEndian
	p = order.AppendUint64(order.AppendUint64(append(p, encoding), n.base), uint64(n.major))
	for _, size := range n.sizes() {
		p = order.AppendUint32(p, uint32(size))
	}
	for _, numbers := range [][]uint16{n.low, n.facts} {
		for _, v := range numbers {
			p = order.AppendUint16(p, v)
		}
	}
	for _, numbers := range [][]uint32{n.blocks, n.parts, n.starts} {
		for _, v := range numbers {
			p = order.AppendUint32(p, v)
		}
	}
	for _, r := range n.records {
		p = order.AppendUint16(order.AppendUint16(order.AppendUint16(p, r.of[0]), r.of[1]), r.file)
		p = append(p, r.kind)
	}
	return append(p, n.text...), nil
}

// sizes returns the number of elements of each part, in the order of the encoded form.
func (n *Names) sizes() []int {
	return []int{len(n.low), len(n.facts), len(n.blocks), len(n.parts), len(n.starts), len(n.records), len(n.text)}
}

// widths are the encoded sizes of an element of each part, in bytes.
var widths = [...]uint64{2, 2, 4, 4, 4, 7, 1}

// Decode reads encoded names. The bytes may be damaged or hostile: Decode verifies each number that is an index into
// another part. The error is ErrEncoding.
func Decode(p []byte) (*Names, error) {
	const fixed = 1 + 8 + 8 + 4*len(widths)
	order := binary.LittleEndian
	if len(p) < fixed || p[0] != encoding {
		return nil, ErrEncoding
	}
	var parts [len(widths)][]byte
	rest := p[fixed:]
	for i, width := range widths {
		size := uint64(order.Uint32(p[1+8+8+4*i:])) * width
		if size > uint64(len(rest)) {
			return nil, ErrEncoding
		}
		parts[i], rest = rest[:size], rest[size:]
	}
	major := order.Uint64(p[9:])
	if len(rest) > 0 || major > 1<<16 {
		return nil, ErrEncoding
	}
	n := &Names{
		base: order.Uint64(p[1:]), major: int(major),
		low: numbers16(parts[0]), facts: numbers16(parts[1]),
		blocks: numbers32(parts[2]), parts: numbers32(parts[3]), starts: numbers32(parts[4]),
		text: string(parts[6]),
	}
	for at := parts[5]; len(at) > 0; at = at[7:] {
		n.records = append(n.records, record{
			of: [2]uint16{order.Uint16(at), order.Uint16(at[2:])}, file: order.Uint16(at[4:]), kind: at[6],
		})
	}
	if !n.consistent() {
		return nil, ErrEncoding
	}
	return n, nil
}

func numbers16(p []byte) []uint16 {
	numbers := make([]uint16, len(p)/2)
	for i := range numbers {
		numbers[i] = binary.LittleEndian.Uint16(p[2*i:])
	}
	return numbers
}

func numbers32(p []byte) []uint32 {
	numbers := make([]uint32, len(p)/4)
	for i := range numbers {
		numbers[i] = binary.LittleEndian.Uint32(p[4*i:])
	}
	return numbers
}

// consistent reports whether each index is within the bounds of the part that it refers to. It also counts the
// functions with names.
func (n *Names) consistent() bool {
	strings, ok := n.countStrings()
	if !ok || len(n.low) != len(n.facts) || len(n.blocks) == 0 || n.blocks[0] != 0 ||
		uint64(n.blocks[len(n.blocks)-1]) != uint64(len(n.low)) || !slices.IsSorted(n.blocks) {
		return false
	}
	for _, r := range n.records {
		if int(r.of[0]) > strings || int(r.of[1]) > strings || int(r.file) > strings {
			return false
		}
	}
	for _, at := range n.facts {
		switch {
		case at&partBit != 0:
			if int(at&^partBit) >= len(n.parts) {
				return false
			}
		case int(at) >= len(n.records):
			return false
		case n.records[at].kind&isName != 0:
			n.named++
		}
	}
	return true
}

// countStrings returns the number of strings in text. ok reports whether the strings fill text, and whether starts has
// the offset of every stride-th string.
func (n *Names) countStrings() (count int, ok bool) {
	at := 0
	for ; at < len(n.text); count++ {
		if count%stride == 0 && (count/stride >= len(n.starts) || uint64(n.starts[count/stride]) != uint64(at)) {
			return 0, false
		}
		at += 1 + int(n.text[at])
	}
	return count, at == len(n.text) && len(n.starts) == (count+stride-1)/stride
}
