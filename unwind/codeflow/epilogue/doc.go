// Package epilogue finds a function's caller by doing what the function is about to do: it follows the instructions
// from where a frame stands to where the function returns, with the frame's own registers and stack, and has then what
// the caller will have.
//
// Whoever wrote a function that returns has written down how its frame is left. That takes no call frame information,
// no frame pointer and no knowledge of where the function begins; it is what is left where a stack leads through code
// that has nothing else: the C run-time's start and end of each library (.init, .fini, deregister_tm_clones), assembly.
//
// What is taken for granted is the ABI (x86-64 psABI, 3.2.1; AAPCS64, 6.1.1): a call returns with the stack pointer and
// with the registers that it is to preserve as they were, and nobody but its owner writes to a frame through a pointer.
// One illusion remains: behind a call that never returns another function may follow, whose end is not this one's. A
// function that is called directly is followed to see whether it returns; of others nothing is known, unless it is
// known where the calling function ends. The caller has to prove what is found here by other means.
//
// The package knows neither processes nor images. Packages x86, a64, rv64 and zarch decode the instructions that are
// followed, and what else differs is a machine. ppc64le is not among them: its ABI demands a back chain.
package epilogue

import (
	"errors"
	"fmt"
)

// Errors that callers branch on with errors.Is.
var (
	// ErrAmbiguous says that two ways through the code do not agree.
	ErrAmbiguous = errors.New("epilogue: the stack pointer depends on the way that is taken")
	// ErrNoReturn says that no way was found that returns.
	ErrNoReturn = errors.New("epilogue: no way to a return")
	// ErrNeverReturns says that all ways were followed to their ends, and none returns. It is an ErrNoReturn.
	ErrNeverReturns = fmt.Errorf("%w, nor can there be one", ErrNoReturn)
	// ErrMemory says that the return address is not in the memory that is known.
	ErrMemory = errors.New("epilogue: no return address")
	// ErrTooLong says that the code was not followed to its end.
	ErrTooLong = errors.New("epilogue: too much code")
)

// Code is what is known of the code.
type Code interface {
	// Bytes returns the code at an address: Ahead bytes, or as many as there are; none if there is no code.
	Bytes(addr uint64) []byte
	// Covered reports whether there is better knowledge of the code at an address than its instructions, and if so,
	// whether by that the return address is where a call leaves it, as where a function begins.
	Covered(addr uint64) (covered, entry bool)
	// Stub reports whether the code at an address does nothing but go on in a function of another image, of which
	// Returns knows whether it may return.
	Stub(addr uint64) bool
	// Ends reports whether a function is known to end before an address: what its last instruction calls never returns.
	Ends(addr uint64) bool
	// Returns is what Remember was told of the function that begins at an address, or what is known of it otherwise:
	// whether it may return.
	Returns(entry uint64) (returns, known bool)
	// Remember is told whether a function may return: that takes the longest to find out, and stays as it is.
	Remember(entry uint64, returns bool)
}

// Memory is what is known of the process's memory.
type Memory interface {
	// Word reads eight bytes; false if they are not known.
	Word(addr uint64) (uint64, bool)
}

// Bounds of what is followed.
const (
	maxSteps  = 1 << 14 // instructions, each time that one is met counted
	maxBehind = 1024    // of them after the first way that returns
	maxStores = 32      // places of the stack that the code has written to
	maxNested = 4       // calls within calls that are followed to see whether they return
	maxCalled = 2048    // instructions of one function that is called
	maxLooked = 1 << 15 // of all of them, for one frame
)
