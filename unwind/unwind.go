// Package unwind walks a call stack: registers and memory in, frames out.
//
// Package unwind is a pure function of its input. It does not depend on processes, the clock, files or logs. So the
// same code unwinds a snapshot of a live process and an ELF core file, and tests of every architecture run on any host.
// Package symbol gives the frames their names.
package unwind

import (
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/golang"
)

// DefaultMaxFrames bounds a walk when Unwinder.MaxFrames is zero.
const DefaultMaxFrames = 256

// maxStackSwitches limits how often a walk may move to another stack. Only a signal frame, and functions of Go's run
// time that switch stacks, may do this. The limit ends a cycle through alternate stacks.
const maxStackSwitches = 64

// maxInstructions limits the instructions that a walk follows for frames without call frame information. Following so
// many takes half a second; a frame takes some hundreds of instructions.
const maxInstructions = 1 << 19

// A Method says how a frame was found.
type Method uint8

// The ways to find a frame, the most reliable first.
const (
	// ByRegisters is the innermost frame: its PC comes from the thread's registers.
	ByRegisters Method = iota
	// ByCFI frames follow from call frame information.
	ByCFI
	// ByFramePointer frames follow from a saved frame pointer, or an ABI's back chain, if no call frame information
	// covers the callee. If the callee has not yet saved the frame pointer, the walk skips the callee's caller.
	ByFramePointer
	// ByRecovery frames follow from call frame information that needs the frame pointer. The value of the frame pointer
	// was unknown, and the walk found the only value that leads to the stack's base.
	ByRecovery
	// ByReturnAddress frames have called an address without code, for example through a bad pointer. They are found by
	// the return address that the call has stored.
	ByReturnAddress
	// ByReturnRegister frames are callers of a function without call frame information, found by the link register.
	ByReturnRegister
	// ByGoTable frames follow from the table that Go's linker creates for Go's stack traces. They are as certain as
	// frames from call frame information.
	ByGoTable
	// BySignalFrame frames were interrupted by a signal. The kernel saved their registers.
	BySignalFrame
	// ByInstructions frames follow from the instructions of the callee up to its return, in code without call frame
	// information. The walk from the frame leads to the stack's base.
	ByInstructions
	// ByReturnProbe frames are callers of a function whose return address a return probe has replaced. They are found
	// by their call of the function. If the caller may have called it at several places, the frame is the caller's
	// caller.
	ByReturnProbe
	// ByCall frames are callers of a function whose return address is in an unknown register. They are found by their
	// call of the function.
	ByCall
)

// Frame is one call of a function on the stack.
type Frame struct {
	// PC is the address at which the frame will continue: the thread's program counter, an interrupted address, or a
	// return address.
	PC uint64
	// CFA is the canonical frame address, the value of the stack pointer in
	// the caller before the call; 0 for the frame at which a walk stopped.
	CFA uint64
	// Exact is set when PC itself belongs to the function: in the innermost frame and in a frame that a signal
	// interrupted. A return address may already lie in the next function, if the call was the last instruction.
	Exact bool
	// Signal is set when the frame is a signal trampoline.
	Signal bool
	// Method says how the frame was found.
	Method Method
}

// Lookup is the address for looking up the frame's function, line and call frame information: PC, or PC-1 for a return
// address. A signal trampoline was not called, so its PC, which is its first byte, needs no correction.
func (f Frame) Lookup() uint64 {
	if f.Exact || f.Signal {
		return f.PC
	}
	return f.PC - 1
}

// Module is the unwinder's data about the image that contains an address.
type Module struct {
	// Bias is the load bias: address in memory minus address in the image.
	Bias uint64
	// CFI is the image's call frame information, nil if it has none.
	CFI *cfi.Table
	// Go is the function table of a Go program or library, else nil. The walk prefers the table where it covers an
	// address, because the table marks stack switches, and Go's call frame information does not.
	Go *golang.Table
	// Code reads the image's instructions; nil: they cannot be read. The walk uses them for frames without call frame
	// information, for registers with unknown values, and to check that a call precedes a return address.
	Code ImageCode
	// Start is the link-time address where a program begins. The code there has no caller. Start is 0 if it is unknown,
	// or if the image is a library.
	Start uint64
	// Linker is set for a dynamic linker. Its code at Start calls functions that return, for example the libraries'
	// constructors.
	Linker bool
	// CodeCache caches the results of decoding the image's instructions. If it is nil, they are decoded each time.
	CodeCache *CodeCache
}

// ImageCode gives access to the instructions of an image by link-time address. The interface Code gives access by
// address in memory.
type ImageCode interface {
	// Code returns n bytes of code at a link-time address, or an error if not all of these bytes are code.
	Code(addr, n uint64) ([]byte, error)
}

// Modules gives the images and other executable mappings of an address space.
type Modules interface {
	// Find returns the module whose executable mapping contains addr. For code without a readable image (JIT) it
	// returns a Module with a nil CFI.
	Find(addr uint64) (Module, bool)
}

// Unwinder walks stacks of one architecture. It keeps no state between walks and may be used concurrently.
type Unwinder struct {
	// Arch describes the registers; nil is not allowed.
	Arch *arch.Arch
	// MaxFrames bounds a walk; 0 means DefaultMaxFrames.
	MaxFrames int
	// Resumes is set if the registers belong to a coroutine that is not running. Its program counter is then a return
	// address, as in every outer frame.
	Resumes bool
	// Final is set if the caller will not read missing memory and repeat the walk. If Final is not set, the walk ends
	// with NoMemory where following instructions needs more memory. If it is set, the walk tries the chain of frame
	// pointers instead.
	Final bool
	// Kept, if it is not nil, gets the registers of each frame: the values at the frame's call of the next inner frame.
	// Registers that calls do not preserve are unknown.
	Kept *[]arch.Registers
}

// Unwind appends the frames of the thread with these registers to dst, innermost first, and returns the reason why the
// walk stopped. If a problem ends the walk, the result contains the frames found before it. If the registers have a PC,
// there is at least one frame.
func (u *Unwinder) Unwind(dst []Frame, regs arch.Registers, mem cfi.Memory, modules Modules) ([]Frame, Stop) {
	pc, ok := regs.Get(u.Arch.PC)
	if !ok {
		return dst, Stop{Reason: NoRegisters}
	}
	w := walk{
		arch: u.Arch, mem: recorder{Memory: mem}, modules: modules, regs: regs, instructions: maxInstructions,
		final: u.Final,
	}
	limit := u.MaxFrames
	if limit <= 0 {
		limit = DefaultMaxFrames
	}
	frame := Frame{PC: pc, Exact: !u.Resumes, Method: ByRegisters}
	for n := 1; ; n++ {
		dst = append(dst, frame)
		if u.Kept != nil {
			*u.Kept = append(*u.Kept, w.regs)
		}
		next, stop := w.step(&dst[len(dst)-1])
		if stop.Reason != running {
			return dst, stop
		}
		if n >= limit {
			return dst, Stop{Reason: MaxFrames, Address: next.PC}
		}
		frame = next
	}
}

// walk is the state of one call of Unwind.
type walk struct {
	arch     *arch.Arch
	mem      recorder
	modules  Modules
	regs     arch.Registers // registers of the frame whose caller the walk searches
	low      uint64         // a lower bound of the stack pointer, if regs does not have it
	row      cfi.Row
	switches int
	// scheduling is set while the walk is on a stack on which Go's scheduler runs.
	scheduling bool
	// calledBack is set if the walk has already passed a call from C to Go.
	calledBack bool

	// chosen are the candidates that the walk has accepted as the code compiled at run time, each for its addresses.
	chosen []Candidate

	trial bool // this walk is a trial of a register's value or of a caller, which may turn out to be wrong
	// trialState is the result of the trial of a frame found by instructions. The walk then repeats the path of the
	// trial, so the result also applies to the frames farther out.
	trialState trialState
	// followed are the results of following instructions, nil until the first result. A walk repeats the path of its
	// trial and uses these results again.
	followed *[]followed
	// instructions is the remaining budget of instructions to follow.
	instructions int
	// functions caches the calls that each searched function contains, by the function's start address.
	functions map[uint64][]call
	final     bool // a copy of Unwinder.Final
	// wanting is the beginning of missing memory that a frame's instructions, or the frame's trial, need. It is 0 if no
	// memory is missing.
	wanting uint64
	// settled is set in a function without call frame information whose instructions never return, and at the start of
	// a program. The function's caller does not matter then, so a trial ends there as proven.
	settled bool
}

// recorder records the last address that could not be read in the field missing.
type recorder struct {
	cfi.Memory

	missing uint64
}

// Word implements cfi.Memory.
func (r *recorder) Word(addr uint64) (uint64, bool) {
	v, ok := r.Memory.Word(addr)
	if !ok {
		r.missing = addr
	}
	return v, ok
}

// Read implements cfi.Memory.
func (r *recorder) Read(addr uint64, size int) (uint64, bool) {
	v, ok := r.Memory.Read(addr, size)
	if !ok {
		r.missing = addr
	}
	return v, ok
}
