// Package codeflow finds the caller of a function from the function's instructions, in two ways.
//
// Follow executes the rest of the function symbolically. It follows the instructions from the frame's program counter
// to the function's return, with the frame's registers and stack. The result is the registers that the caller will have.
//
// Every function that returns contains the code that removes its frame. So Follow needs no call frame information, no
// frame pointer, and no start address of the function. It is the last resort for code without unwind information:
// assembly, and the C run-time's start and end of each library (.init, .fini, deregister_tm_clones).
//
// The package relies on the ABI (x86-64 psABI, 3.2.1; AAPCS64, 6.1.1). A call returns with the stack pointer and the
// callee-saved registers unchanged. Only the function itself writes to its frame through a pointer.
//
// One error remains possible. After a call that never returns, the code of another function may follow. The end of that
// function then looks like the end of this function. The package follows directly called functions to see whether they
// return. For other calls it cannot do so, except where it knows the end of the calling function. Callers must verify
// the results by other means.
//
// Function follows all instructions of a function (depth.go, x86-64 only). Its method At finds the distance from the
// stack pointer to the canonical frame address (CFA) at one instruction. If call frame information defines the CFA by
// the frame pointer, it does not contain this distance. If the stack pointer is known and the frame pointer is not, the
// distance gives the frame pointer.
//
// The package does not depend on processes or images. Package disasm decodes the instructions. The type machine
// contains all other differences between architectures. ppc64le is not supported here, because its ABI requires a back
// chain.
package codeflow

import (
	"errors"
	"fmt"
)

// Errors that callers branch on with errors.Is.
var (
	// ErrAmbiguous means that two paths through the code give different return addresses or stack pointers.
	ErrAmbiguous = errors.New("epilogue: the stack pointer depends on the way that is taken")
	// ErrNoReturn means that no path to a return was found.
	ErrNoReturn = errors.New("epilogue: no way to a return")
	// ErrNeverReturns means that all paths were followed to their ends, and none returns. It wraps ErrNoReturn.
	ErrNeverReturns = fmt.Errorf("%w, nor can there be one", ErrNoReturn)
	// ErrMemory means that memory with the return address, or with a value that leads to it, is unknown.
	ErrMemory = errors.New("epilogue: no return address")
	// ErrTooLong means that the paths are longer than the limits or the budget allow.
	ErrTooLong = errors.New("epilogue: too much code")
)

// Code gives access to code and to known facts about it, by address in memory.
type Code interface {
	// Bytes returns the code at an address: as many bytes as the constant Ahead, or fewer at the end of the code.
	Bytes(addr uint64) []byte
	// Covered reports whether call frame information covers an address. entry is set if, by this information, the
	// return address is where a call stores it, as at a function's entry.
	Covered(addr uint64) (covered, entry bool)
	// Stub reports whether the code at an address only jumps to a function of another image. For a stub, Returns
	// reports whether this function may return.
	Stub(addr uint64) bool
	// Ends reports whether a function is known to end right before an address. If its last instruction is a call, the
	// called function never returns.
	Ends(addr uint64) bool
	// Returns reports whether the function that begins at an address may return. known is false if this is unknown:
	// there was no call of Remember, and the function is no stub.
	Returns(entry uint64) (returns, known bool)
	// Remember stores whether a function may return. Finding this out is slow, and the result never changes.
	Remember(entry uint64, returns bool)
}

// Memory gives access to the known part of the process's memory.
type Memory interface {
	// Word reads eight bytes. The result is false if they are unknown.
	Word(addr uint64) (uint64, bool)
}

// Limits of the analysis.
const (
	maxSteps  = 1 << 14 // instructions, including repetitions
	maxBehind = 1024    // instructions after the first path that returns
	maxStores = 32      // writes to known addresses on one path
	maxNested = 4       // depth of nested calls that are followed to see whether they return
	maxCalled = 2048    // different instructions of one called function
	maxLooked = 1 << 15 // instructions of all called functions together, for one frame
)
