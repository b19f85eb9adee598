package functrace

import (
	"debug/elf"
	"errors"
	"fmt"
)

// Point is an instruction of a function at which the function can be probed.
type Point struct {
	// Offset is the distance of the instruction from the function's first instruction, in bytes.
	Offset uint64
	// Emulated is set if the kernel emulates the instruction at a probe. Otherwise the kernel single-steps the instruction.
	Emulated bool
	// Pushed is the number of bytes by which the stack pointer is below its value at the first instruction; -1: not known.
	Pushed int64
	// Arguments is set if the registers that pass arguments still have the arguments.
	Arguments bool
	// Text is the instruction in assembly language; empty: not known.
	Text string
}

// PointOptions describe the function and the use of the probe.
type PointOptions struct {
	// Go is set for a function written in Go. Its first instructions may run twice in a call, if the stack must grow.
	Go bool
	// Arguments is set if the probe reads arguments.
	Arguments bool
	// Return is set if the return is probed too. The stack pointer must then point to the return address.
	Return bool
}

// Errors of ChoosePoint.
var (
	// ErrArchitecture means that code of this architecture is not understood.
	ErrArchitecture = errors.New("functions of this architecture cannot be traced")
	// ErrCode means that the code was not understood.
	ErrCode = errors.New("code not understood")
	// ErrLoop means that no instruction is passed exactly once in each call.
	ErrLoop = errors.New("the function begins with a loop")
)

// instructionSets has the functions that decode the code of each architecture.
//
//nolint:gochecknoglobals // read only
var instructionSets = map[elf.Machine]struct {
	choose func(code []byte, o PointOptions) (Point, error)
	at     func(code []byte, offset uint64) (p Point, found bool)
}{
	elf.EM_X86_64:  {chooseX86, atX86},
	elf.EM_AARCH64: {chooseA64, atA64},
}

// ChoosePoint chooses the instruction at which a function is probed: each call passes it exactly once. code has the bytes of the
// function, as far as they are known. Errors wrap ErrArchitecture, ErrCode or ErrLoop.
func ChoosePoint(machine elf.Machine, code []byte, o PointOptions) (Point, error) {
	set, ok := instructionSets[machine]
	if !ok {
		return Point{}, fmt.Errorf("%w (%s)", ErrArchitecture, machine)
	}
	return set.choose(code, o)
}

// PointAt returns the instruction at an offset of a function. It returns an error if no instruction begins there, or
// ErrArchitecture.
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
