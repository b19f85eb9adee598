package cfi

import (
	"encoding/binary"
	"errors"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

// TestApply checks every rule: the values of the caller's registers, and which registers become unknown.
func TestApply(t *testing.T) {
	mem := sparseMemory{testRSP: 0x1111, testRSP + 8: 0x2222, testSlot: testValue}
	for _, test := range []struct {
		name string
		code []byte
		reg  int
		want uint64
		ok   bool
	}{
		{"return address", nil, 16, 0x2222, true},
		{"stack pointer is the CFA", nil, 7, testRSP + 16, true},
		{"unspecified", nil, 6, 0x606, true},
		{"unspecified and unknown", nil, 12, 0, false},
		{"offset", le(cfaOffset|6, uleb(2)), 6, 0x1111, true},
		{"offset to what is not there", le(cfaOffset|6, uleb(3)), 6, 0, false},
		{"val_offset", le(cfaValOffset, uleb(6), uleb(1)), 6, testRSP + 8, true},
		{"register", le(cfaRegister, uleb(6), uleb(7)), 6, testRSP, true},
		{"register that is unknown", le(cfaRegister, uleb(6), uleb(12)), 6, 0, false},
		{"register that is not kept", le(cfaRegister, uleb(6), uleb(20)), 6, 0, false},
		{"rules do not see each other", le(cfaRegister, uleb(6), uleb(5), cfaRegister, uleb(5), uleb(6)), 6, 0x505, true},
		{"return address in a register", le(cfaRegister, uleb(16), uleb(5)), 16, 0x505, true},
		{"same_value", le(cfaSameValue, uleb(6)), 6, 0x606, true},
		{"undefined", le(cfaUndefined, uleb(6)), 6, 0, false},
		{"expression", le(cfaExpression, uleb(6), uleb(3), opLit0+16, opMinus, opNop), 6, 0x1111, true},
		{"expression that fails", le(cfaExpression, uleb(6), uleb(1), opDrop), 6, 0, false},
		{"val_expression", le(cfaValExpression, uleb(6), uleb(2), opLit0+16, opMinus), 6, testRSP, true},
		{"stack pointer by a rule", le(cfaExpression, uleb(7), uleb(2), opLit0+16, opMinus), 7, 0x1111, true},
		{"a register that is not kept", le(cfaOffsetExtended, uleb(17), uleb(2)), 6, 0x606, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			row, err := simpleTable(t, le(cfaDefCFAOffset, uleb(16), test.code)).Row(testStart)
			if err != nil {
				t.Fatal(err)
			}
			regs := someRegisters()
			cfa, caller, err := row.Apply(&regs, mem)
			if err != nil || cfa != testRSP+16 {
				t.Fatalf("CFA %#x, %v", cfa, err)
			}
			if got, ok := caller.Get(test.reg); ok != test.ok || got != test.want {
				t.Errorf("%#x, %v, want %#x, %v", got, ok, test.want, test.ok)
			}
			if regs != someRegisters() {
				t.Error("the frame's own registers changed")
			}
		})
	}
}

// someRegisters returns registers with values for rdi, rbp, rsp and rip.
func someRegisters() arch.Registers {
	var regs arch.Registers
	regs.Set(5, 0x505)
	regs.Set(6, 0x606)
	regs.Set(7, testRSP)
	regs.Set(16, testStart)
	return regs
}

// TestApplyErrors has why there is no caller.
func TestApplyErrors(t *testing.T) {
	for _, test := range []struct {
		name string
		code []byte
		want error
		cfa  bool // known all the same
	}{
		{"undefined return address", le(cfaUndefined, uleb(16)), ErrUndefinedRA, true},
		{"return address not there", le(cfaOffset|16, uleb(7)), ErrMemory, true},
		{"return address in an unknown register", le(cfaRegister, uleb(16), uleb(12)), ErrRegister, true},
		{"return address the same", le(cfaSameValue, uleb(16)), ErrBadCFI, true},
		{"return address by a bad expression", le(cfaExpression, uleb(16), uleb(1), opDrop), ErrBadCFI, true},
		{"CFA by an unknown register", le(cfaDefCFA, uleb(12), uleb(0)), ErrRegister, false},
		{"CFA by no register", le(cfaDefCFA, uleb(20), uleb(0)), ErrRegister, false},
		{"CFA by a bad expression", le(cfaDefCFAExpression, uleb(1), opDup), ErrBadCFI, false},
		{"CFA by memory that is not there", le(cfaDefCFAExpression, uleb(2), opLit0, opDeref), ErrMemory, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			row, err := simpleTable(t, test.code).Row(testStart)
			if err != nil {
				t.Fatal(err)
			}
			regs := someRegisters()
			cfa, caller, err := row.Apply(&regs, sparseMemory{testRSP: 1})
			if !errors.Is(err, test.want) || caller.Known() != 0 || (cfa != 0) != test.cfa {
				t.Errorf("CFA %#x, %v", cfa, err)
			}
			if row.RAUndefined != errors.Is(test.want, ErrUndefinedRA) {
				t.Errorf("RAUndefined %v", row.RAUndefined)
			}
		})
	}
	var none Row
	if _, _, err := none.Apply(&arch.Registers{}, sparseMemory{}); !errors.Is(err, ErrBadCFI) {
		t.Errorf("zero Row: %v", err)
	}
}

// TestApplyNoRule is an x86-64 CIE without a rule for the return address.
func TestApplyNoRule(t *testing.T) {
	b := &builder{order: binary.LittleEndian, addr: testFrame}
	b.fde(b.cie(1, 0, uleb(1), sleb(-8), 16, cfaDefCFA, uleb(7), uleb(8)), testStart, testSize)
	row, err := mustNew(t, Sections{EHFrame: b.section(), Arch: arch.AMD64}).Row(testStart)
	if err != nil {
		t.Fatal(err)
	}
	regs := someRegisters()
	if _, _, err := row.Apply(&regs, sparseMemory{}); !errors.Is(err, ErrBadCFI) {
		t.Error(err)
	}
}

// TestApplyArchitectures checks architectures that keep the return address in a register.
func TestApplyArchitectures(t *testing.T) {
	for _, test := range []struct {
		name      string
		arch      *arch.Arch
		ra        int
		code      []byte
		set       map[int]uint64 // by register number
		pc, sp    uint64
		signature bool
	}{
		{
			"aarch64 leaf", arch.ARM64, 30, le(cfaDefCFA, uleb(31), uleb(0)),
			map[int]uint64{30: 0x4000, 31: 0x7000}, 0x4000, 0x7000, false,
		},
		{
			"aarch64 signed", arch.ARM64, 30,
			le(cfaDefCFA, uleb(31), uleb(16), cfaOffset|30, uleb(1), cfaNegateRAState),
			map[int]uint64{30: 1, 31: testSlot - 8}, 0x0000_aaaa_0000_1234, testSlot + 8, true,
		},
		{
			"s390x: CFA and stack pointer differ", arch.S390X, 14, le(cfaDefCFA, uleb(15), uleb(160)),
			map[int]uint64{14: 0x4000, 15: 0x7000}, 0x4000, 0x7000, false,
		},
		{
			"s390x: return address in a floating point register", arch.S390X, 14,
			le(cfaDefCFA, uleb(15), uleb(160), cfaRegister, uleb(14), uleb(16)),
			map[int]uint64{14: 1, 15: 0x7000, 16: 0x4000}, 0x4000, 0x7000, false,
		},
		{
			"ppc64le: link register", arch.PPC64LE, 65,
			le(cfaDefCFA, uleb(1), uleb(32), cfaOffsetExtendedSF, uleb(65), sleb(2)),
			map[int]uint64{1: testSlot - 48 + 32, 32: 1}, 0xbb2a_aaaa_0000_1234, testSlot + 16, false,
		},
		{
			"riscv64: alternate return column", arch.RISCV64, 64,
			le(cfaDefCFA, uleb(2), uleb(0), cfaOffsetExtended, uleb(64), uleb(0)),
			map[int]uint64{1: 1, 2: testSlot}, 0xbb2a_aaaa_0000_1234, testSlot, false,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &builder{order: binary.LittleEndian, addr: testFrame}
			if test.arch.Order == binary.ByteOrder(binary.BigEndian) {
				b.order = binary.BigEndian
			}
			b.fde(b.cie(1, 0, uleb(1), sleb(-8), test.ra), testStart, testSize, test.code)
			row, err := mustNew(t, Sections{EHFrame: b.section(), Arch: test.arch}).Row(testStart)
			if err != nil {
				t.Fatal(err)
			}
			var regs arch.Registers
			for reg, v := range test.set {
				regs.Set(reg, v)
			}
			_, caller, err := row.Apply(&regs, sparseMemory{testSlot: 0xbb2a_aaaa_0000_1234})
			pc, _ := caller.Get(test.arch.PC)
			sp, _ := caller.Get(test.arch.SP)
			if err != nil || pc != test.pc || sp != test.sp || row.RASigned != test.signature ||
				row.ReturnColumn() != test.ra {
				t.Errorf("PC %#x, SP %#x, signed %v, %v", pc, sp, row.RASigned, err)
			}
		})
	}
}
