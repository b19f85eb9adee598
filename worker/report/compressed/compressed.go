// Package compressed reads and writes libwebsockets' compressed backtraces: a call stack and a size in some 20 bytes,
// in lines such as ~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV. The package uses the format that libwebsockets' programs write, which differs
// from its description: doc/internals/compressed-format.md lists the differences.
//
// The package must not know processes, images or names: its input and output are numbers and text.
package compressed

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strings"
)

// Beginnings of lines.
const (
	// Mark begins a compressed backtrace.
	Mark = "~m#"
	// DecodedMark begins a backtrace in plain text, see Backtrace.String.
	DecodedMark = "~b#"
)

// MaxLevels is the number of levels for which the format has room.
const MaxLevels = 31

// maxBits is the largest number of bits that the format has room for in an address, a difference or a size.
const maxBits = 63

// Widths of the fields. In the stream each field is followed by a padding bit.
const (
	levelsWidth    = 5
	kindWidth      = 1
	referenceWidth = 3
	signWidth      = 1
	countWidth     = 6
	trailer        = 2 // number of bytes at the end, which have the length of the binary form
)

// farthest is the greatest number of levels between a level and the earlier level to which its difference refers.
const farthest = 1 << referenceWidth

// ErrUnencodable means that a backtrace has too many levels, or an address or size with too many bits for the format.
var ErrUnencodable = errors.New("cannot be written as a compressed backtrace")

// Backtrace is a call stack with a size.
type Backtrace struct {
	// Size is the size in bytes of the allocation that was made at this stack; 0 in backtraces of other events.
	Size uint64
	// Stack has the addresses, innermost first, at most MaxLevels.
	Stack []uint64
}

// String returns the backtrace in plain text, as libwebsockets' decoder prints it, without a line end.
func (b *Backtrace) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%ssize: %d, ", DecodedMark, b.Size)
	for _, addr := range b.Stack {
		fmt.Fprintf(&s, "0x%x ", addr)
	}
	return s.String()
}

// Line returns the backtrace as a line that begins with Mark, without a line end. The error is ErrUnencodable.
func (b *Backtrace) Line() (string, error) {
	blob, err := b.Append(nil)
	if err != nil {
		return "", err
	}
	return Mark + base64.StdEncoding.EncodeToString(blob), nil
}

// Append appends the binary form to dst. The error is ErrUnencodable.
func (b *Backtrace) Append(dst []byte) ([]byte, error) {
	if len(b.Stack) > MaxLevels {
		return dst, fmt.Errorf("%w: %d levels, where the most is %d", ErrUnencodable, len(b.Stack), MaxLevels)
	}
	w := writer{out: dst, start: len(dst)}
	w.field(uint64(len(b.Stack)), levelsWidth)
	for i := range b.Stack {
		if significant(b.Stack[i]) > maxBits {
			return dst, fmt.Errorf("%w: address 0x%x has more than %d bits", ErrUnencodable, b.Stack[i], maxBits)
		}
		w.level(b.Stack, i)
	}
	if significant(b.Size) > maxBits {
		return dst, fmt.Errorf("%w: size %d has more than %d bits", ErrUnencodable, b.Size, maxBits)
	}
	w.number(b.Size)
	return binary.BigEndian.AppendUint16(w.out, uint16(len(w.out)-w.start+trailer)), nil
}

// significant returns the number of bits without leading zeros of a value; 1 for 0.
func significant(v uint64) int { return max(1, bits.Len64(v)) }

// writer appends bits, the most significant first.
type writer struct {
	out   []byte
	start int
	free  int // number of unused bits in the last byte
}

func (w *writer) bit(set bool) {
	if w.free == 0 {
		w.out = append(w.out, 0)
		w.free = 8
	}
	w.free--
	if set {
		w.out[len(w.out)-1] |= 1 << w.free
	}
}

// field writes the lowest width bits of v, and the padding bit.
func (w *writer) field(v uint64, width int) {
	for i := width - 1; i >= 0; i-- {
		w.bit(v>>i&1 != 0)
	}
	w.bit(false)
}

// number writes the number of bits of a value, and then the value.
func (w *writer) number(v uint64) {
	n := significant(v)
	w.field(uint64(n), countWidth)
	w.field(v, n)
}

// level writes the address of level i. It writes the difference to the nearest address of the levels before it, if that
// takes fewer bits, else the address itself. No difference refers to the first level: older encoders of libwebsockets
// cannot do that, and newer ones save only some bits by it.
func (w *writer) level(stack []uint64, i int) {
	const (
		differenceCost = 11 // bits that libwebsockets adds to a difference; literalCost: to an address
		literalCost    = 7
	)
	nearest, reference, negative := ^uint64(0), 0, false
	for j := max(0, i-farthest); j < i; j++ {
		distance, below := stack[i]-stack[j], stack[i] <= stack[j]
		if below {
			distance = stack[j] - stack[i]
		}
		if distance < nearest {
			nearest, reference, negative = distance, j, below
		}
	}
	if reference == 0 || significant(nearest)+differenceCost >= significant(stack[i])+literalCost {
		w.field(0, kindWidth)
		w.number(stack[i])
		return
	}
	sign := uint64(0)
	if negative {
		sign = 1
	}
	w.field(1, kindWidth)
	w.field(uint64(i-reference-1), referenceWidth)
	w.field(sign, signWidth)
	w.number(nearest)
}
