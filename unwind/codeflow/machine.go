package codeflow

import (
	"golang.org/x/arch/x86/x86asm"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/disasm"
)

// machine contains the differences between architectures.
type machine struct {
	pc, sp int
	link   int // register in which a call stores the return address; none: the call pushes the return address
	// scratch are the registers that a call may change.
	scratch []int
	// decode decodes the instruction at an address.
	decode func(p []byte, addr uint64, x *instruction) error
	// change applies the effect of an instruction that does not end the path. The result is false if the effect is not
	// supported.
	change func(s *state, mem Memory, x *instruction) bool
	// returnsTo returns the caller's program counter and stack pointer after a return, or after a jump to the beginning
	// of another function, which returns to the same caller. ok is false if the return address is unknown.
	returnsTo func(m *machine, s *state, mem Memory, x *instruction) (ra, sp uint64, ok bool)
}

// Ahead is the maximum length of an instruction in bytes.
const Ahead = disasm.LongestX86

// Follows reports whether this package follows the instructions of an architecture.
func Follows(a *arch.Arch) bool { return machineOf(a) != nil }

const none = -1

// machineOf returns the machine of an architecture; nil: its instructions are not followed.
func machineOf(a *arch.Arch) *machine { return machines[a.Instructions] }

//nolint:gochecknoglobals // a table
var machines = [...]*machine{
	arch.Unfollowed: nil, arch.X86: &ofX86, arch.A64: &ofA64, arch.RV64: nil, arch.ZArch: nil,
}

// flow says where the processor continues after an instruction.
type flow uint8

const (
	on      flow = iota // at the next instruction
	jump                // at the target
	branch              // at the next instruction, or at the target
	calls               // at the target, and after its return at the next instruction
	returns             // in the caller
	ends                // nowhere
	away                // at the beginning of an unknown function
	lost                // at an unknown address, perhaps in the same function
)

// instruction is an instruction of any architecture.
type instruction struct {
	flow     flow
	to, next uint64 // to: target of a jump or a call, 0 if unknown; next: address after the instruction
	x86      x86asm.Inst
	plain    disasm.Instruction // for architectures whose decoder in package disasm gives this type
}

// execute applies the effect of an instruction that does not end the path. Only the effects of instructions that create
// and remove frames are known exactly. Other instructions make the registers and words that they write unknown. The
// result is false if the effect is not supported or the stack pointer becomes unknown.
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
