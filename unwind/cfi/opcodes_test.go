package cfi

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

// at an offset of the function there is this row.
type rowCase struct {
	offset uint64
	want   string // as rowText prints it; "error: …" for the text of ErrBadCFI
}

// base is the CIE's row.
const base = "cfa=rsp+8 rip=c-8"

// opcodeCases have every call frame instruction.
var opcodeCases = []struct {
	name string
	code []byte
	rows []rowCase
}{
	{"nothing", nil, []rowCase{{0, base}, {0xff, base}}},
	{"nop", le(cfaNop, cfaNop), []rowCase{{0, base}}},
	{
		"advance_loc", le(cfaAdvanceLoc|5, cfaDefCFAOffset, uleb(16)),
		[]rowCase{{0, base}, {4, base}, {5, "cfa=rsp+16 rip=c-8"}, {0xff, "cfa=rsp+16 rip=c-8"}},
	},
	{
		"advance_loc1", le(cfaAdvanceLoc1, 0x81, cfaDefCFAOffset, uleb(16)),
		[]rowCase{{0x80, base}, {0x81, "cfa=rsp+16 rip=c-8"}},
	},
	{
		"advance_loc2", le(cfaAdvanceLoc2, uint16(0x90), cfaDefCFAOffset, uleb(16)),
		[]rowCase{{0x8f, base}, {0x90, "cfa=rsp+16 rip=c-8"}},
	},
	{
		"advance_loc4", le(cfaAdvanceLoc4, uint32(0x91), cfaDefCFAOffset, uleb(16)),
		[]rowCase{{0x90, base}, {0x91, "cfa=rsp+16 rip=c-8"}},
	},
	{
		"MIPS_advance_loc8", le(cfaMIPSAdvanceLoc8, uint64(0x92), cfaDefCFAOffset, uleb(16)),
		[]rowCase{{0x91, base}, {0x92, "cfa=rsp+16 rip=c-8"}},
	},
	{
		"set_loc", le(cfaSetLoc, testStart+0x20, cfaDefCFAOffset, uleb(16)),
		[]rowCase{{0x1f, base}, {0x20, "cfa=rsp+16 rip=c-8"}},
	},
	{"set_loc backwards", le(cfaAdvanceLoc|2, cfaSetLoc, testStart+1), []rowCase{{0, base}, {2, "error: backwards"}}},
	{"advance beyond the address space", le(cfaMIPSAdvanceLoc8, ^uint64(0), 0x3f), []rowCase{{0xff, base}}},
	{"def_cfa", le(cfaDefCFA, uleb(6), uleb(300)), []rowCase{{0, "cfa=rbp+300 rip=c-8"}}},
	{"def_cfa_sf", le(cfaDefCFASF, uleb(6), sleb(-2)), []rowCase{{0, "cfa=rbp+16 rip=c-8"}}},
	{"def_cfa_register", le(cfaDefCFARegister, uleb(6)), []rowCase{{0, "cfa=rbp+8 rip=c-8"}}},
	{"def_cfa_offset_sf", le(cfaDefCFAOffsetSF, sleb(3)), []rowCase{{0, "cfa=rsp-24 rip=c-8"}}},
	{"def_cfa_expression", le(cfaDefCFAExpression, uleb(2), opBreg0+7, sleb(8)), []rowCase{{0, "cfa=exp rip=c-8"}}},
	{
		"def_cfa_register after an expression keeps the offset", // as GCC's runtime and readelf do
		le(cfaDefCFAExpression, uleb(2), opBreg0+7, sleb(8), cfaDefCFARegister, uleb(6)),
		[]rowCase{{0, "cfa=rbp+8 rip=c-8"}},
	},
	{"offset", le(cfaOffset|3, uleb(200)), []rowCase{{0, "cfa=rsp+8 rbx=c-1600 rip=c-8"}}},
	{"offset_extended", le(cfaOffsetExtended, uleb(17), uleb(4)), []rowCase{{0, "cfa=rsp+8 rip=c-8 xmm0=c-32"}}},
	{"offset_extended_sf", le(cfaOffsetExtendedSF, uleb(3), sleb(-4)), []rowCase{{0, "cfa=rsp+8 rbx=c+32 rip=c-8"}}},
	{
		"GNU_negative_offset_extended", le(cfaGNUNegOffsetExt, uleb(3), uleb(4)),
		[]rowCase{{0, "cfa=rsp+8 rbx=c+32 rip=c-8"}},
	},
	{"val_offset", le(cfaValOffset, uleb(7), uleb(0)), []rowCase{{0, "cfa=rsp+8 rsp=v+0 rip=c-8"}}},
	{"val_offset_sf", le(cfaValOffsetSF, uleb(7), sleb(-1)), []rowCase{{0, "cfa=rsp+8 rsp=v+8 rip=c-8"}}},
	{"register", le(cfaRegister, uleb(16), uleb(1)), []rowCase{{0, "cfa=rsp+8 rip=r1 (rdx)"}}},
	{"register out of range", le(cfaRegister, uleb(16), uleb(200)), []rowCase{{0, "error: register number"}}},
	{"same_value", le(cfaSameValue, uleb(3)), []rowCase{{0, "cfa=rsp+8 rbx=s rip=c-8"}}},
	{"undefined", le(cfaUndefined, uleb(16)), []rowCase{{0, "cfa=rsp+8 rip=u"}}},
	{"expression", le(cfaExpression, uleb(3), uleb(2), opBreg0+7, sleb(8)), []rowCase{{0, "cfa=rsp+8 rbx=exp rip=c-8"}}},
	{
		"val_expression", le(cfaValExpression, uleb(7), uleb(2), opBreg0+7, sleb(8)),
		[]rowCase{{0, "cfa=rsp+8 rsp=vexp rip=c-8"}},
	},
	{
		"restore", le(cfaOffset|3, uleb(2), cfaOffset|16, uleb(3), cfaAdvanceLoc|1, cfaRestore|3, cfaRestore|16),
		[]rowCase{{0, "cfa=rsp+8 rbx=c-16 rip=c-24"}, {1, base}},
	},
	{"restore_extended", le(cfaOffset|3, uleb(2), cfaRestoreExtended, uleb(3)), []rowCase{{0, base}}},
	{
		"remember_state and restore_state, CFA and all",
		le(cfaRememberState, cfaOffset|3, uleb(2), cfaDefCFA, uleb(6), uleb(16), cfaUndefined, uleb(16),
			cfaAdvanceLoc|1, cfaRestoreState),
		[]rowCase{{0, "cfa=rbp+16 rbx=c-16 rip=u"}, {1, base}},
	},
	{
		"remembered states nest",
		le(cfaRememberState, cfaDefCFAOffset, uleb(16), cfaRememberState, cfaDefCFAOffset, uleb(24),
			cfaAdvanceLoc|1, cfaRestoreState, cfaAdvanceLoc|1, cfaRestoreState),
		[]rowCase{{0, "cfa=rsp+24 rip=c-8"}, {1, "cfa=rsp+16 rip=c-8"}, {2, base}},
	},
	{"restore_state of nothing", le(cfaRestoreState), []rowCase{{0, "error: no remembered state"}}},
	{"too many remembered states", []byte(strings.Repeat("\x0a", maxRemembered+1)), []rowCase{{0, "error: too many"}}},
	{"too many instructions", make([]byte, maxOps+1), []rowCase{{0, "error: too many"}}},
	{"GNU_args_size", le(cfaGNUArgsSize, uleb(1000)), []rowCase{{0, base}}},
	{"unknown register", le(cfaOffsetExtended, uleb(1000), uleb(1)), []rowCase{{0, base}}},
	{"unknown instruction", le(0x3f), []rowCase{{0, "error: unknown"}}},
	{"unknown instruction below the extensions", le(0x17, 0), []rowCase{{0, "error: unknown"}}},
	{"bad code behind the address", le(cfaAdvanceLoc|8, 0x3f), []rowCase{{7, base}, {8, "error: unknown"}}},
	{"cut short", le(cfaDefCFA, uleb(7)), []rowCase{{0, "error: truncated"}}},
	{"number too long", []byte("\x0e\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02"), []rowCase{{0, "error: truncated"}}},
	{"expression too long", le(cfaDefCFAExpression, uleb(100), opNop), []rowCase{{0, "error: expression"}}},
	{"CFA by an unknown register", le(cfaDefCFARegister, uleb(300)), []rowCase{{0, "error: no rule for the CFA"}}},
}

func TestOpcodes(t *testing.T) {
	for _, test := range opcodeCases {
		t.Run(test.name, func(t *testing.T) {
			table := simpleTable(t, test.code)
			for _, want := range test.rows {
				checkRow(t, table, testStart+want.offset, want.want)
			}
		})
	}
}

// checkRow compares a row's text, or an error's, twice: computed and from the cache.
func checkRow(t *testing.T, table *Table, pc uint64, want string) {
	t.Helper()
	for range 2 {
		row, err := table.Row(pc)
		got := rowText(&row)
		if what, ok := strings.CutPrefix(want, "error: "); ok {
			if !errors.Is(err, ErrBadCFI) || !strings.Contains(err.Error(), what) {
				t.Errorf("%#x: %v (%s), want %s", pc, err, got, want)
			}
			continue
		}
		if err != nil || got != want {
			t.Errorf("%#x: %s (%v), want %s", pc, got, err, want)
		}
		if pc < row.Start || pc >= row.End || row.Start < row.FDEStart || row.End > row.FDEEnd {
			t.Errorf("%#x: row %#x..%#x of %#x..%#x", pc, row.Start, row.End, row.FDEStart, row.FDEEnd)
		}
	}
}

// TestInitialInstructions checks that a CIE's own instructions must not do certain things, and that they are scaled
// by the CIE's alignments.
func TestInitialInstructions(t *testing.T) {
	for _, test := range []struct {
		name string
		code []byte
		want string
	}{
		{"none", nil, "error: no rule for the CFA"},
		{"scaled", le(cfaDefCFASF, uleb(7), sleb(2), cfaOffset|16, uleb(3)), "cfa=rsp-8 rip=c-12"},
		{"advance_loc", le(cfaAdvanceLoc | 1), "error: advanced in a CIE"},
		{"set_loc", le(cfaSetLoc, testStart), "error: backwards"},
		{"restore", le(cfaRestore | 3), "error: restored in a CIE"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &builder{order: binary.LittleEndian, addr: testFrame}
			cie := b.cie(1, "zR\x00", uleb(4), sleb(-4), 16, uleb(1), peAbsPtr, test.code)
			b.fde(cie, testStart, testSize, uleb(0), cfaAdvanceLoc|2, cfaSameValue, uleb(3))
			table := mustNew(t, Sections{EHFrame: b.section(), Arch: arch.AMD64})
			checkRow(t, table, testStart+7, test.want)
			if !strings.HasPrefix(test.want, "error") {
				checkRow(t, table, testStart+8, strings.Replace(test.want, " rip", " rbx=s rip", 1))
			}
		})
	}
}

// TestNegateRAState has aarch64's instruction that toggles whether the return address is signed.
func TestNegateRAState(t *testing.T) {
	b := &builder{order: binary.LittleEndian, addr: testFrame}
	cie := b.cie(1, "zRB\x00", uleb(4), sleb(-8), 30, uleb(1), peAbsPtr, cfaDefCFA, uleb(31), uleb(0))
	b.fde(cie, testStart, testSize, uleb(0), cfaAdvanceLoc|1, cfaNegateRAState, cfaAdvanceLoc|1, cfaRememberState,
		cfaNegateRAStatePC, cfaAdvanceLoc|1, cfaRestoreState)
	table := mustNew(t, Sections{EHFrame: b.section(), Arch: arch.ARM64})
	for offset, want := range map[uint64]bool{0: false, 4: true, 8: false, 12: true} {
		row, err := table.Row(testStart + offset)
		if err != nil || row.RASigned != want {
			t.Errorf("+%d: signed %v, %v", offset, row.RASigned, err)
		}
	}
}
