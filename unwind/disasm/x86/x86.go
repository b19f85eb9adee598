// Package x86 decodes x86-64 instructions one at a time. It uses golang.org/x/arch, and adds the instructions that
// x/arch does not support. The input is bytes. The package does not depend on processes or images.
package x86

import (
	"errors"
	"fmt"

	"golang.org/x/arch/x86/x86asm"
)

// Longest is the length of the longest instruction in bytes (Intel SDM, volume 2, 2.3.11).
const Longest = 15

// ErrCode means that an instruction could not be decoded.
var ErrCode = errors.New("code not understood")

// Decode decodes the instruction at the beginning of p, which may be longer. endbr64 and endbr32, which x/arch does
// not support, become NOPs. Other instructions that it does not support have the operation Other. The error is an
// ErrCode.
func Decode(p []byte) (x86asm.Inst, error) {
	if len(p) >= 4 && p[0] == 0xf3 && p[1] == 0x0f && p[2] == 0x1e && (p[3] == 0xfa || p[3] == 0xfb) {
		return x86asm.Inst{Op: x86asm.NOP, Len: 4}, nil
	}
	switch encodingOf(p) {
	case vexOrEVEX:
		return decodeVector(p)
	case xop:
		return x86asm.Inst{}, fmt.Errorf("%w: an XOP instruction", ErrCode)
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
		return x86asm.Inst{}, fmt.Errorf("%w: %w", ErrCode, err)
	case x.Op == 0: // the decoder takes the remaining bytes for a prefix
		return x86asm.Inst{}, fmt.Errorf("%w: it ends within an instruction", ErrCode)
	}
	return x, nil
}

// encoding is how an instruction is written.
type encoding byte

const (
	legacy encoding = iota
	vexOrEVEX
	xop // of some AMD processors up to 2014
)

// encodingOf recognizes the encodings of which the decoder takes some for other instructions (Intel SDM, volume 2, 2.3
// and 2.7).
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
