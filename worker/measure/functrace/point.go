package functrace

import (
	"debug/elf"
	"errors"
	"fmt"
)

// Point is an instruction of a function.
type Point struct {
	// Offset is the distance from the function's first instruction in bytes.
	Offset uint64
	// Emulated: the kernel emulates the instruction. Otherwise it single-steps it.
	Emulated bool
	// Pushed is how many bytes the stack pointer is below its value at the first instruction; -1: not known.
	Pushed int64
	// Arguments: the registers that pass arguments still have them.
	Arguments bool
	// Text is the instruction.
	Text string
}

// PointOptions say what the probe needs.
type PointOptions struct {
	// Go: the function is Go's. Its first instructions may run twice in a call, if the stack has to grow.
	Go bool
	// Arguments: the arguments are read.
	Arguments bool
	// Return: the return is probed too. The stack pointer must point to the return address.
	Return bool
}

// Errors of Choose.
var (
	// ErrArchitecture means that code of this architecture is not understood.
	ErrArchitecture = errors.New("functions of this architecture cannot be traced")
	// ErrCode means that the code was not understood.
	ErrCode = errors.New("code not understood")
	// ErrLoop means that no instruction is passed exactly once in each call.
	ErrLoop = errors.New("the function begins with a loop")
)

// instructionSets has the functions that understand the code of each architecture.
//
//nolint:gochecknoglobals // a table
var instructionSets = map[elf.Machine]struct {
	choose func(code []byte, o PointOptions) (Point, error)
	at     func(code []byte, offset uint64) (p Point, found bool)
}{
	elf.EM_X86_64:  {chooseX86, atX86},
	elf.EM_AARCH64: {chooseA64, atA64},
}

// ChoosePoint chooses an instruction of a function, of which code has all bytes as far as they are known.
func ChoosePoint(machine elf.Machine, code []byte, o PointOptions) (Point, error) {
	set, ok := instructionSets[machine]
	if !ok {
		return Point{}, fmt.Errorf("%w (%s)", ErrArchitecture, machine)
	}
	return set.choose(code, o)
}

// PointAt returns the instruction at an offset of a function, if one begins there.
func PointAt(machine elf.Machine, code []byte, offset uint64) (Point, error) {
	set, ok := instructionSets[machine]
	if !ok {
		return Point{}, fmt.Errorf("%w (%s)", ErrArchitecture, machine)
	}
	p, found := set.at(code, offset)
	if !found {
		return Point{}, fmt.Errorf("no instruction begins %d bytes behind the start of the function", offset)
	}
	return p, nil
}

func atX86(code []byte, offset uint64) (p Point, found bool) {
	f := decodeX86(code)
	for i := range f.list {
		if x := &f.list[i]; uint64(x.at) == offset {
			return Point{Offset: offset, Emulated: x.emulated(), Pushed: -1, Text: x.text()}, true
		}
	}
	return Point{}, false
}
