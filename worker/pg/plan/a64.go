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
	a64Link       = 30 // the register with the return address
	a64Stack      = 31 // the stack pointer as a base
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
	target, _ := branchTargetA64(pc-a64Length, last)
	return r.isExecProcNodeA64(target, field)
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

// passesItself reports whether the last of the instructions calls a function through register target, which was loaded from
// the field of a structure whose address is also the first argument of the call, in x0. Calls through tables of functions,
// such as those of a tuple slot, load the address from another structure than the argument.
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

// directA64 returns the function that a frame calls directly (bl), or false if the frame makes no such call.
func (r *reader) directA64(f Frame) (target uint64, is bool) {
	var c [a64Length]byte
	at := f.PC - a64Length
	if f.Exact || !r.stack.A64 || f.PC%a64Length != 0 || !within(r.stack.Code, at) || !r.read(at, c[:]) {
		return 0, false
	}
	return branchTargetA64(at, binary.LittleEndian.Uint32(c[:]))
}

// branchTargetA64 returns the address to which the instruction w, at an address, branches, and whether w is a bl.
func branchTargetA64(at uint64, w uint32) (target uint64, is bool) {
	const unused = 6
	distance := int64(int32(w<<unused)>>unused) * a64Length // signed, of 26 bits
	return at + uint64(distance), w&a64CallMask == a64Call  // a negative distance wraps
}

// holdsA64 reports whether the function at start contains the return address pc. The function that contains pc has made a call, so
// it has stored its own return address (x30) before. If the only such store between start and pc is in the code with which the
// function at start begins, no other function begins in between.
func (r *reader) holdsA64(start, pc uint64) bool {
	const most = 16 << 10 // bytes of a function that are searched
	if start%a64Length != 0 || pc%a64Length != 0 || pc-start > most || !within(r.stack.Code, start) {
		return false
	}
	c := make([]byte, pc-start)
	if !r.read(start, c) {
		return false
	}
	stores, straight := 0, true
	for _, w := range wordsA64(c) {
		switch {
		case storesLink(w):
			if !straight {
				return false
			}
			stores++
		case w&a64BranchMask == a64Branch && !hintA64(w):
			straight = false
		}
	}
	return stores == 1
}

// hintA64 reports whether an instruction is a hint, such as bti or paciasp, with which functions begin.
func hintA64(w uint32) bool { return w&0xfffff01f == 0xd503201f }

// storesLink reports whether an instruction stores x30 in the stack: str, or stp as the second register.
func storesLink(w uint32) bool {
	if w>>5&0x1f != a64Stack {
		return false
	}
	switch w & 0xffc00000 {
	case 0xa9800000, 0xa9000000: // stp with and without write-back, 8 bytes each
		return w>>10&0x1f == a64Link || w&0x1f == a64Link
	case 0xf9000000: // str with an offset
		return w&0x1f == a64Link
	}
	return w&0xffe00c00 == 0xf8000c00 && w&0x1f == a64Link // str with write-back
}
