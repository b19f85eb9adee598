// Package a64 decodes A64 instructions as far as an unwinder asks: where an instruction leads, which general
// registers it writes, what it does to them if that is arithmetic by which frames are made and left, and what it reads
// and writes of memory. It follows the Arm Architecture Reference Manual (DDI 0487), chapter C4, "A64 Instruction Set
// Encoding". Code is words; nothing here knows a process or an image.
package a64

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Length is that of every instruction in bytes.
const Length = 4

// ErrCode says that an instruction could not be decoded.
var ErrCode = errors.New("code not understood")

// Numbers of registers that the architecture names; X0 to X30 have their own numbers.
const (
	FP   = 29 // the frame pointer of the ABI
	LR   = 30 // where a call leaves its return address
	SP   = 31
	None = -1 // no general register: the zero register, or one of the others
)

// Flow is where an instruction leads.
type Flow uint8

// The flows.
const (
	Next    Flow = iota // to the instruction behind it
	Jump                // elsewhere
	Branch              // to the one behind it, or elsewhere
	Call                // elsewhere, and back behind it unless what is called never returns
	Return              // to the address in register Rn
	Ends                // nowhere: it stops the program
	Unknown             // to an address that a register has: another function, or a table's
)

// Op is what an instruction does to general registers beside what it loads.
type Op uint8

// The operations. All are of 64 bits.
const (
	Other       Op = iota // what Writes has is written, with what nobody follows
	Add                   // Rd = Rn + Imm; a move between registers adds 0
	AddRegister           // Rd = Rn + Rm << Imm
	SubRegister           // Rd = Rn - Rm << Imm
	And                   // Rd = Rn & Imm
	Set                   // Rd = Imm
	Page                  // Rd = the instruction's address, the low 12 bits clear, + Imm
	Insert                // Rd has the 16 bits of Imm at bit Shift, and what it had elsewhere
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
	// Base is the general register or SP that the address is relative to; None: it is relative to the code.
	Base int
	// Known: the address is Base and Disp. It is not with an index in a register.
	Known bool
	Disp  int64
	Index Index
	// Load says that it reads, Store that it writes; atomic ones do both.
	Load, Store bool
	// Whole are the general registers, in the order of memory, that are loaded or stored with all their 64 bits; Count of
	// them, 0 if others are or parts of them. None is the zero register.
	Whole [2]int
	Count int
}

// Instruction is one instruction.
type Instruction struct {
	Flow Flow
	// Target is where a jump, a branch or a call goes, relative to the instruction, if Direct.
	Target int64
	Direct bool

	Op         Op
	Rd, Rn, Rm int
	Imm        uint64
	Shift      uint8

	// Writes are the registers that have another value afterwards than before, bit n for number n: the base of an access
	// with write-back among them, those that are loaded, and Rd.
	Writes uint32
	Access Access
}

// Decode decodes the instruction at the beginning of p, which may hold more. The error is an ErrCode.
func Decode(p []byte) (Instruction, error) {
	if len(p) < Length {
		return Instruction{}, fmt.Errorf("%w: it ends within an instruction", ErrCode)
	}
	w := word(binary.LittleEndian.Uint32(p))
	x := Instruction{Rd: None, Rn: None, Rm: None}
	x.Access.Base = None
	ok := false
	switch w.bits(25, 4) { // op0 of C4.1
	case 0b0000:
		ok = x.reserved(w)
	case 0b1000, 0b1001:
		ok = x.immediate(w)
	case 0b1010, 0b1011:
		ok = x.branch(w)
	case 0b0100, 0b0110, 0b1100, 0b1110:
		ok = x.memory(w)
	case 0b0101, 0b1101:
		ok = x.register(w)
	case 0b0111, 0b1111:
		ok = x.vector(w)
	}
	if !ok {
		return Instruction{}, fmt.Errorf("%w: %#08x", ErrCode, uint32(w))
	}
	return x, nil
}

// word is an encoded instruction.
type word uint32

// bits returns count bits from bit low on.
func (w word) bits(low, count uint) uint32 { return uint32(w) >> low & (1<<count - 1) }

func (w word) bit(n uint) bool { return w>>n&1 != 0 }

// signed returns count bits from bit low on, with their sign.
func (w word) signed(low, count uint) int64 {
	return int64(uint64(w)<<(64-low-count)) >> (64 - count)
}

// is reports whether the bits of mask are those of value.
func (w word) is(mask, value uint32) bool { return uint32(w)&mask == value }

// reg returns the general register in five bits from bit low on, where 31 is the zero register.
func (w word) reg(low uint) int {
	if r := int(w.bits(low, 5)); r != 31 {
		return r
	}
	return None
}

// regSP returns the one where 31 is SP.
func (w word) regSP(low uint) int { return int(w.bits(low, 5)) }

// write notes that a register is written.
func (x *Instruction) write(reg int) {
	if reg != None {
		x.Writes |= 1 << uint(reg)
	}
}

// reserved decodes op0 0000: UDF, and the Scalable Matrix Extension, which nobody follows.
func (x *Instruction) reserved(w word) bool {
	x.Flow = Ends
	return w.is(0xffff0000, 0)
}
