package arch

import (
	"encoding/binary"
	"slices"
)

// Chain describes how frames without call frame information are chained: by records at the frame pointer, or by the
// back chain of an ABI. A record has the caller's base and the return address.
type Chain struct {
	// Base is the register that points to a frame's record: the frame pointer, or SP for a back chain. The value of
	// this register is the frame's base. Base is none if there is no chain.
	Base int
	// Saved is the offset from the base at which the caller's base is saved. Return is the offset of the return
	// address. Both are in bytes.
	Saved, Return int64
	// InCaller is set if Return is an offset from the caller's base, not from this frame's base.
	InCaller bool
	// SP is the offset of the caller's SP from the base, or with InCaller from the caller's base. Loose is set if a
	// record may lie anywhere in its frame. SP then gives only a lower bound.
	SP    int64
	Loose bool
	// LeafSaved is the offset from the base at which a leaf function saves the caller's base. A leaf function does not
	// save its return address. LeafSaved is 0 if leaf functions have no record.
	LeafSaved int64
	// ZeroEnds is set if the ABI marks the outermost frame by a base, or a back chain, of zero.
	ZeroEnds bool
	// Mandatory is set if the ABI requires every function that calls another function to keep the chain. Otherwise the
	// base, or the word in the place of a back chain, may have any value.
	Mandatory bool
}

// Trampoline is code to which a signal handler returns, with the place of the interrupted registers. Call frame
// information describes few trampolines. Some descriptions are wrong: the description in aarch64's vDSO gives the
// caller of the interrupted function instead of this function.
type Trampoline struct {
	// Code are the instructions at the address that the handler returns to.
	Code []byte
	// Registers is the offset from SP of the interrupted registers. Layout has their register numbers in order; nil
	// means the layout of NT_PRSTATUS.
	Registers int64
	Layout    []int8
	// FPRegisters is the offset from SP of the interrupted floating point registers, in the layout of NT_FPREGSET. It
	// is 0 if unwinding does not need them.
	FPRegisters int64
	// BelowRecord is the distance in bytes from the trampoline's SP up to the frame record that the kernel creates, if
	// the frame has a fixed size. It is 0 if the kernel creates no record.
	BelowRecord uint64
}

// InterruptedRegisters yields each register in a trampoline's frame: the register's number and its address. sp is the
// trampoline's SP.
func (a *Arch) InterruptedRegisters(t *Trampoline, sp uint64) func(yield func(reg int, addr uint64) bool) {
	return func(yield func(int, uint64) bool) {
		layout := t.Layout
		if layout == nil {
			layout = a.prstatus
		}
		if !a.places(layout, sp+uint64(t.Registers), yield) || t.FPRegisters == 0 {
			return
		}
		a.places(a.fpregs, sp+uint64(t.FPRegisters), yield)
	}
}

// places passes each register of a layout in memory at addr to the callback yield, until yield returns false. It then
// returns false, too.
func (a *Arch) places(layout []int8, addr uint64, yield func(int, uint64) bool) bool {
	for i, reg := range layout {
		if reg != none && !yield(int(reg), addr+uint64(i*a.AddrSize)) {
			return false
		}
	}
	return true
}

// Pattern is an instruction, or its beginning, in memory order. Code fits it if the code's bits in Mask equal the bits
// of Value.
type Pattern struct{ Mask, Value []byte }

// at reports whether code begins with the pattern.
func (p *Pattern) at(code []byte) bool {
	if len(code) < len(p.Mask) {
		return false
	}
	for i, mask := range p.Mask {
		if code[i]&mask != p.Value[i] {
			return false
		}
	}
	return true
}

// pattern32 returns the pattern of a four-byte instruction, little endian.
func pattern32(mask, value uint32) Pattern {
	le := binary.LittleEndian
	return Pattern{Mask: le.AppendUint32(nil, mask), Value: le.AppendUint32(nil, value)}
}

// pattern16 returns the pattern of a two-byte instruction, little endian.
func pattern16(mask, value uint16) Pattern {
	le := binary.LittleEndian
	return Pattern{Mask: le.AppendUint16(nil, mask), Value: le.AppendUint16(nil, value)}
}

// MovesSP reports whether code may change the stack pointer. It checks every position where an instruction may begin.
// The result may be wrongly true, but never wrongly false.
func (a *Arch) MovesSP(code []byte) bool {
	for at := 0; at < len(code); at += max(a.CodeAlign, 1) {
		if movesSP(a.SPWrites, code[at:]) {
			return true
		}
	}
	return false
}

// movesSP reports whether code begins with one of the patterns.
func movesSP(writes []Pattern, code []byte) bool {
	return slices.ContainsFunc(writes, func(p Pattern) bool { return p.at(code) })
}

// InCallStub reports whether the instruction at pc belongs to a stub of CallStubs. The callback read reads code at an
// address.
func (a *Arch) InCallStub(pc uint64, read func(addr uint64, p []byte) bool) bool {
	return slices.ContainsFunc(a.CallStubs, func(stub []Pattern) bool {
		before, all := uint64(0), 0
		for i := range stub {
			all += len(stub[i].Mask)
		}
		for i := range stub {
			code := make([]byte, all)
			if read(pc-before, code) && matches(stub, code) {
				return true
			}
			before += uint64(len(stub[i].Mask))
		}
		return false
	})
}

// matches reports whether code begins with the patterns, one after the other.
func matches(list []Pattern, code []byte) bool {
	for i := range list {
		if !list[i].at(code) {
			return false
		}
		code = code[len(list[i].Mask):]
	}
	return true
}
