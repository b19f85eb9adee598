package cfi

import (
	"encoding/binary"
	"fmt"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

// Bases of encoded pointers in tests.
const (
	testText = uint64(0x40_0000)
	testData = uint64(0x60_0000)
)

// formats are the number formats of encoded pointers and how they are written.
func formats(order binary.AppendByteOrder) map[byte]func(v uint64) []byte {
	u2 := func(v uint64) []byte { return asm(order, uint16(v)) }
	u4 := func(v uint64) []byte { return asm(order, uint32(v)) }
	u8 := func(v uint64) []byte { return asm(order, v) }
	return map[byte]func(uint64) []byte{
		peAbsPtr: u8, peSigned: u8, peUData2: u2, peUData4: u4, peUData8: u8,
		peSData2: u2, peSData4: u4, peSData8: u8,
		peULEB: func(v uint64) []byte { return asm(order, uleb(v)) },
		peSLEB: func(v uint64) []byte { return asm(order, sleb(int64(v))) },
	}
}

// TestEncodings checks every pointer encoding, in both byte orders, for an FDE's addresses.
func TestEncodings(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for format, write := range formats(order) {
			for _, base := range []byte{peAbsPtr, pePCRel, peTextRel, peDataRel} {
				name := fmt.Sprintf("%s %#02x", order, base|format)
				t.Run(name, func(t *testing.T) { testEncoding(t, order, base|format, write) })
			}
		}
	}
}

func testEncoding(t *testing.T, order binary.AppendByteOrder, enc byte, write func(uint64) []byte) {
	b := &builder{order: binary.LittleEndian, addr: testFrame}
	a := arch.AMD64
	if order == binary.AppendByteOrder(binary.BigEndian) {
		b.order, a = binary.BigEndian, arch.S390X
	}
	cie := b.cie(1, "zR\x00", uleb(1), sleb(-8), a.ReturnColumn, uleb(1), int(enc), cfaDefCFA, uleb(7), uleb(8))
	at := testFrame + b.here() + 8 // of the pointer
	base := map[byte]uint64{pePCRel: at, peTextRel: testText, peDataRel: testData}[enc&peBase]

	// Before the base with a sign, behind it without.
	distance := uint64(0x5000)
	start := base + distance
	if enc&peSigned != 0 && base != 0 {
		start = base - distance
	}
	size := uint64(0x9000) // negative in sdata2: lengths have no sign
	if enc&peFormat == peSLEB {
		size = 0x2000
	}
	b.fde(cie, write(start-base), write(size), uleb(0))

	table := mustNew(t, Sections{
		EHFrame: b.section(), Order: b.order, Arch: a, TextAddr: testText, DataAddr: testData,
	})
	f, err := table.Find(start + size - 1)
	if err != nil || f.Start != start || f.End != start+size {
		t.Errorf("%#x..%#x, %v, want %#x..%#x", f.Start, f.End, err, start, start+size)
	}
}

// TestPointer checks cases that do not occur in an FDE: alignment, functions, indirection, errors.
func TestPointer(t *testing.T) {
	frame := Section{Addr: testFrame, Data: le(0, 0, 0, uint64(0x1234_5678), testFrame+3, 0xff)}
	deref := func(addr uint64) (uint64, bool) { return addr + 1, addr == 0x99 }
	table := mustNew(t, Sections{EHFrame: frame, Arch: arch.AMD64, Deref: deref})
	narrow := mustNew(t, Sections{EHFrame: frame, Arch: arch.AMD64, AddrSize: 4})
	at := bases{section: testFrame, data: testData, fn: testStart, hasFn: true}
	for _, test := range []struct {
		name  string
		table *Table
		enc   byte
		data  []byte
		pos   int
		bases bases
		want  uint64
		ok    bool
	}{
		{"funcrel", table, peFuncRel | peUData2, le(uint16(5)), 0, at, testStart + 5, true},
		{"funcrel without function", table, peFuncRel | peUData2, le(uint16(5)), 0, bases{}, 0, false},
		{"aligned", table, peAligned, le(1, 0, 0, 0, 0, 0, 0, 0, uint64(77)), 1, at, 77, true},
		{"aligned already", table, peAligned, le(uint64(77)), 0, at, 77, true},
		{"aligned by address", table, peAligned, le(0, 0, uint64(77)), 0, bases{section: 6}, 77, true},
		{"aligned, cut short", table, peAligned, le(1, 0, 0), 1, at, 0, false},
		{"indirect in the section", table, peIndir | peUData4, le(uint32(testFrame + 3)), 0, at, 0x1234_5678, true},
		{"indirect and aligned", table, peIndir | peAligned, le(testFrame + 3), 0, at, 0x1234_5678, true},
		{"indirect elsewhere", table, peIndir | peUData2, le(uint16(0x99)), 0, at, 0x9a, true},
		{"indirect to nowhere", table, peIndir | peUData2, le(uint16(0x98)), 0, at, 0, false},
		{"indirect to the section's end", table, peIndir | peUData4, le(uint32(testFrame + 13)), 0, at, 0, false},
		{"omitted", table, peOmit, le(uint64(0)), 0, at, 0, false},
		{"unknown format", table, 0x07, le(uint64(0)), 0, at, 0, false},
		{"unknown base", table, 0x60, le(uint64(0)), 0, at, 0, false},
		{"cut short", table, peUData4, le(uint16(0)), 0, at, 0, false},
		{"address size", narrow, peAbsPtr, le(uint32(0xffff_fff0)), 0, at, 0xffff_fff0, true},
		{"wraps in 32 bits", narrow, peDataRel | peSData2, le(uint16(0xfff0)), 0, bases{data: 8}, 0xffff_fff8, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := reader{data: test.data, pos: test.pos}
			got := test.table.pointer(&r, test.enc, test.bases)
			if r.failed == test.ok || test.ok && got != test.want {
				t.Errorf("%#x, failed %v, want %#x", got, r.failed, test.want)
			}
		})
	}
}

func TestLEB128(t *testing.T) {
	for _, v := range []uint64{0, 1, 127, 128, 1 << 31, 1<<63 - 1, 1 << 63, ^uint64(0)} {
		r := reader{data: le(uleb(v))}
		if got := r.uleb(); got != v || r.failed {
			t.Errorf("uleb %#x: %#x", v, got)
		}
		for _, s := range []int64{int64(v), -int64(v)} {
			r := reader{data: le(sleb(s))}
			if got := r.sleb(); got != s || r.failed {
				t.Errorf("sleb %d: %d, %v", s, got, r.failed)
			}
		}
	}
	padded := reader{data: []byte("\x81\x80\x80\x00\xff\xff\x7f")}
	if u, s := padded.uleb(), padded.sleb(); u != 1 || s != -1 || padded.failed {
		t.Errorf("padded: %d %d %v", u, s, padded.failed)
	}
	for _, bad := range []string{"", "\x80", "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"} {
		for i, read := range []func(*reader){func(r *reader) { r.uleb() }, func(r *reader) { r.sleb() }} {
			r := reader{data: []byte(bad)}
			if read(&r); !r.failed {
				t.Errorf("%q, %d: not refused", bad, i)
			}
		}
	}
}
