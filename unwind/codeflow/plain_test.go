package codeflow_test

import (
	"testing"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/codeflow"
)

// TestPreservedRegisters checks that exactly the callee-saved registers of the ABI are known after a call.
func TestPreservedRegisters(t *testing.T) {
	for _, tt := range []struct {
		machine
		code []byte
		also []int // registers saved in addition to the usual ones
	}{
		{arm64, a64Code(a64Ret), nil},
		{riscv64Machine, []byte{0x82, 0x80}, []int{3, 4}},                         // gp, tp
		{s390xMachine, []byte{0x07, 0xfe}, []int{24, 25, 26, 27, 28, 29, 30, 31}}, // f8 to f15
	} {
		a := tt.arch
		var regs arch.Registers
		for reg := range 32 {
			if a != arch.RISCV64 || reg > 0 { // x0 is always zero
				regs.Set(reg, sp)
			}
		}
		got, err := codeflow.Follow(a, code{bytes: tt.code, entry: true}, begin, regs, plain{sp + 0x300}, plenty())
		want := uint64(1)<<a.PC | 1<<a.SP
		for _, reg := range append(tt.also, tt.preserved...) {
			want |= 1 << reg
		}
		if err != nil || got.Known() != want {
			t.Errorf("%s: %v, %#x, not %#x", a.Name, err, got.Known(), want)
		}
	}
}

// FuzzFollowOthers checks other architectures than x86-64: following ends for any code, and a result has a program
// counter and a stack pointer.
func FuzzFollowOthers(f *testing.F) {
	for _, words := range [][]uint32{{a64Ret}, {a64Restore, a64Ret}, {a64Branch(2), a64Restore, a64Ret}, {a64Jump(0)}} {
		f.Add(uint8(0), a64Code(words...), uint64(sp), uint64(0x7f0100))
	}
	f.Add(uint8(1), []byte{0xa2, 0x60, 0x41, 0x01, 0x82, 0x80}, uint64(sp), uint64(0x7f0100))             // ld, addi, ret
	f.Add(uint8(2), []byte{0xeb, 0xbf, 0xf0, 0xf8, 0x00, 0x04, 0x07, 0xfe}, uint64(sp), uint64(0x7f0100)) // lmg, br
	machines := [...]machine{arm64, riscv64Machine, s390xMachine}
	f.Fuzz(func(t *testing.T, which uint8, p []byte, top, fp uint64) {
		a := machines[int(which)%len(machines)].arch
		var regs arch.Registers
		regs.Set(a.SP, top)
		regs.Set(a.FP, fp)
		regs.Set(a.ReturnColumn, fp+8)
		got, err := codeflow.Follow(a, code{bytes: p, entry: true}, begin, regs, plain{sp + 0x300}, plenty())
		both := uint64(1)<<a.PC | 1<<a.SP
		if err == nil && got.Known()&both != both {
			t.Errorf("%#x", got.Known())
		}
		if row, err := codeflow.Derive(a, code{bytes: p, entry: true}, begin, plenty()); err == nil {
			got, err := row.Apply(a, &regs, plain{sp + 0x300})
			if err == nil && got.Known()&both != both {
				t.Errorf("by the row: %#x", got.Known())
			}
		}
	})
}
