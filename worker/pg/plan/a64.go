package plan

import "encoding/binary"

// Instructions of aarch64, without their registers.
const (
	a64Length     = 4
	a64Call       = 0x94000000 // bl
	a64CallMask   = 0xfc000000
	a64CallBy     = 0xd63f0000 // blr
	a64JumpBy     = 0xd61f0000 // br
	a64ByMask     = 0xfffffc1f
	a64Load       = 0xf9400000 // ldr of 8 bytes, with an offset
	a64Move       = 0xaa0003e0 // mov x0, xM
	a64MoveMask   = 0xffe0ffff
	a64BranchMask = 0x1c000000 // all branches, calls and system instructions have the value a64Branch
	a64Branch     = 0x14000000
)

// callsNodeA64 is callsNode for aarch64. pc is the return address in the frame.
func (r *reader) callsNodeA64(pc uint64) bool {
	const before = 10 // instructions
	var c [before * a64Length]byte
	if pc%a64Length != 0 || !r.read(pc-uint64(len(c)), c[:]) {
		return false
	}
	words := wordsA64(c[:])
	field := uint32(r.PlanState.ExecProcNode.Int()) // an offset fits into the instruction
	last := words[before-1]
	if last&a64ByMask == a64CallBy {
		return passesItself(words, last>>5&0x1f, field)
	}
	if last&a64CallMask != a64Call {
		return false
	}
	const unused = 6
	distance := int64(int32(last<<unused)>>unused) * a64Length       // signed, of 26 bits
	return r.isExecProcNodeA64(pc-a64Length+uint64(distance), field) // a negative distance wraps
}

// isExecProcNodeA64 reports whether the function at addr is ExecProcNode, which jumps to the address in the given field
// of its argument.
func (r *reader) isExecProcNodeA64(addr uint64, field uint32) bool {
	var c [16 * a64Length]byte
	if addr%a64Length != 0 || !within(r.stack.Code, addr) || !r.read(addr, c[:]) {
		return false
	}
	words := wordsA64(c[:])
	for i, w := range words {
		if w&a64ByMask == a64JumpBy {
			return passesItself(words[:i+1], w>>5&0x1f, field)
		}
	}
	return false
}

func wordsA64(c []byte) []uint32 {
	out := make([]uint32, 0, len(c)/a64Length)
	for ; len(c) >= a64Length; c = c[a64Length:] {
		out = append(out, binary.LittleEndian.Uint32(c))
	}
	return out
}

// passesItself reports whether the last instruction calls a function through register target, which was loaded from the
// field of a structure whose address is also the first argument, in x0. Calls through tables of functions, such as those of
// a tuple slot, load the address from another structure than the argument.
func passesItself(words []uint32, target, field uint32) bool {
	const unknown = 32
	argument, base := uint32(unknown), uint32(unknown)
	for i := len(words) - 2; i >= 0; i-- {
		w := words[i]
		written := w & 0x1f
		switch {
		case w&a64MoveMask == a64Move:
			if argument == unknown {
				argument = w >> 16 & 0x1f
			}
		case base == unknown && w == a64Load|field/wordSize<<10|w&0x3ff && written == target:
			base = w >> 5 & 0x1f
			if argument == unknown && base == 0 {
				return true // x0 was not written since
			}
		case w&a64BranchMask == a64Branch, base == unknown && written == target, argument == unknown && written == 0:
			return false
		case base != unknown && (written == base || written == argument):
			return false // the registers could differ
		}
		if argument != unknown && base != unknown {
			return argument == base
		}
	}
	return false
}
