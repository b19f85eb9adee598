package functrace

import (
	"encoding/binary"
	"fmt"

	"pg_stat_backtrace/unwind/disasm"
)

// lengthA64 is the length of an instruction in bytes, and stackA64 the number of the stack pointer's register.
const (
	lengthA64 = disasm.LengthA64
	stackA64  = disasm.A64SP
)

// instructionNOP is the instruction that does nothing, which the kernel emulates.
const instructionNOP = 0xd503201f

// functionA64 is the code of a function: an instruction for each word of 4 bytes.
type functionA64 []disasm.Instruction

// chooseA64 chooses the first instruction that every call passes once, see ChoosePoint. It does not prefer an instruction that the
// kernel emulates, since the first instructions of most functions are not emulated.
func chooseA64(code []byte, o PointOptions) (Point, error) {
	f := decodeA64(code)
	if len(f) == 0 {
		return Point{}, ErrCode
	}
	first := 0
	if o.Go {
		first = f.behindStackCheck()
	}
	switch {
	case first >= len(f):
		return Point{}, fmt.Errorf("%w: nothing behind the check of the stack", ErrCode)
	case f.loops(first):
		return Point{}, ErrLoop
	}
	pushed, intact := int64(0), true
	for i := range f[:first] {
		pushed, intact = f.effect(i, pushed, intact)
	}
	point := func(i int) Point {
		at := code[i*lengthA64:]
		return Point{
			Offset: uint64(i) * lengthA64, Emulated: binary.LittleEndian.Uint32(at) == instructionNOP,
			Pushed: pushed, Arguments: intact,
		}
	}
	switch {
	case o.Arguments && !intact:
		return Point{}, fmt.Errorf("%w: the arguments are overwritten", ErrCode)
	case o.Return && pushed != 0:
		return Point{}, fmt.Errorf("%w: the stack pointer is changed", ErrCode)
	}
	best := point(first)
	if !o.Go {
		return best, nil
	}
	for i := first; i < min(len(f), first+maxPrologue); i++ {
		switch {
		case o.Arguments && !intact, o.Return && pushed != 0, i > first && f.loops(i):
			return best, nil
		case !restarts(code[i*lengthA64:]):
			return point(i), nil
		case f[i].Flow != disasm.Next:
			return best, nil
		}
		pushed, intact = f.effect(i, pushed, intact)
	}
	return best, nil
}

// restarts reports whether an instruction of a Go program may run again when the goroutine is preempted. If Go's assembler needs
// an address or a constant in R27, it makes several machine instructions of one, and after a preemption between them Go starts
// again at the first one. All of these instructions contain the number of R27. restarts is also true for an instruction with
// the same bits in an immediate value.
func restarts(code []byte) bool {
	const temporary = 27
	w := binary.LittleEndian.Uint32(code)
	for _, shift := range []uint{0, 5, 10, 16} {
		if w>>shift&31 == temporary {
			return true
		}
	}
	return false
}

// effect returns the state after instruction i: the distance of the stack pointer from its first value, -1 if it is not known,
// and whether registers still have the arguments. pushed and intact are the state before it.
func (f functionA64) effect(i int, pushed int64, intact bool) (int64, bool) {
	if f[i].Writes&(1<<stackA64) != 0 {
		pushed = -1
	}
	return pushed, intact && f[i].Writes&argumentsA64 == 0
}

// argumentsA64 are the registers that pass arguments: X0 to X7 in C, X0 to X15 in Go.
const argumentsA64 = 1<<16 - 1

// decodeA64 decodes a function. A word that is not a known instruction is regarded as data, which ends the code before it.
func decodeA64(code []byte) (f functionA64) {
	code = code[:min(len(code), maxCode)]
	for ; len(code) >= lengthA64; code = code[lengthA64:] {
		x, err := disasm.DecodeA64(code)
		if err != nil {
			x = disasm.New(lengthA64)
			x.Flow = disasm.Ends
		}
		f = append(f, x)
	}
	return f
}

// target returns the index of the instruction to which the direct jump, branch or call i goes. The index may be outside of the
// function.
func (f functionA64) target(i int) int { return i + int(f[i].Target/lengthA64) }

// behindStackCheck returns the index of the first instruction after the check whether a Go function needs more stack; 0:
// there is no check. The check ends with a branch to code at the end of the function, which calls Go's run time and then
// jumps to the function's beginning.
func (f functionA64) behindStackCheck() (first int) {
	for i := range f[:min(len(f), maxPrologue)] {
		switch {
		case f[i].Flow == disasm.Branch && f.growsStack(f.target(i)):
			first = i + 1
		case f[i].Flow != disasm.Next:
			return first
		}
	}
	return first
}

// growsStack reports whether the code from an instruction on makes exactly one call and then jumps to the function's beginning.
func (f functionA64) growsStack(from int) bool {
	calls := 0
	for i := max(from, 0); from >= 0 && i < len(f); i++ {
		switch f[i].Flow {
		case disasm.Next:
		case disasm.Call:
			calls++
		case disasm.Jump:
			return calls == 1 && f.target(i) == 0
		case disasm.Branch, disasm.Return, disasm.Ends, disasm.Unknown:
			return false
		}
	}
	return false
}

// loops reports whether the function jumps to the instruction with index to, so that a call may pass this instruction several
// times. A tail call of the function itself jumps too, but is a new call. If the instruction pushes to the stack, all jumps to it
// are tail calls: a loop would push in each pass.
func (f functionA64) loops(to int) bool {
	if f.pushes(to) {
		return false
	}
	for i := range f {
		if (f[i].Flow == disasm.Jump || f[i].Flow == disasm.Branch) && f[i].Direct && f.target(i) == to {
			return true
		}
	}
	return false
}

// pushes reports whether an instruction changes the stack pointer. If it is a hint such as PACIASP, the next one is checked.
func (f functionA64) pushes(i int) bool {
	const stack = 1 << stackA64
	if f[i].Writes == 0 && f[i].Flow == disasm.Next && f[i].Access.Size == 0 && i+1 < len(f) {
		i++
	}
	return f[i].Writes&stack != 0
}

func atA64(code []byte, offset uint64) (p Point, found bool) {
	return Point{Offset: offset, Pushed: -1}, offset%lengthA64 == 0 && offset+lengthA64 <= uint64(len(code))
}
