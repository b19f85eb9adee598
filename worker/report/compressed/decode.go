package compressed

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// SyntaxError is an error in a compressed backtrace, or in a line of Windows, with its place.
type SyntaxError struct {
	// Offset is the position of the error: the number of a byte of the text, or of a bit of the binary form if Bits is set.
	Offset int
	Bits   bool
	Reason string
}

func (e *SyntaxError) Error() string {
	unit := "byte"
	if e.Bits {
		unit = "bit"
	}
	return fmt.Sprintf("not a compressed backtrace: %s (%s %d)", e.Reason, unit, e.Offset)
}

// maxText bounds the text of a backtrace, in bytes. MaxLevels addresses of maxBits bits need less.
const maxText = 1024

// Parse reads a backtrace from text: base64, with or without Mark before it and the padding at its end. The error is a
// *SyntaxError.
func Parse(text string) (Backtrace, error) {
	body, marked := strings.CutPrefix(text, Mark)
	start := 0
	if marked {
		start = len(Mark)
	}
	if len(body) > maxText {
		return Backtrace{}, &SyntaxError{Offset: start + maxText, Reason: fmt.Sprintf("longer than %d bytes", maxText)}
	}
	// The decoder of package base64 ignores line ends, so they must be refused here.
	if at := strings.IndexAny(body, "\r\n"); at >= 0 {
		return Backtrace{}, &SyntaxError{Offset: start + at, Reason: "a line end within the base64"}
	}
	blob, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(body, "="))
	if err != nil {
		at := 0
		var corrupt base64.CorruptInputError
		if errors.As(err, &corrupt) {
			at = int(corrupt)
		}
		return Backtrace{}, &SyntaxError{Offset: start + at, Reason: "not base64"}
	}
	return Decode(blob)
}

// Decode reads a backtrace from its binary form. The error is a *SyntaxError.
func Decode(blob []byte) (Backtrace, error) {
	if len(blob) < trailer {
		return Backtrace{}, &SyntaxError{Offset: 8 * len(blob), Bits: true, Reason: "too short for its length"}
	}
	end := len(blob) - trailer
	if stated := int(binary.BigEndian.Uint16(blob[end:])); stated != len(blob) {
		return Backtrace{}, &SyntaxError{
			Offset: 8 * end, Bits: true,
			Reason: fmt.Sprintf("its last two bytes state a length of %d bytes, but there are %d", stated, len(blob)),
		}
	}
	r := reader{bits: blob[:end]}
	levels := int(r.field(levelsWidth, "the number of levels"))
	b := Backtrace{Stack: make([]uint64, 0, levels)}
	for range levels {
		b.Stack = append(b.Stack, r.level(b.Stack))
		if r.err != nil {
			return Backtrace{}, r.err
		}
	}
	b.Size = r.number("the size")
	r.rest()
	if r.err != nil {
		return Backtrace{}, r.err
	}
	return b, nil
}

// reader reads bits, the most significant first, and keeps the first error.
type reader struct {
	bits []byte
	at   int // number of the next bit
	err  error
}

func (r *reader) failf(at int, format string, args ...any) {
	if r.err == nil {
		r.err = &SyntaxError{Offset: at, Bits: true, Reason: fmt.Sprintf(format, args...)}
	}
}

func (r *reader) bit() uint64 {
	b := r.bits[r.at/8] >> (7 - r.at%8) & 1
	r.at++
	return uint64(b)
}

// field reads a value of width bits, and the padding bit. Older encoders set the padding bit if bit 31 of the value or a higher
// bit is set. If such a value has more than 32 bits, they wrote bits 0 to 31 twice, instead of the higher bits.
func (r *reader) field(width int, of string) (v uint64) {
	begin := r.at
	if r.err != nil || r.at+width+1 > 8*len(r.bits) {
		r.failf(r.at, "it ends within %s", of)
		return 0
	}
	for range width {
		v = v<<1 | r.bit()
	}
	if padding := r.bit(); padding != 0 && width != 32 {
		if width < 32 {
			r.failf(r.at-1, "the padding bit behind %s is set", of)
		} else {
			r.failf(begin, "the encoder has lost the bits of %s above the lowest 31", of)
		}
		return 0
	}
	return v
}

// number reads the number of bits of a value, and then the value.
func (r *reader) number(of string) uint64 {
	return r.field(int(r.field(countWidth, "the number of bits of "+of)), of)
}

// level reads the address of a level. stack has the addresses of the levels before it.
func (r *reader) level(stack []uint64) uint64 {
	begin := r.at
	of := fmt.Sprintf("level %d", len(stack))
	if r.field(kindWidth, "the kind of "+of) == 0 {
		return r.number(of)
	}
	back := int(r.field(referenceWidth, "the reference of "+of)) + 1
	negative := r.field(signWidth, "the sign of "+of) != 0
	difference := r.number("the difference of " + of)
	switch {
	case r.err != nil:
		return 0
	case back > len(stack):
		r.failf(begin, "%s refers to a level before the first", of)
		return 0
	}
	reference := stack[len(stack)-back]
	v := reference + difference
	if negative {
		v = reference - difference
	}
	if negative == (v > reference) && difference != 0 || v>>maxBits != 0 {
		r.failf(begin, "%s is beyond the range of addresses", of)
	}
	return v
}

// rest checks that after the size only the zero bits follow that fill the last byte. Otherwise it sets r.err, unless
// r.err is already set.
func (r *reader) rest() {
	begin := r.at
	if r.err == nil && 8*len(r.bits)-r.at >= 8 {
		r.failf(begin, "there are %d bits behind the size", 8*len(r.bits)-begin)
	}
	for r.err == nil && r.at < 8*len(r.bits) {
		if r.bit() != 0 {
			r.failf(r.at-1, "a bit behind the size is set")
		}
	}
}
