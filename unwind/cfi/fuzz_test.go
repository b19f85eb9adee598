package cfi

import (
	"encoding/binary"
	"errors"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

// oneOf checks that exactly one of value and error is there, and that the error is a known one.
func oneOf(t *testing.T, value bool, err error, known ...error) {
	t.Helper()
	if value != (err == nil) {
		t.Fatalf("value %v, error %v", value, err)
	}
	if err == nil {
		return
	}
	for _, k := range known {
		if errors.Is(err, k) {
			return
		}
	}
	t.Fatalf("unknown error %v", err)
}

// FuzzTable looks up an address in arbitrary sections. The look-up must end with an FDE and a row that cover the
// address, or with an error. Applying the row must not panic, and a second look-up must give the same result.
func FuzzTable(f *testing.F) {
	eh := &builder{order: binary.LittleEndian, addr: testFrame}
	pairs := functions(eh, 3)
	header := headerOf(peDataRel|peSData4, formats(binary.LittleEndian)[peSData4], pairs)
	debug := &builder{order: binary.LittleEndian, debug: true}
	debug.fde(debug.cie(4, 0, 8, 0, uleb(1), sleb(-8), uleb(16), cfaDefCFA, uleb(7), uleb(8), cfaOffset|16, uleb(1)),
		testStart, testSize, cfaAdvanceLoc|1, cfaRememberState, cfaDefCFAOffset, uleb(16), cfaAdvanceLoc1, 9, cfaRestoreState)
	f.Add(header, eh.data, debug.data, testStart, byte(0))
	f.Add([]byte(nil), eh.data, []byte(nil), testStart+2*testSize, byte(0))
	f.Add([]byte(nil), []byte(nil), debug.data, testStart+1, byte(0))
	f.Add(header, []byte(nil), debug.data, testStart+20, byte(1))

	f.Fuzz(func(t *testing.T, header, eh, debug []byte, pc uint64, flags byte) {
		s := Sections{
			EHFrameHdr: Section{testHeader, header}, EHFrame: Section{testFrame, eh}, DebugFrame: Section{0, debug},
			TextAddr: testText, DataAddr: testData, Arch: arch.AMD64,
		}
		if flags&1 != 0 {
			s.Order, s.Arch = binary.BigEndian, arch.S390X
		}
		if flags&2 != 0 {
			s.AddrSize = 4
		}
		table := mustNew(t, s)
		checkLookUp(t, table, pc)
		some := 0
		for f := range table.FDEs {
			if f.Start >= f.End {
				t.Fatalf("%+v", f)
			}
			if some++; some < 4 { // each with its first and its last address
				checkLookUp(t, table, f.Start)
				checkLookUp(t, table, f.End-1)
			}
		}
	})
}

// checkLookUp looks an address up twice and applies the row.
func checkLookUp(t *testing.T, table *Table, pc uint64) {
	t.Helper()
	found, err := table.Find(pc)
	oneOf(t, found.Start <= pc && pc < found.End, err, ErrNoFDE, ErrBadCFI)
	row, rowErr := table.Row(pc)
	covers := row.FDEStart <= row.Start && row.Start <= pc && pc < row.End && row.End <= row.FDEEnd
	oneOf(t, covers, rowErr, ErrNoFDE, ErrBadCFI)
	if err != nil && rowErr == nil {
		t.Fatalf("a row without FDE: %v", err)
	}
	again, againErr := table.Row(pc)
	if rowText(&row) != rowText(&again) || (rowErr == nil) != (againErr == nil) {
		t.Fatalf("%s (%v), then %s (%v)", rowText(&row), rowErr, rowText(&again), againErr)
	}
	if rowErr == nil {
		checkApply(t, &row, table.arch)
	}
}

// checkApply applies a row to a frame with all values known, and to a frame with few known values.
func checkApply(t *testing.T, row *Row, a *arch.Arch) {
	t.Helper()
	full := fullRegisters(a)
	for _, rule := range row.Rules() {
		if expr := row.Expression(rule); len(expr) > maxExpression {
			t.Fatalf("expression of %d bytes", len(expr))
		}
	}
	for _, regs := range []arch.Registers{full, {}} {
		for _, mem := range []Memory{fixedMemory(0x1000), sparseMemory{}} {
			_, caller, err := row.Apply(&regs, mem)
			_, pc := caller.Get(a.PC)
			_, sp := caller.Get(a.SP)
			// An SP that its rule cannot compute is unknown, which is not an error.
			oneOf(t, pc && (sp || row.Rule(a.SP).Kind != RuleUnspecified), err,
				ErrBadCFI, ErrMemory, ErrRegister, ErrUndefinedRA)
		}
	}
}

// FuzzExpression evaluates arbitrary expressions, in place of a register's
// value, of its address and of the CFA. It terminates in a value or an error.
func FuzzExpression(f *testing.F) {
	f.Add(le(opBreg0+7, sleb(8), opBreg0+16, sleb(0), opLit0+15, opAnd, opLit0+11, opGe, opLit0+3, opShl, opPlus),
		uint64(1))
	f.Add(le(opBreg0+7, sleb(160), opDeref), uint64(0x1000))
	f.Add(le(opLit0+5, opLit0+1, opMinus, opDup, opBra, uint16(0xfff9)), uint64(0))
	f.Add(le(opGNUEncodedAddr, peIndir|pePCRel|peSData4, uint32(5)), uint64(7))
	f.Add(le(opConst8s, testValue, opPick, 1, opRot, opDerefSize, 2, opSkip, uint16(0)), uint64(7))

	f.Fuzz(func(t *testing.T, code []byte, memory uint64) {
		if len(code) > maxExpression {
			return
		}
		size := uleb(len(code))
		table := simpleTable(t, le(cfaExpression, uleb(6), size, code, cfaValExpression, uleb(3), size, code,
			cfaAdvanceLoc|1, cfaDefCFAExpression, size, code))
		row, err := table.Row(testStart)
		if err != nil {
			t.Fatal(err)
		}
		for _, regs := range []arch.Registers{fullRegisters(arch.AMD64), {}} {
			for _, column := range []int{3, 6} {
				e, err := row.evaluate(row.Rule(column), true, testCFA, &regs, fixedMemory(memory))
				oneOf(t, err == nil, err, ErrBadCFI, ErrMemory, ErrRegister)
				again, _ := row.evaluate(row.Rule(column), true, testCFA, &regs, fixedMemory(memory))
				if e != again {
					t.Fatalf("%#x, then %#x", e, again)
				}
			}
		}
		behind, err := table.Row(testStart + 1)
		if err != nil {
			t.Fatal(err)
		}
		checkApply(t, &row, arch.AMD64)
		checkApply(t, &behind, arch.AMD64)
	})
}
