// Package disasm describes machine instructions for an unwinder, independent of the architecture. For each instruction
// it gives the control flow, the general registers that it writes, and its memory accesses. It also gives the
// arithmetic of instructions that create and remove frames. Registers have the numbers of package arch. The package
// does not depend on processes or images.
//
// DecodeA64 returns an Instruction. It follows the Arm Architecture Reference Manual (DDI 0487), chapter C4, "A64
// Instruction Set Encoding". DecodeX86 decodes x86-64 instructions to the type of golang.org/x/arch, and adds
// instructions that x/arch does not support.
package disasm

import "errors"

// ErrCode means that an aarch64 instruction could not be decoded.
var ErrCode = errors.New("code not understood")

// None stands for a register that is always zero, or that is not a general register.
const None = -1

// Registers is one more than the highest number of a general register.
const Registers = 32

// Flow says where the processor continues after an instruction.
type Flow uint8

// The values of Flow.
const (
	Next    Flow = iota // at the next instruction
	Jump                // at the target
	Branch              // at the next instruction, or at the target
	Call                // at the target, and then at the next instruction, unless the called function never returns
	Return              // at the address in register Rn
	Ends                // nowhere: the instruction ends the program
	Unknown             // at the address in a register: in another function, or in a jump table of this one
)

// Op is an instruction's operation on general registers. Loads have the operation Other.
type Op uint8

// The operations, on 64-bit registers.
const (
	Other       Op = iota // the registers in Writes get unknown values
	Add                   // Rd = Rn + Imm; a move between registers adds 0
	AddRegister           // Rd = Rn + Rm << Imm
	SubRegister           // Rd = Rn - Rm << Imm
	And                   // Rd = Rn & Imm
	Set                   // Rd = Imm
	Page                  // Rd = the instruction's address, the low 12 bits clear, + Imm
	Insert                // Rd gets the 16 bits of Imm at bit Shift, and keeps its other bits
)

// Index says when the instruction changes the base register of its access.
type Index uint8

// The values of Index.
const (
	Offset Index = iota // never: the address is base + Disp
	Pre                 // before the access: the address is base + Disp, and the base becomes this address
	Post                // after the access: the address is the base, and the base becomes base + Disp
)

// Access is the memory access of an instruction.
type Access struct {
	// Size is the number of bytes for each register. It is 0 if the instruction has no access, or if its access does
	// not matter to an unwinder.
	Size uint64
	// Base is the general register to which the address is relative. None means that the address is relative to the
	// instruction.
	Base int
	// Known is set if the address is Base plus Disp (see Index). It is not set if the address uses an index register.
	Known bool
	Disp  int64
	Index Index
	// Load is set if the instruction reads memory, Store if it writes. Atomic instructions do both.
	Load, Store bool
	// Whole are the general registers whose 64 bits are all loaded or stored, in the order of memory; None is the zero
	// register. Count is the number of these registers. It is 0 if only parts of registers, or other registers, are
	// loaded or stored.
	Whole [16]int
	Count int
}

// Instruction is one instruction.
type Instruction struct {
	// Length is the size of the instruction in bytes.
	Length uint64

	Flow Flow
	// Target is the target of a jump, a branch or a call, relative to the instruction's address. It is valid if Direct
	// is set.
	Target int64
	Direct bool

	Op         Op
	Rd, Rn, Rm int
	Imm        uint64
	Shift      uint8

	// Writes are the registers whose values the instruction changes, bit n for register n. They include Rd, loaded
	// registers, and the base register of an access that changes it.
	Writes uint32
	Access Access
}

// New returns an instruction of the given length without any effect.
func New(length uint64) Instruction {
	x := Instruction{Length: length, Rd: None, Rn: None, Rm: None}
	x.Access.Base = None
	return x
}

// Write adds a register to Writes.
func (x *Instruction) Write(reg int) {
	if reg != None {
		x.Writes |= 1 << uint(reg)
	}
}

// To sets the target of a jump, a branch or a call. It returns true.
func (x *Instruction) To(target int64) bool {
	x.Target, x.Direct = target, true
	return true
}
