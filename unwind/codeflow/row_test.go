package codeflow_test

import (
	"errors"
	"slices"
	"testing"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/codeflow"
	"pg_stat_backtrace/unwind/disasm"
)

// TestRow applies rows to frames with other values, and compares the results with following the code there.
func TestRow(t *testing.T) {
	for _, tt := range follows() {
		if tt.err != nil {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			sameForAll(t, arch.AMD64, tt.code, tt.name != "another stack pointer kept in a register", rip, rsp, rbp, rbx, r12)
		})
	}
	for _, tt := range followsA64() {
		if tt.err != nil {
			continue
		}
		t.Run("a64, "+tt.name, func(t *testing.T) {
			sameForAll(t, arch.ARM64, a64Code(tt.code...), tt.name != "another one kept in a register",
				32, disasm.A64SP, disasm.A64FP, 19, 21, disasm.A64LR)
		})
	}
}

// sameForAll derives the row of code and compares its results. found is set if there must be a row. The first number
// is the program counter, the second is the stack pointer.
func sameForAll(t *testing.T, a *arch.Arch, p []byte, found bool, numbers ...int) {
	t.Helper()
	where := code{bytes: p, entry: true}
	row, err := codeflow.Derive(a, where, begin, plenty())
	if err != nil || !found {
		if found == (err != nil) {
			t.Errorf("%v, and a row is to be found: %t", err, found)
		}
		return
	}
	for _, at := range []uint64{sp, sp + 8, sp + 0x58} {
		var regs arch.Registers
		for i, reg := range numbers {
			regs.Set(reg, at+uint64(i)*0x40)
		}
		regs.Set(numbers[0], start)
		regs.Set(numbers[1], at)
		want, wantErr := codeflow.Follow(a, where, begin, regs, plain{sp + 0x10000}, plenty())
		got, err := row.Apply(a, &regs, plain{sp + 0x10000})
		if got != want || err != nil || wantErr != nil {
			t.Errorf("at %#x: %v %v, not %v %v", at, got, err, want, wantErr)
		}
	}
}

// TestRowlessCode checks code that has no row: it does more to an address than an addition, or its return address has
// no location. The row of code that never returns says that there is no caller.
func TestRowlessCode(t *testing.T) {
	for _, tt := range []struct {
		name string
		code []byte
		err  error
	}{
		{"aligned", slices.Concat(alignSP, ret), codeflow.ErrAmbiguous},
		{"aligned, to another register's number", slices.Concat(alignSP, pop, ret), codeflow.ErrAmbiguous},
		{"another one's stack", slices.Concat(spFromRAX, ret), codeflow.ErrNoReturn},
		{"two ways that do not agree", slices.Concat(branch(1), pop, ret), codeflow.ErrAmbiguous},
		{"not decoded", noCode, disasm.ErrX86Code},
	} {
		_, err := codeflow.Derive(arch.AMD64, code{bytes: tt.code}, begin, plenty())
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := codeflow.Derive(arch.PPC64LE, code{bytes: ret}, begin, plenty()); !errors.Is(err, codeflow.ErrNoReturn) {
		t.Errorf("unsupported instructions: %v", err)
	}
	row, err := codeflow.Derive(arch.AMD64, code{bytes: halt}, begin, plenty())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := row.Apply(arch.AMD64, new(arch.Registers), plain{}); !errors.Is(err, codeflow.ErrNeverReturns) {
		t.Errorf("%v", err)
	}
}

// TestRowWithoutValues checks that a row gives only the values that the frame and the memory provide.
func TestRowWithoutValues(t *testing.T) {
	where := code{bytes: slices.Concat(pop, popFP, ret), entry: true}
	row, err := codeflow.Derive(arch.AMD64, where, begin, plenty())
	if err != nil {
		t.Fatal(err)
	}
	var regs arch.Registers
	if _, err := row.Apply(arch.AMD64, &regs, plain{sp + 64}); !errors.Is(err, codeflow.ErrMemory) {
		t.Errorf("no stack pointer: %v", err)
	}
	regs.Set(rsp, sp)
	if _, err := row.Apply(arch.AMD64, &regs, plain{sp + 8}); !errors.Is(err, codeflow.ErrMemory) {
		t.Errorf("no return address: %v", err)
	}
	got, err := row.Apply(arch.AMD64, &regs, plain{sp + 64})
	if err != nil || got.Known() != 1<<rip|1<<rsp|1<<rbx|1<<rbp {
		t.Errorf("%v, %#x", err, got.Known())
	}
	signed, err := codeflow.Derive(arch.ARM64, code{bytes: a64Code(a64Check, a64Ret)}, begin, plenty())
	if err != nil {
		t.Fatal(err)
	}
	regs.Set(disasm.A64SP, sp)
	regs.Set(disasm.A64LR, 0x7f<<48|0xcaffee)
	if got, err := signed.Apply(arch.ARM64, &regs, plain{}); err != nil {
		t.Error(err)
	} else if pc, _ := got.Get(32); pc != 0xcaffee {
		t.Errorf("return address %#x", pc)
	}
}
