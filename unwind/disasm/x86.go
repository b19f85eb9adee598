package disasm

import (
	"errors"
	"fmt"

	"golang.org/x/arch/x86/x86asm"
)

// LongestX86 is the length of the longest instruction in bytes (Intel SDM, volume 2, 2.3.11).
const LongestX86 = 15

// ErrX86Code means that an x86-64 instruction could not be decoded.
var ErrX86Code = errors.New("code not understood")

// DecodeX86 decodes the instruction at the beginning of p, which may contain more bytes. endbr64 and endbr32, which
// x/arch does not support, become NOPs. Other instructions that x/arch does not support have the operation OtherX86.
// The error is ErrX86Code.
func DecodeX86(p []byte) (x86asm.Inst, error) {
	if len(p) >= 4 && p[0] == 0xf3 && p[1] == 0x0f && p[2] == 0x1e && (p[3] == 0xfa || p[3] == 0xfb) {
		return x86asm.Inst{Op: x86asm.NOP, Len: 4}, nil
	}
	switch encodingOf(p) {
	case vexOrEVEX:
		return decodeVector(p)
	case xop:
		return x86asm.Inst{}, fmt.Errorf("%w: an XOP instruction", ErrX86Code)
	case legacy:
	}
	x, err := x86asm.Decode(p, 64)
	if err != nil || x.Op == 0 {
		if other, ok := decodeLegacy(p); ok {
			return other, nil
		}
	}
	switch {
	case err != nil:
		return x86asm.Inst{}, fmt.Errorf("%w: %w", ErrX86Code, err)
	case x.Op == 0: // x/arch returns this if all bytes are prefixes
		return x86asm.Inst{}, fmt.Errorf("%w: it ends within an instruction", ErrX86Code)
	}
	return x, nil
}

// encoding is the way in which an instruction is encoded.
type encoding byte

const (
	legacy encoding = iota
	vexOrEVEX
	xop // of some AMD processors up to 2014
)

// encodingOf recognizes encodings other than legacy. x/arch would decode some of them as wrong instructions (Intel SDM,
// volume 2, 2.3 and 2.7).
func encodingOf(p []byte) encoding {
	for i, b := range p {
		switch b {
		case 0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3:
		case 0xc4, 0xc5, 0x62:
			return vexOrEVEX
		case 0x8f:
			if i+1 < len(p) && p[i+1]>>3&7 != 0 {
				return xop
			}
			return legacy
		default:
			return legacy
		}
	}
	return legacy
}
