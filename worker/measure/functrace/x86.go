package functrace

import (
	"fmt"
	"slices"

	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/disasm"
)

const (
	// maxCode bounds the bytes of a function that are searched for jumps. maxPrologue bounds the instructions from which the probed
	// one is chosen.
	maxCode     = 1 << 20
	maxPrologue = 24
	word        = 8
)

// instruction is an instruction of a function. Places are distances from the function's start, in bytes.
type instruction struct {
	x86asm.Inst

	at     int64
	code   []byte
	target int64 // place to which a direct jump, branch or call goes
	direct bool  // target is set
}

// function is the code of a function.
type function struct {
	list []instruction
	// targets are the places to which its direct jumps and branches go.
	targets []int64
}

// chooseX86 chooses an instruction, see ChoosePoint. It prefers an instruction that the kernel emulates.
func chooseX86(code []byte, o PointOptions) (Point, error) {
	f := decodeX86(code)
	if len(f.list) == 0 {
		return Point{}, ErrCode
	}
	first := 0
	if o.Go {
		first = f.behindStackCheck()
	}
	if first >= len(f.list) {
		return Point{}, fmt.Errorf("%w: nothing behind the check of the stack", ErrCode)
	}
	if first == 0 && f.loops() {
		return Point{}, ErrLoop
	}
	pushed, intact := int64(0), true
	for i := range f.list[:first] {
		pushed, intact = f.list[i].effect(pushed, intact, o.Go)
	}
	var best *Point
	for i := first; i < len(f.list) && i < first+maxPrologue; i++ {
		x := &f.list[i]
		p := Point{Offset: uint64(x.at), Emulated: x.emulated(), Pushed: pushed, Arguments: intact, Text: x.text()}
		suits := (!o.Arguments || intact) && (!o.Return || pushed == 0) && !f.reentered(f.list[first].at, x.at)
		switch {
		case suits && p.Emulated:
			return p, nil
		case suits && best == nil:
			best = &p
		}
		if x.ends() {
			break
		}
		pushed, intact = x.effect(pushed, intact, o.Go)
	}
	if best == nil {
		return Point{}, ErrLoop
	}
	return *best, nil
}

// decodeX86 decodes a function up to the first bytes that are not a known instruction.
func decodeX86(code []byte) (f function) {
	code = code[:min(len(code), maxCode)]
	for at := 0; at < len(code); {
		inst, err := disasm.DecodeX86(code[at:])
		if err != nil || inst.Len <= 0 {
			break
		}
		x := instruction{Inst: inst, at: int64(at), code: code[at : at+inst.Len]}
		if rel, ok := inst.Args[0].(x86asm.Rel); ok {
			x.target, x.direct = int64(at+inst.Len)+int64(rel), true
			if inst.Op != x86asm.CALL {
				f.targets = append(f.targets, x.target)
			}
		}
		f.list = append(f.list, x)
		at += inst.Len
	}
	return f
}

// loops reports whether the function jumps to its own beginning, so that a call may pass the beginning several times. A tail call
// of the function itself jumps too, but is a new call. If the function begins with a push, all jumps to its beginning are tail
// calls: a loop would push in each pass.
func (f *function) loops() bool {
	if first := &f.list[0]; first.Op == x86asm.PUSH || first.Op == x86asm.NOP && len(f.list) > 1 &&
		f.list[1].Op == x86asm.PUSH {
		return false
	}
	return f.reenteredAt(0)
}

// reentered reports whether a jump goes to an instruction after low and up to high, or to low if low is not the beginning.
func (f *function) reentered(low, high int64) bool {
	for _, t := range f.targets {
		if t > low && t <= high {
			return true
		}
	}
	return low > 0 && f.reenteredAt(low)
}

func (f *function) reenteredAt(at int64) bool {
	return slices.Contains(f.targets, at)
}

// behindStackCheck returns the index of the first instruction after the check whether a Go function needs more stack; 0:
// there is no check. The check ends with a branch to code at the end of the function, which calls Go's run time and then
// jumps to the function's beginning.
func (f *function) behindStackCheck() (first int) {
	for i := range f.list[:min(len(f.list), maxPrologue)] {
		x := &f.list[i]
		switch {
		case x.conditional() && x.direct && f.growsStack(x.target):
			first = i + 1
		case x.ends():
			return first
		}
	}
	return first
}

// growsStack reports whether the code from a place on makes exactly one call and then jumps to the function's beginning.
func (f *function) growsStack(from int64) bool {
	calls := 0
	for i := range f.list {
		x := &f.list[i]
		switch {
		case x.at < from:
		case x.Op == x86asm.CALL:
			calls++
		case x.Op == x86asm.JMP && x.direct && x.target == 0:
			return calls == 1
		case x.ends():
			return false
		}
	}
	return false
}

// conditional reports whether the instruction is a conditional jump.
func (x *instruction) conditional() bool {
	return x.code[0]&0xf0 == 0x70 || len(x.code) > 1 && x.code[0] == 0x0f && x.code[1]&0xf0 == 0x80
}

// ends reports whether some calls of the function may not reach the instruction after x, or may reach it with other values in
// registers.
func (x *instruction) ends() bool {
	switch x.Op { //nolint:exhaustive // others go on to the next instruction
	case x86asm.JMP, x86asm.RET, x86asm.CALL, x86asm.LOOP, x86asm.LOOPE, x86asm.LOOPNE, x86asm.JCXZ, x86asm.JECXZ,
		x86asm.JRCXZ, x86asm.UD2, x86asm.HLT, x86asm.INT, x86asm.SYSCALL:
		return true
	}
	return x.conditional()
}

// emulated reports whether the kernel emulates the instruction at a probe (arch/x86/kernel/uprobes.c): push of a register, nop of
// one byte, direct jumps, branches and calls. The kernel single-steps an instruction with prefixes, except a nop.
func (x *instruction) emulated() bool {
	c := x.code
	switch {
	case len(c) == 1 && c[0]&0xf8 == 0x50, len(c) == 2 && c[0] == 0x41 && c[1]&0xf8 == 0x50:
		return true
	case x.Op == x86asm.NOP && c[len(c)-1] == 0x90:
		return true
	case c[0] == 0xe8, c[0] == 0xe9, c[0] == 0xeb:
		return true
	}
	return x.conditional()
}

// text returns the instruction in the syntax of GNU tools, or its bytes if the decoder does not know it.
func (x *instruction) text() string {
	if x.Op == disasm.OtherX86 {
		return fmt.Sprintf("% x", x.code)
	}
	return x86asm.GNUSyntax(x.Inst, 0, nil)
}

// effect returns the state after the instruction: the distance of the stack pointer from its first value, -1 if it is not known,
// and whether registers still have the arguments. pushed and intact are the state before it.
func (x *instruction) effect(pushed int64, intact, golang bool) (int64, bool) {
	switch x.Op { //nolint:exhaustive // the code below handles others
	case x86asm.PUSH:
		if pushed >= 0 {
			pushed += word
		}
		return pushed, intact
	case x86asm.NOP, x86asm.CMP, x86asm.TEST:
		return pushed, intact
	case x86asm.SUB:
		if n, ok := x.Args[1].(x86asm.Imm); ok && x.Args[0] == x86asm.RSP {
			if pushed >= 0 {
				pushed += int64(n)
			}
			return pushed, intact
		}
	}
	if x.conditional() {
		return pushed, intact
	}
	reg, ok := x.Args[0].(x86asm.Reg)
	switch {
	case !ok:
		_, memory := x.Args[0].(x86asm.Mem)
		return pushed, intact && memory
	case wide(reg) == x86asm.RSP:
		return -1, intact
	}
	switch x.Op { //nolint:exhaustive // others may write registers that are not operands
	case x86asm.MOV, x86asm.LEA, x86asm.XOR, x86asm.SUB, x86asm.ADD, x86asm.AND, x86asm.OR, x86asm.MOVZX, x86asm.MOVSX,
		x86asm.MOVSXD, x86asm.SHL, x86asm.SHR, x86asm.SAR:
		return pushed, intact && !argument(wide(reg), golang)
	}
	return pushed, false
}

// argument reports whether a register passes arguments, in C or in Go.
func argument(r x86asm.Reg, golang bool) bool {
	switch r { //nolint:exhaustive // others pass no arguments
	case x86asm.RDI, x86asm.RSI, x86asm.RCX, x86asm.R8, x86asm.R9:
		return true
	case x86asm.RDX:
		return !golang
	case x86asm.RAX, x86asm.RBX, x86asm.R10, x86asm.R11:
		return golang
	}
	return false
}

// wide returns the register of 64 bits that contains a smaller register.
func wide(r x86asm.Reg) x86asm.Reg {
	switch {
	case r >= x86asm.AL && r <= x86asm.BL:
		return r - x86asm.AL + x86asm.RAX
	case r >= x86asm.AH && r <= x86asm.BH:
		return r - x86asm.AH + x86asm.RAX
	case r >= x86asm.SPB && r <= x86asm.DIB:
		return r - x86asm.SPB + x86asm.RSP
	case r >= x86asm.R8B && r <= x86asm.R15B:
		return r - x86asm.R8B + x86asm.R8
	case r >= x86asm.AX && r <= x86asm.R15W:
		return r - x86asm.AX + x86asm.RAX
	case r >= x86asm.EAX && r <= x86asm.R15L:
		return r - x86asm.EAX + x86asm.RAX
	}
	return r
}
