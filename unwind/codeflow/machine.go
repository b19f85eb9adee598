package codeflow

import (
	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/disasm"
)

// machine contains the differences between architectures.
type machine struct {
	pc, sp int
	link   int // register in which a call leaves the return address; none: the call pushes it
	// scratch are the registers that a call may change.
	scratch []int
	// decode decodes the instruction at an address.
	decode func(p []byte, addr uint64, x *instruction) error
	// change applies the effect of an instruction that does not end the path. It is false if the effect is not
	// supported.
	change func(s *state, mem Memory, x *instruction) bool
	// returnsTo returns the caller's program counter and stack pointer after a return, or after a jump to the
	// beginning of another function. It is false if the return address is unknown.
	returnsTo func(m *machine, s *state, mem Memory, x *instruction) (ra, sp uint64, ok bool)
}

// Ahead is how many bytes an instruction has at most.
const Ahead = disasm.LongestX86

// Follows reports whether the instructions of an architecture are followed.
func Follows(a *arch.Arch) bool { return machineOf(a) != nil }

const none = -1

// machineOf returns the machine of an architecture; nil: its instructions are not followed.
func machineOf(a *arch.Arch) *machine { return machines[a.Instructions] }

//nolint:gochecknoglobals // a table
var machines = [...]*machine{
	arch.Unfollowed: nil, arch.X86: &ofX86, arch.A64: &ofA64, arch.RV64: nil, arch.ZArch: nil,
}

// flow is where an instruction leads.
type flow uint8

const (
	on      flow = iota // to the next one
	jump                // elsewhere
	branch              // to the next one or elsewhere
	calls               // elsewhere, and back to the next one unless the called function never returns
	returns             // to the caller
	ends                // nowhere
	away                // to another function, it is not known which
	lost                // it is not known where
)

// instruction is an instruction of any architecture.
type instruction struct {
	flow     flow
	to, next uint64 // target of a jump or a call, 0 if unknown; the address behind the instruction
	x86      x86asm.Inst
	plain    disasm.Instruction // of an architecture that package disasm describes
}

// execute applies the effect of an instruction that falls through or branches. A register or word that it writes
// becomes unknown, except for the instructions that create and remove frames. It is false if the stack pointer
// becomes unknown.
func (w *follower) execute(s *state, x *instruction) bool {
	ok := w.machine.change(s, w.mem, x)
	_, known := s.regs.Get(w.machine.sp)
	return ok && known
}

func (s *state) set(reg int, value uint64, known bool) {
	if known {
		s.regs.Set(reg, value)
	} else {
		s.regs.Clear(reg)
	}
}
