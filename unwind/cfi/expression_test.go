package cfi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

// sparseMemory is memory by words of eight bytes, little endian.
type sparseMemory map[uint64]uint64

func (m sparseMemory) Word(addr uint64) (uint64, bool) { return m.Read(addr, 8) }

func (m sparseMemory) Read(addr uint64, size int) (uint64, bool) {
	v, ok := m[addr&^7]
	shift := 8 * (addr & 7)
	if !ok || int(addr&7)+size > 8 {
		return 0, false
	}
	return v >> shift & (^uint64(0) >> (64 - 8*size)), true
}

// Values that expressions in tests can get at.
const (
	testCFA   = uint64(0x7fff_0000_1000)
	testRSP   = uint64(0x7fff_0000_0f00)
	testSlot  = uint64(0x7fff_0000_0f80)
	testValue = uint64(0x8877_6655_4433_2211)
	testBias  = uint64(0x5555_0000_0000)
)

// value makes a signed number a word.
func value(v int64) uint64 { return uint64(v) }

const neg7 = -7

// expressionCases have every operation; the CFA is on the stack at the start.
var expressionCases = []struct {
	name string
	code []byte
	want uint64
	err  error
}{
	{"nothing", le(opNop), testCFA, nil},
	{"addr", le(opAddr, uint64(0x1000)), testBias + 0x1000, nil},
	{"deref", le(opBreg0+7, sleb(0x80), opDeref), testValue, nil},
	{"deref of what is not there", le(opLit0, opDeref), 0, ErrMemory},
	{"const1u", le(opConst1u, 0xfe), 0xfe, nil},
	{"const1s", le(opConst1s, 0xfe), value(-2), nil},
	{"const2u", le(opConst2u, uint16(0xfffe)), 0xfffe, nil},
	{"const2s", le(opConst2s, uint16(0xfffe)), value(-2), nil},
	{"const4u", le(opConst4u, uint32(0xffff_fffe)), 0xffff_fffe, nil},
	{"const4s", le(opConst4s, uint32(0xffff_fffe)), value(-2), nil},
	{"const8u", le(opConst8u, testValue), testValue, nil},
	{"const8s", le(opConst8s, testValue), testValue, nil},
	{"constu", le(opConstu, uleb(testValue)), testValue, nil},
	{"consts", le(opConsts, sleb(-300)), value(-300), nil},
	{"dup", le(opLit0+3, opDup, opMul), 9, nil},
	{"drop", le(opLit0+3, opDrop), testCFA, nil},
	{"over", le(opLit0+9, opLit0+4, opOver, opMinus), value(4 - 9), nil},
	{"pick", le(opLit0+9, opLit0+4, opLit0+5, opPick, 2), 9, nil},
	{"swap", le(opLit0+9, opLit0+4, opSwap, opMinus), value(4 - 9), nil},
	{"rot, top", le(opLit0+1, opLit0+2, opLit0+3, opRot), 2, nil},
	{"rot, second", le(opLit0+1, opLit0+2, opLit0+3, opRot, opDrop), 1, nil},
	{"rot, third", le(opLit0+1, opLit0+2, opLit0+3, opRot, opDrop, opDrop), 3, nil},
	{"abs", le(opConst1s, 0xf9, opAbs), 7, nil},
	{"abs of a positive number", le(opLit0+7, opAbs), 7, nil},
	{"and", le(opConst1u, 0x3c, opConst1u, 0x66, opAnd), 0x24, nil},
	{"or", le(opConst1u, 0x3c, opConst1u, 0x66, opOr), 0x7e, nil},
	{"xor", le(opConst1u, 0x3c, opConst1u, 0x66, opXor), 0x5a, nil},
	{"div is signed", le(opConst1s, 0xf9, opLit0+2, opDiv), value(neg7 / 2), nil},
	{"div of the smallest by -1", le(opConst8u, uint64(1<<63), opConst1s, 0xff, opDiv), 1 << 63, nil},
	{"div by zero", le(opLit0+1, opLit0, opDiv), 0, ErrBadCFI},
	{"mod is not", le(opConst1s, 0xf9, opLit0+10, opMod), value(neg7) % 10, nil},
	{"mod by zero", le(opLit0+1, opLit0, opMod), 0, ErrBadCFI},
	{"mul", le(opConst1s, 0xf9, opLit0+3, opMul), value(-21), nil},
	{"neg", le(opLit0+7, opNeg), value(-7), nil},
	{"not", le(opLit0, opNot), ^uint64(0), nil},
	{"plus", le(opLit0+7, opPlus), testCFA + 7, nil},
	{"plus_uconst", le(opPlusUconst, uleb(300)), testCFA + 300, nil},
	{"shl", le(opLit0+7, opLit0+4, opShl), 0x70, nil},
	{"shl by 64", le(opLit0+7, opConst1u, 64, opShl), 0, nil},
	{"shr", le(opConst1s, 0x80, opConst1u, 60, opShr), 0xf, nil},
	{"shra", le(opConst1s, 0x80, opLit0+4, opShra), value(-8), nil},
	{"shra by more than there is", le(opConst1s, 0x80, opConst1u, 200, opShra), ^uint64(0), nil},
	{"bra taken", le(opLit0+5, opLit0+1, opBra, uint16(1), opDrop), 5, nil},
	{"bra not taken", le(opLit0+5, opLit0, opBra, uint16(1), opDrop), testCFA, nil},
	{"skip", le(opSkip, uint16(1), opDrop), testCFA, nil},
	{"skip to the end", le(opLit0+1, opSkip, uint16(0)), 1, nil},
	{"skip out of the expression", le(opSkip, uint16(1)), 0, ErrBadCFI},
	{"skip before the expression", le(opSkip, uint16(0xfffc)), 0, ErrBadCFI},
	{"endless loop", le(opSkip, uint16(0xfffd)), 0, ErrBadCFI},
	{"eq", le(opLit0+1, opLit0+1, opEq), 1, nil},
	{"ne", le(opLit0+1, opLit0+1, opNe), 0, nil},
	{"ge is signed", le(opConst1s, 0xff, opLit0, opGe), 0, nil},
	{"gt", le(opLit0+2, opLit0+1, opGt), 1, nil},
	{"le", le(opLit0+2, opLit0+1, opLe), 0, nil},
	{"lt is signed", le(opConst1s, 0xff, opLit0, opLt), 1, nil},
	{"ge of equals", le(opLit0+1, opLit0+1, opGe), 1, nil},
	{"gt of equals", le(opLit0+1, opLit0+1, opGt), 0, nil},
	{"le of equals", le(opLit0+1, opLit0+1, opLe), 1, nil},
	{"lt of equals", le(opLit0+1, opLit0+1, opLt), 0, nil},
	{"lit31", le(opLit31), 31, nil},
	{"reg7", le(opReg0 + 7), testRSP, nil},
	{"breg7", le(opBreg0+7, sleb(-8)), testRSP - 8, nil},
	{"breg of an unknown register", le(opBreg0+3, sleb(0)), 0, ErrRegister},
	{"breg of no register", le(opBreg31, sleb(0)), 0, ErrRegister},
	{"regx", le(opRegx, uleb(7)), testRSP, nil},
	{"bregx", le(opBregx, uleb(7), sleb(300)), testRSP + 300, nil},
	{"bregx of no register", le(opBregx, uleb(1<<40), sleb(0)), 0, ErrRegister},
	{"deref_size 1", le(opBreg0+7, sleb(0x82), opDerefSize, 1), 0x33, nil},
	{"deref_size 4", le(opBreg0+7, sleb(0x84), opDerefSize, 4), 0x8877_6655, nil},
	{"deref_size 3", le(opBreg0+7, sleb(0x84), opDerefSize, 3), 0, ErrBadCFI},
	{"GNU_encoded_addr", le(opGNUEncodedAddr, peUData4, uint32(0x1000)), testBias + 0x1000, nil},
	{"GNU_encoded_addr funcrel", le(opGNUEncodedAddr, peFuncRel|peUData4, uint32(1)), testBias + testStart + 1, nil},
	{"GNU_encoded_addr indirect", le(opGNUEncodedAddr, peIndir|peUData8, testSlot-testBias), testValue, nil},
	{"stack underflow", le(opPlus), 0, ErrBadCFI},
	{"stack underflow by swap", le(opSwap), 0, ErrBadCFI},
	{"stack underflow by rot", le(opLit0, opRot), 0, ErrBadCFI},
	{"stack underflow by pick", le(opPick, 1), 0, ErrBadCFI},
	{"nothing left", le(opDrop), 0, ErrBadCFI},
	{"stack overflow", bytes.Repeat([]byte{opDup}, maxStack), 0, ErrBadCFI},
	{"full stack", bytes.Repeat([]byte{opDup}, maxStack-1), testCFA, nil},
	{"too many operations", bytes.Repeat([]byte{opNop}, maxExprOps+1), 0, ErrBadCFI},
	{"cut short", le(opConst8u, uint32(0)), 0, ErrBadCFI},
	{"call_frame_cfa", le(0x9c), 0, ErrBadCFI},
	{"push_object_address", le(0x97), 0, ErrBadCFI},
	{"fbreg", le(0x91, 0), 0, ErrBadCFI},
	{"piece", le(0x93, 8), 0, ErrBadCFI},
	{"stack_value", le(0x9f), 0, ErrBadCFI},
	{"entry_value", le(0xa3, 1, opReg0), 0, ErrBadCFI},
	{"xderef", le(0x18), 0, ErrBadCFI},
	{"unknown", le(0x01), 0, ErrBadCFI},
}

func TestExpression(t *testing.T) {
	for _, test := range expressionCases {
		t.Run(test.name, func(t *testing.T) {
			row := expressionRow(t, test.code)
			var regs arch.Registers
			regs.Set(7, testRSP)
			got, err := row.evaluate(row.Rule(3), true, testCFA, &regs, sparseMemory{testSlot: testValue})
			if !errors.Is(err, test.err) || test.err == nil && err != nil || err == nil && got != test.want {
				t.Errorf("%#x, %v, want %#x, %v", got, err, test.want, test.err)
			}
		})
	}
}

// expressionRow is a row with a val_expression for rbx.
func expressionRow(t testing.TB, code []byte) Row {
	t.Helper()
	table := simpleTable(t, le(cfaValExpression, uleb(3), uleb(len(code)), code))
	row, err := table.Row(testStart)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(row.Expression(row.Rule(3)), code) {
		t.Fatalf("expression %x, want %x", row.Expression(row.Rule(3)), code)
	}
	row.Bias = testBias
	return row
}

// TestExpression32 checks addresses of four bytes: values wrap at 32 bits.
func TestExpression32(t *testing.T) {
	for _, test := range []struct {
		name string
		code []byte
		want uint64
	}{
		{"wraps", le(opLit0, opLit0+1, opMinus), 0xffff_ffff},
		{"div is signed", le(opLit0+7, opNeg, opLit0+2, opDiv), 0xffff_fffd},
		{"lt is signed", le(opLit0+7, opNeg, opLit0+2, opLt), 1},
		{"shr has 32 bits", le(opLit0+1, opNeg, opLit0+28, opShr), 0xf},
		{"addr", le(opAddr, uint32(0x1000)), 0x1000},
	} {
		b := &builder{order: binary.LittleEndian, addr: testFrame}
		cie := b.cie(1, 0, uleb(1), sleb(-4), 16, cfaDefCFA, uleb(7), uleb(4))
		b.fde(cie, uint32(testStart), uint32(testSize), cfaValExpression, uleb(3), uleb(len(test.code)), test.code)
		row, err := mustNew(t, Sections{EHFrame: b.section(), Arch: arch.AMD64, AddrSize: 4}).Row(testStart)
		if err != nil {
			t.Fatal(err)
		}
		var regs arch.Registers
		if got, err := row.evaluate(row.Rule(3), true, 0, &regs, sparseMemory{}); err != nil || got != test.want {
			t.Errorf("%s: %#x, %v, want %#x", test.name, got, err, test.want)
		}
	}
}
