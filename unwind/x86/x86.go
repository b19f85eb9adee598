// Package x86 decodes x86-64 instructions one at a time: golang.org/x/arch does so, and this package says what that one
// does not know. Code is bytes; nothing here knows a process or an image.
package x86

import (
	"errors"
	"fmt"

	"golang.org/x/arch/x86/x86asm"
)

// Longest is the length of the longest instruction in bytes (Intel SDM, volume 2, 2.3.11).
const Longest = 15

// ErrCode says that an instruction could not be decoded.
var ErrCode = errors.New("code not understood")

// Decode decodes the instruction at the beginning of p, which may hold more. The markers endbr64 and endbr32, unknown
// to the decoder, are NOPs. The error is an ErrCode.
func Decode(p []byte) (x86asm.Inst, error) {
	if len(p) >= 4 && p[0] == 0xf3 && p[1] == 0x0f && p[2] == 0x1e && (p[3] == 0xfa || p[3] == 0xfb) {
		return x86asm.Inst{Op: x86asm.NOP, Len: 4}, nil
	}
	if vector(p) {
		return x86asm.Inst{}, fmt.Errorf("%w: a vector instruction", ErrCode)
	}
	x, err := x86asm.Decode(p, 64)
	switch {
	case err != nil:
		return x86asm.Inst{}, fmt.Errorf("%w: %w", ErrCode, err)
	case x.Op == 0: // the decoder takes what is left for a prefix
		return x86asm.Inst{}, fmt.Errorf("%w: it ends within an instruction", ErrCode)
	}
	return x, nil
}

// vector recognizes the VEX, EVEX and XOP encodings, of which the decoder
// takes some for other instructions (Intel SDM, volume 2, 2.3 and 2.7).
func vector(p []byte) bool {
	for i, b := range p {
		switch b {
		case 0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3:
		case 0xc4, 0xc5, 0x62:
			return true
		case 0x8f:
			return i+1 < len(p) && p[i+1]>>3&7 != 0
		default:
			return false
		}
	}
	return false
}
