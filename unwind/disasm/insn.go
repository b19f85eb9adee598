// Package disasm describes machine instructions for an unwinder, independent of the architecture. It describes an
// instruction's control flow, the general registers that it writes, and its memory accesses. It also describes the
// arithmetic that creates and removes frames. The decoders of single architectures return these types. Registers have
// the numbers of package arch.
package disasm

import "errors"

// ErrCode says that an instruction could not be decoded.
var ErrCode = errors.New("code not understood")

// None stands for a register that is always zero, or that is not a general register.
const None = -1

// Registers bounds the numbers of general registers.
const Registers = 32

// Flow is where an instruction leads.
type Flow uint8

// The flows.
const (
	Next    Flow = iota // to the instruction behind it
	Jump                // elsewhere
	Branch              // to the one behind it, or elsewhere
	Call                // elsewhere, and back behind it unless the called function never returns
	Return              // to the address in register Rn
	Ends                // nowhere: it stops the program
	Unknown             // to an address that a register has: another function, or a table's
)

// Op is the operation of an instruction on general registers, apart from loads.
type Op uint8

// The operations. All are of 64 bits.
const (
	Other       Op = iota // the registers in Writes get unknown values
	Add                   // Rd = Rn + Imm; a move between registers adds 0
	AddRegister           // Rd = Rn + Rm << Imm
	SubRegister           // Rd = Rn - Rm << Imm
	And                   // Rd = Rn & Imm
	Set                   // Rd = Imm
	Page                  // Rd = the instruction's address, the low 12 bits clear, + Imm
	Here                  // Rd = the instruction's address + Imm
	Insert                // Rd gets the 16 bits of Imm at bit Shift, and keeps its other bits
)

// Index is when the base register of an access changes.
type Index uint8

// The kinds of addressing.
const (
	Offset Index = iota // never: the address is base + Disp
	Pre                 // the address is base + Disp, and is the base afterwards
	Post                // the address is the base, which is base + Disp afterwards
)

// Access is what an instruction reads or writes of memory.
type Access struct {
	// Size is how many bytes each register takes; 0: there is no access, or no store that could matter.
	Size uint64
	// Base is the general register that the address is relative to; None: it is relative to the code.
	Base int
	// Known: the address is Base and Disp. It is not with an index in a register.
	Known bool
	Disp  int64
	Index Index
	// Load says that it reads, Store that it writes; atomic ones do both.
	Load, Store bool
	// Whole are the general registers, in the order of memory, that are loaded or stored with all their 64 bits; Count of
	// them, 0 if others are or parts of them. None is a register that is always zero.
	Whole [16]int
	Count int
}

// Instruction is one instruction.
type Instruction struct {
	// Length is the size of the instruction in bytes.
	Length uint64

	Flow Flow
	// Target is where a jump, a branch or a call goes, relative to the instruction, if Direct.
	Target int64
	Direct bool

	Op         Op
	Rd, Rn, Rm int
	Imm        uint64
	Shift      uint8

	// Writes are the registers whose values the instruction changes, bit n for register n. They include the base of
	// an access with write-back, loaded registers, and Rd.
	Writes uint32
	Access Access
}

// New returns an instruction without effect that continues with the next one.
func New(length uint64) Instruction {
	x := Instruction{Length: length, Rd: None, Rn: None, Rm: None}
	x.Access.Base = None
	return x
}

// Write notes that a register is written.
func (x *Instruction) Write(reg int) {
	if reg != None {
		x.Writes |= 1 << uint(reg)
	}
}

// To notes where a jump, a branch or a call goes.
func (x *Instruction) To(target int64) bool {
	x.Target, x.Direct = target, true
	return true
}
