package codeflow

import (
	"errors"

	"pg_stat_backtrace/unwind/disasm"
)

// Errors that callers branch on with errors.Is.
var (
	// ErrUnknown means that the distance from the stack pointer to the CFA is unknown at the address: the function
	// moves its stack pointer by unknown amounts.
	ErrUnknown = errors.New("depth: the frame's size is not fixed")
	// ErrUnreached means that no path from the function's entry to the address was found.
	ErrUnreached = errors.New("depth: no path to the address")
	// ErrCode means that an instruction could not be decoded, or that there is no code, or more than MaxCode bytes.
	ErrCode = disasm.ErrX86Code
)

// Anchor is the rule for the canonical frame address (CFA) at an instruction, from call frame information.
type Anchor struct {
	// Base is the register from which the CFA is computed.
	Base Base
	// Offset is the CFA minus the value of the base register, in bytes.
	Offset int64
}

// Base is the register from which the CFA is computed.
type Base uint8

// The values of Base.
const (
	Other        Base = iota // another register, an expression, or unknown
	StackPointer             // Offset is the distance from the stack pointer to the CFA
	FramePointer             // the frame pointer is the CFA minus Offset
)

// Function is the code of a function, with its call frame information.
type Function struct {
	// Start is the address of Code[0], which must be the function's entry.
	Start uint64
	Code  []byte
	// Anchor returns the CFA's rule at an address. It is called once for each instruction, in ascending order.
	Anchor func(addr uint64) Anchor
}

// Limits of the analysis.
const (
	MaxCode   = 256 << 10 // bytes of a function
	maxValues = 4         // distances at one instruction; with more the result is unknown
)
