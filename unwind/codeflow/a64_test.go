package codeflow_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/codeflow"
	"pg_stat_backtrace/unwind/disasm"
)

// Instructions of A64.
const (
	a64Ret       = 0xd65f03c0
	a64RetX1     = 0xd65f0020
	a64RetSigned = 0xd65f0bff // retaa
	a64Sign      = 0xd503233f // paciasp
	a64Check     = 0xd50323bf // autiasp
	a64Save      = 0xa9be7bfd // stp x29, x30, [sp, #-32]!
	a64Restore   = 0xa8c27bfd // ldp x29, x30, [sp], #32
	a64SaveMore  = 0xa90153f3 // stp x19, x20, [sp, #16]
	a64LoadMore  = 0xa94153f3 // ldp x19, x20, [sp, #16]
	a64Load19    = 0xf9400bf3 // ldr x19, [sp, #16]
	a64LoadFar   = 0xf9400261 // ldr x1, [x19]
	a64LoadHalf  = 0xb9400bf3 // ldr w19, [sp, #8]
	a64StoreWord = 0xb90013e0 // str w0, [sp, #16]
	a64StoreZero = 0xf9000bff // str xzr, [sp, #16]
	a64StoreFar  = 0xf9000000 // str x0, [x0]
	a64SPFromFP  = 0x910003bf // mov sp, x29
	a64Add32     = 0x910083ff // add sp, sp, #32
	a64Sub32     = 0xd10083ff
	a64Add4096   = 0x914007ff // add sp, sp, #1, lsl #12
	a64Set16     = 0xd2800410 // mov x16, #32
	a64Insert16  = 0xf2a00030 // movk x16, #1, lsl #16
	a64AddX16    = 0x8b3063ff // add sp, sp, x16
	a64SubX16    = 0xcb3063ff
	a64AddX0     = 0x8b2063ff
	a64Align     = 0x927cec1f // and sp, x0, #-16
	a64Align21   = 0x927ceebf // and sp, x21, #-16
	a64Change19  = 0xaa0003f3 // mov x19, x0
	a64Swap19    = 0xf8338001 // swp x19, x1, [x0]
	a64CallX0    = 0xd63f0000
	a64JumpX0    = 0xd61f0000
	a64Trap      = 0xd4207d00
	a64System    = 0xd4000001 // svc #0
	a64Vector    = 0x4cdf7fe0 // ld1 {v0.2d}, [sp], #16
	a64Scalable  = 0x04e0e3e0 // cntd x0
)

func a64Jump(by int32) uint32   { return 0x14000000 | uint32(by)&0x3ffffff }
func a64Call(by int32) uint32   { return 0x94000000 | uint32(by)&0x3ffffff }
func a64Branch(by int32) uint32 { return 0xb4000000 | uint32(by)&0x7ffff<<5 } // cbz x0

// a64Code is instructions in memory.
func a64Code(words ...uint32) []byte {
	var p []byte
	for _, w := range words {
		p = binary.LittleEndian.AppendUint32(p, w)
	}
	return p
}

// Sources of a caller's register, in addition to same and lost.
const (
	linked = -3 // from X30
	zero   = -4 // it is 0
)

// followA64 is code that is followed from its beginning. pc is the source of the return address: a register, or a
// place in the stack relative to sp. cfa is the caller's stack pointer. fp and x19 are the sources of these
// registers.
type followA64 struct {
	name             string
	code             []uint32
	pc, cfa, fp, x19 int
	err              error
}

func followsA64() []followA64 {
	return []followA64{
		{"at its end", []uint32{a64Ret}, linked, 0, same, same, nil},
		{"through another register", []uint32{a64RetX1}, 0, 0, 0, 0, codeflow.ErrMemory},
		{
			"at its beginning", []uint32{a64Save, a64SaveMore, a64CallX0, a64LoadMore, a64Restore, a64Ret},
			linked, 0, same, same, nil,
		},
		{"signed", []uint32{a64Sign, a64Save, a64CallX0, a64Restore, a64Check, a64Ret}, linked, 0, same, same, nil},
		{"signed, in one", []uint32{a64Sign, a64Save, a64CallX0, a64Restore, a64RetSigned}, linked, 0, same, same, nil},
		{"before the call", []uint32{a64CallX0, a64LoadMore, a64Restore, a64Ret}, 8, 32, 0, 16, nil},
		{"the return address is lost", []uint32{a64CallX0, a64Ret}, 0, 0, 0, 0, codeflow.ErrMemory},
		{"by the frame pointer", []uint32{a64CallX0, a64SPFromFP, a64Restore, a64Ret}, 0x108, 0x120, 0x100, same, nil},
		{"a large frame", []uint32{a64Add4096, a64Set16, a64AddX16, a64Ret}, linked, 4096 + 32, same, same, nil},
		{
			"a larger one", []uint32{a64Set16, a64Insert16, a64SubX16, a64Set16, a64Insert16, a64AddX16, a64Add32, a64Ret},
			linked, 32, same, same, nil,
		},
		{"a frame of a size that is not known", []uint32{a64AddX0, a64Ret}, 0, 0, 0, 0, codeflow.ErrNoReturn},
		{"the same behind what is missing", []uint32{a64LoadFar, a64AddX0, a64Ret}, 0, 0, 0, 0, codeflow.ErrNoReturn},
		{"another stack pointer", []uint32{a64Align, a64Ret}, 0, 0, 0, 0, codeflow.ErrNoReturn},
		{
			"another one kept in a register", []uint32{a64CallX0, a64Align21, a64Restore, a64Ret},
			0x208, 0x220, 0x200, same, nil,
		},
		{"stored and loaded again", []uint32{a64SaveMore, a64Change19, a64Load19, a64Ret}, linked, 0, same, same, nil},
		{"a half of it", []uint32{a64SaveMore, a64LoadHalf, a64Ret}, linked, 0, same, lost, nil},
		{"what was loaded was overwritten", []uint32{a64StoreWord, a64Load19, a64Ret}, linked, 0, same, lost, nil},
		{"overwritten with zero", []uint32{a64SaveMore, a64StoreZero, a64Load19, a64Ret}, linked, 0, same, zero, nil},
		{"a store elsewhere", []uint32{a64StoreFar, a64Ret}, linked, 0, same, same, nil},
		{"changed", []uint32{a64Change19, a64Ret}, linked, 0, same, lost, nil},
		{"not changed by an exchange that stores it", []uint32{a64Swap19, a64Ret}, linked, 0, same, same, nil},
		{"a system call", []uint32{a64System, a64Ret}, linked, 0, same, same, nil},
		{"vectors from the stack", []uint32{a64Vector, a64Ret}, 0, 0, 0, 0, codeflow.ErrNoReturn},
		{"two ways", []uint32{a64Branch(3), a64Add32, a64Ret, a64Add32, a64Ret}, linked, 32, same, same, nil},
		{"two ways that do not agree", []uint32{a64Branch(2), a64Ret, a64Add32, a64Ret}, 0, 0, 0, 0, codeflow.ErrAmbiguous},
		{"a loop of frames", []uint32{a64Sub32, a64Branch(-1), a64Ret}, 0, 0, 0, 0, codeflow.ErrAmbiguous},
		{"one way ends in a trap", []uint32{a64Branch(2), a64Trap, a64Ret}, linked, 0, same, same, nil},
		{"one way is not decoded", []uint32{a64Branch(2), a64Scalable, a64Ret}, linked, 0, same, same, nil},
		{"not decoded", []uint32{a64Scalable, a64Ret}, 0, 0, 0, 0, disasm.ErrCode},
		{"through a register", []uint32{a64JumpX0}, 0, 0, 0, 0, codeflow.ErrNoReturn},
		{"nothing but a trap", []uint32{a64Trap}, 0, 0, 0, 0, codeflow.ErrNeverReturns},
		{"no code but zeros", []uint32{0}, 0, 0, 0, 0, codeflow.ErrNeverReturns},
		{"an endless loop", []uint32{a64Jump(0)}, 0, 0, 0, 0, codeflow.ErrNeverReturns},
		{"behind a call of what never returns", []uint32{a64Call(2), a64Ret, a64Trap}, 0, 0, 0, 0, codeflow.ErrNeverReturns},
		{
			"behind a call of what may return", []uint32{a64Call(3), a64Restore, a64Ret, a64Branch(2), a64Trap, a64Ret},
			8, 32, 0, same, nil,
		},
		{"it goes on as another function", []uint32{a64Add32, a64Jump(1)}, linked, 32, same, same, nil},
	}
}

func TestFollowA64(t *testing.T) {
	for _, tt := range followsA64() {
		t.Run(tt.name, func(t *testing.T) {
			var regs arch.Registers
			const link = 0xcaffee
			for reg, v := range map[int]uint64{
				32: start, disasm.A64SP: sp, disasm.A64FP: sp + 0x100, 19: 0xb, 21: sp + 0x208, disasm.A64LR: link,
			} {
				regs.Set(reg, v)
			}
			where := code{bytes: a64Code(tt.code...), entry: true}
			got, err := codeflow.Follow(arch.ARM64, where, begin, regs, plain{sp + 0x300}, plenty())
			if !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
				t.Fatalf("%v", err)
			}
			if err != nil {
				return
			}
			want := func(reg, from int, before uint64) {
				v, known := got.Get(reg)
				switch {
				case from == lost && known, from == same && v != before, from == linked && v != link,
					from == zero && (v != 0 || !known), from >= 0 && v != uint64(sp+from)&^7|1:
					t.Errorf("register %d: %#x, known: %t", reg, v, known)
				}
			}
			want(32, tt.pc, 0)
			want(disasm.A64FP, tt.fp, sp+0x100)
			want(19, tt.x19, 0xb)
			if v, _ := got.Get(disasm.A64SP); v != uint64(sp+tt.cfa) {
				t.Errorf("stack pointer %#x", v)
			}
			const kept = 1<<32 | 1<<disasm.A64SP | 1<<disasm.A64FP | 1<<19 | 1<<20 | 1<<21
			if got.Known()&^kept != 0 {
				t.Errorf("more registers than a call keeps: %#x", got.Known())
			}
		})
	}
}

// plain is memory where each word is its own address and one, as an address without a signature may be.
type plain struct{ end uint64 }

func (s plain) Word(addr uint64) (uint64, bool) {
	return addr | 1, addr >= sp-64 && addr < s.end && addr%8 == 0
}
