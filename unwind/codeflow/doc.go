// Package codeflow finds the caller of a function from the function's instructions, in two ways.
//
// Follow executes the rest of the function symbolically. It follows the instructions from the frame's program counter
// to the function's return, with the frame's registers and stack. The result is the registers that the caller will have.
//
// Every function that returns contains the code that removes its frame. This method needs no call frame information
// and no frame pointer. It also does not need the start address of the function. It is the last resort for code
// without unwind information: assembly, and the C run-time's start and end of each library (.init, .fini,
// deregister_tm_clones).
//
// The package relies on the ABI (x86-64 psABI, 3.2.1; AAPCS64, 6.1.1). A call returns with the stack pointer and the
// callee-saved registers unchanged. Only the function itself writes to its frame through a pointer.
//
// One error remains possible. Behind a call that never returns, the code of another function may follow, and its end
// is not the end of this function. The package follows directly called functions to see whether they return. It
// cannot do so for other calls, except where it knows the end of the calling function. Callers must verify the
// results by other means.
//
// Function follows all instructions of a function (depth.go, x86-64 only). It finds how far the stack pointer is from the
// canonical frame address (CFA) at one instruction. Call frame information does not contain this distance where it
// defines the CFA by the frame pointer. Where the stack pointer is known and the frame pointer is not, the distance gives
// the frame pointer.
//
// The package does not depend on processes or images. Package disasm decodes the instructions. The
// type machine holds all other differences between architectures. ppc64le is not supported here, because its ABI
// requires a back chain.
package codeflow

import (
	"errors"
	"fmt"
)

// Errors that callers branch on with errors.Is.
var (
	// ErrAmbiguous means that two paths through the code do not agree.
	ErrAmbiguous = errors.New("epilogue: the stack pointer depends on the way that is taken")
	// ErrNoReturn means that no path that returns was found.
	ErrNoReturn = errors.New("epilogue: no way to a return")
	// ErrNeverReturns means that all paths were followed to their ends, and none returns. It is an ErrNoReturn.
	ErrNeverReturns = fmt.Errorf("%w, nor can there be one", ErrNoReturn)
	// ErrMemory means that the return address is not in the known memory.
	ErrMemory = errors.New("epilogue: no return address")
	// ErrTooLong means that the code was not followed to its end.
	ErrTooLong = errors.New("epilogue: too much code")
)

// Code gives access to the code and to known facts about it.
type Code interface {
	// Bytes returns the code at an address: Ahead bytes, or fewer at the end of the code.
	Bytes(addr uint64) []byte
	// Covered reports whether better information than the instructions exists for the code at an address. entry is
	// set if, by this information, the return address is where a call leaves it, as at a function's beginning.
	Covered(addr uint64) (covered, entry bool)
	// Stub reports whether the code at an address only jumps to a function of another image. Returns then reports
	// whether that function may return.
	Stub(addr uint64) bool
	// Ends reports whether a function is known to end before an address. Its last instruction then calls a function
	// that never returns.
	Ends(addr uint64) bool
	// Returns reports whether the function that begins at an address may return, from an earlier call of Remember or
	// from other knowledge.
	Returns(entry uint64) (returns, known bool)
	// Remember stores whether a function may return. This is the slowest question to answer, and the answer never
	// changes.
	Remember(entry uint64, returns bool)
}

// Memory gives access to the known part of the process's memory.
type Memory interface {
	// Word reads eight bytes; false if they are not known.
	Word(addr uint64) (uint64, bool)
}

// Limits of the analysis.
const (
	maxSteps  = 1 << 14 // instructions, each time that one is met counted
	maxBehind = 1024    // of them after the first way that returns
	maxStores = 32      // places of the stack that the code has written to
	maxNested = 4       // calls within calls that are followed to see whether they return
	maxCalled = 2048    // instructions of one function that is called
	maxLooked = 1 << 15 // of all of them, for one frame
)
