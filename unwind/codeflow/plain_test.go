package codeflow_test

import (
	"testing"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/codeflow"
)

// TestPreservedRegisters checks that exactly the callee-saved registers of the ABI are known after a call.
func TestPreservedRegisters(t *testing.T) {
	var regs arch.Registers
	for reg := range 32 {
		regs.Set(reg, sp)
	}
	got, err := codeflow.Follow(arch.ARM64, code{bytes: a64Code(a64Ret), entry: true}, begin, regs, plain{sp + 0x300},
		plenty())
	want := uint64(1)<<arch.ARM64.PC | 1<<arch.ARM64.SP
	for _, reg := range arm64.preserved {
		want |= 1 << reg
	}
	if err != nil || got.Known() != want {
		t.Errorf("%v, %#x, not %#x", err, got.Known(), want)
	}
}

// FuzzFollowA64 checks aarch64: following ends for any code, and a result has a program counter and a stack pointer.
func FuzzFollowA64(f *testing.F) {
	for _, words := range [][]uint32{{a64Ret}, {a64Restore, a64Ret}, {a64Branch(2), a64Restore, a64Ret}, {a64Jump(0)}} {
		f.Add(a64Code(words...), uint64(sp), uint64(0x7f0100))
	}
	f.Fuzz(func(t *testing.T, p []byte, top, fp uint64) {
		a := arch.ARM64
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
