// Package disasm describes machine instructions for an unwinder, independent of the architecture. It describes an
// instruction's control flow, the general registers that it writes, and its memory accesses. It also describes the
// arithmetic that creates and removes frames. The decoders of single architectures return these types. Registers have
// the numbers of package arch. The package does not depend on processes or images.
//
// DecodeX86 decodes x86-64 instructions one at a time. It uses golang.org/x/arch, and adds the instructions that x/arch
// does not support. DecodeA64 follows the Arm Architecture Reference Manual (DDI 0487), chapter C4, "A64 Instruction Set
// Encoding".
package disasm

import "errors"

// ErrCode means that an instruction could not be decoded.
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
	Branch              // to the next one, or elsewhere
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

// Access is the memory access of an instruction.
type Access struct {
	// Size is the number of bytes for each register. It is 0 if there is no access, or no relevant store.
	Size uint64
	// Base is the general register to which the address is relative; None means relative to the code.
	Base int
	// Known is set if the address is Base plus Disp. It is not set if the address uses an index register.
	Known bool
	Disp  int64
	Index Index
	// Load is set if the instruction reads memory, Store if it writes. Atomic instructions do both.
	Load, Store bool
	// Whole are the general registers that are loaded or stored with all 64 bits, in the order of memory. Count is
	// their number. It is 0 for partial registers and for registers of another kind. None is a register that is
	// always zero.
	Whole [16]int
	Count int
}

// Instruction is one instruction.
type Instruction struct {
	// Length is the size of the instruction in bytes.
	Length uint64

	Flow Flow
	// Target is the target of a jump, a branch or a call, relative to the instruction, if Direct is set.
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

// To sets the target of a jump, a branch or a call.
func (x *Instruction) To(target int64) bool {
	x.Target, x.Direct = target, true
	return true
}
