package unwind

import "fmt"

// A Reason says why a walk ended.
type Reason uint8

// The reasons for which a walk ends. Only EndOfStack means that the stack is complete.
const (
	running Reason = iota
	// EndOfStack: the frame has no caller according to its call frame information, as in _start and a thread's first
	// function.
	EndOfStack
	// MaxFrames: the walk has reached the maximum number of frames, and the stack has more.
	MaxFrames
	// NoRegisters: the thread's registers do not contain a program counter.
	NoRegisters
	// NoMemory: an address that a rule needs is not in the snapshot.
	NoMemory
	// NoProgress: the caller's frame would not lie beyond this frame. So the stack is corrupt, or the call frame
	// information or the chain of frame pointers is wrong.
	NoProgress
	// BadCFI: the call frame information is damaged, or contains rules that no compiler emits.
	BadCFI
	// NoCFI: no call frame information covers the address, and the frame pointer does not lead to a caller.
	NoCFI
	// NeverReturns: no call frame information covers the address, and no path in its code leads to a return. So the
	// instructions do not give the caller.
	NeverReturns
	// NoCode: the address lies in no executable mapping.
	NoCode
	// UnknownRegister: a rule needs a register with an unknown value. The Stop's Err is the reason why the value
	// could not be recovered.
	UnknownRegister
	// StackSwitch: a function of Go's run time has switched to another stack, and the previous stack is unknown.
	StackSwitch
	// Generated: the frame belongs to code that was compiled at run time and keeps no frame pointers. Its call frame
	// information is unknown, or may belong to other code.
	Generated
	// ReturnProbe: a return probe has replaced the frame's return address, and the caller could not be found by other
	// means.
	ReturnProbe
)

var reasonTexts = [...]string{
	running:      "still running",
	EndOfStack:   "end of stack",
	MaxFrames:    "more frames than max_frames",
	NoRegisters:  "no registers",
	NoMemory:     "stack memory not in the snapshot",
	NoProgress:   "stack does not grow outwards",
	BadCFI:       "unusable call frame information",
	NoCFI:        "no call frame information",
	NeverReturns: "no call frame information, and no way to a return,",
	NoCode:       "return address outside any code",

	UnknownRegister: "a register that is needed is not known",
	StackSwitch:     "switch of stacks that cannot be followed",
	Generated:       "code compiled at run time (JIT) without call frame information",
	ReturnProbe:     "a return probe (uretprobe) has replaced the return address",
}

// String returns a short English phrase.
func (r Reason) String() string {
	if int(r) < len(reasonTexts) {
		return reasonTexts[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// A Stop is the end of a walk.
type Stop struct {
	Reason Reason
	// Address is the address of memory or code to which the reason refers, or 0.
	Address uint64
	// Err is the cause: an error of package cfi, or the reason why a register was not recovered. It may be nil.
	Err error
}

// Whole reports whether the walk reached the end of the stack.
func (s Stop) Whole() bool { return s.Reason == EndOfStack }

// String returns the reason and the address to which it refers.
func (s Stop) String() string {
	if s.Reason == UnknownRegister && s.Err != nil {
		return fmt.Sprintf("%s: %v", s.Reason, s.Err)
	}
	if s.Address == 0 {
		return s.Reason.String()
	}
	return fmt.Sprintf("%s at 0x%x", s.Reason, s.Address)
}
