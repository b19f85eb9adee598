package cfi

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

// An assembler of call frame information, for tests.

type (
	uleb uint64
	sleb int64
)

// asm concatenates its parts. An int is one byte, sized numbers are in the given byte order, uleb and sleb are
// encoded, and slices and strings are copied unchanged.
func asm(order binary.AppendByteOrder, parts ...any) []byte {
	var out []byte
	for _, part := range parts {
		switch v := part.(type) {
		case int:
			out = append(out, byte(v))
		case uint16:
			out = order.AppendUint16(out, v)
		case uint32:
			out = order.AppendUint32(out, v)
		case uint64:
			out = order.AppendUint64(out, v)
		case uleb:
			out = binary.AppendUvarint(out, uint64(v))
		case sleb:
			out = appendSLEB(out, int64(v))
		case []byte:
			out = append(out, v...)
		case string:
			out = append(out, v...)
		default:
			panic(fmt.Sprintf("asm: %T", part))
		}
	}
	return out
}

// le is asm, little endian.
func le(parts ...any) []byte { return asm(binary.LittleEndian, parts...) }

func appendSLEB(out []byte, v int64) []byte {
	for {
		b := byte(v & 0x7f)
		v >>= 7
		if v == 0 && b&0x40 == 0 || v == -1 && b&0x40 != 0 {
			return append(out, b)
		}
		out = append(out, b|0x80)
	}
}

// builder assembles one section.
type builder struct {
	order binary.ByteOrder
	addr  uint64
	debug bool // .debug_frame
	wide  bool // 64-bit DWARF
	data  []byte
}

func (b *builder) asm(parts ...any) []byte {
	if b.order == binary.BigEndian {
		return asm(binary.BigEndian, parts...)
	}
	return le(parts...)
}

func (b *builder) here() uint64 { return uint64(len(b.data)) }

// entry appends an entry and returns its offset. id makes the CIE id or
// pointer from its own offset.
func (b *builder) entry(id func(at uint64) uint64, body []byte) uint64 {
	start := b.here()
	head, idSize := 4, 4
	if b.wide {
		head = 12
		if b.debug {
			idSize = 8
		}
	}
	length := uint64(idSize + len(body))
	if b.wide {
		b.data = append(b.data, b.asm(uint32(0xffff_ffff), length)...)
	} else {
		b.data = append(b.data, b.asm(uint32(length))...)
	}
	if v := id(start + uint64(head)); idSize == 8 {
		b.data = append(b.data, b.asm(v)...)
	} else {
		b.data = append(b.data, b.asm(uint32(v))...)
	}
	b.data = append(b.data, body...)
	return start
}

// cie appends a CIE with the given body behind the id.
func (b *builder) cie(body ...any) uint64 {
	return b.entry(func(uint64) uint64 {
		switch {
		case !b.debug:
			return 0
		case b.wide:
			return cieID64
		}
		return cieID32
	}, b.asm(body...))
}

// fde appends an FDE of a CIE.
func (b *builder) fde(cie uint64, body ...any) uint64 {
	return b.entry(func(at uint64) uint64 {
		if b.debug {
			return cie
		}
		return at - cie
	}, b.asm(body...))
}

func (b *builder) section() Section { return Section{Addr: b.addr, Data: b.data} }

// Where the functions of assembled sections are.
const (
	testStart = uint64(0x40_1000)
	testSize  = uint64(0x100)
	testEnd   = testStart + testSize
	testFrame = uint64(0x50_0000) // address of .eh_frame
)

// absoluteCIE appends a CIE for FDEs with absolute addresses. The CFA is rsp+8, the return address is at CFA-8, and
// the alignments are 1 and -8.
func absoluteCIE(b *builder) uint64 {
	return b.cie(1, "zR\x00", uleb(1), sleb(-8), 16, uleb(1), peAbsPtr,
		cfaDefCFA, uleb(7), uleb(8), cfaOffset|16, uleb(1))
}

// simpleTable is a Table with one function of the given instructions, without header.
func simpleTable(t testing.TB, instructions []byte) *Table {
	t.Helper()
	b := &builder{order: binary.LittleEndian, addr: testFrame}
	b.fde(absoluteCIE(b), testStart, testSize, uleb(0), instructions)
	return mustNew(t, Sections{EHFrame: b.section(), Arch: arch.AMD64})
}

func mustNew(t testing.TB, s Sections) *Table {
	t.Helper()
	table, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// rowText prints a row's rules: "cfa=rsp+8 rip=c-8".
func rowText(row *Row) string {
	var text strings.Builder
	text.WriteString("cfa=" + readelfRule(row, row.CFA, true))
	for _, rule := range row.Rules() {
		text.WriteString(" " + readelfName(int(rule.Column)) + "=" + readelfRule(row, rule, false))
	}
	return text.String()
}
