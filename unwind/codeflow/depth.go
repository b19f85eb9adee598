package codeflow

import (
	"errors"

	"pg_stat_backtrace/unwind/disasm"
)

// Errors that callers branch on with errors.Is.
var (
	// ErrUnknown means that the distance is not fixed at the address: the function moves its stack pointer by amounts
	// that are unknown.
	ErrUnknown = errors.New("depth: the frame's size is not fixed")
	// ErrUnreached means that no path to the address was found.
	ErrUnreached = errors.New("depth: no path to the address")
	// ErrCode means that an instruction could not be decoded, or that there is no code, or too much.
	ErrCode = disasm.ErrX86Code
)

// Anchor is the call frame information about the canonical frame address (CFA) at an instruction.
type Anchor struct {
	// Base is the register from which the CFA is computed.
	Base Base
	// Offset is the CFA less the base register.
	Offset int64
}

// Base is the register by which the CFA is given.
type Base uint8

// The bases that matter here.
const (
	Other        Base = iota // another register, an expression, or unknown
	StackPointer             // the distance is known
	FramePointer             // the frame pointer is the CFA less Offset
)

// Function is the code to follow.
type Function struct {
	// Start is the address of Code[0], which must be the function's entry.
	Start uint64
	Code  []byte
	// Anchor is called once for each instruction, in ascending order.
	Anchor func(addr uint64) Anchor
}

// Limits of the analysis.
const (
	MaxCode   = 256 << 10 // bytes of a function
	maxValues = 4         // distances at one instruction; more are not useful
)
