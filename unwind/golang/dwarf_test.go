package golang

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"runtime/debug"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
)

// Codes of the abbreviations in describedBy.
const (
	unitEntry = iota + 1
	structEntry
	memberEntry
	functionEntry
)

// describedBy returns a program whose debugging information is one compilation unit with the given entries.
func describedBy(t *testing.T, entries []byte) *elfimage.Image {
	t.Helper()
	abbrev := []byte{
		unitEntry, 0x11, 1, 0, 0, // DW_TAG_compile_unit with children
		structEntry, 0x13, 1, 0x03, 0x08, 0, 0, // DW_TAG_structure_type with children: DW_AT_name as DW_FORM_string
		memberEntry, 0x0d, 0, 0x03, 0x08, 0x38, 0x0d, 0, 0, // DW_TAG_member: also DW_AT_data_member_location as DW_FORM_sdata
		functionEntry, 0x2e, 1, 0, 0, // DW_TAG_subprogram with children
		0,
	}
	le := binary.LittleEndian
	info := le.AppendUint32(nil, uint32(len(entries)+8))
	info = le.AppendUint16(info, 4)    // version
	info = append(info, 0, 0, 0, 0, 8) // place of the abbreviations; size of an address
	info = append(append(info, unitEntry), entries...)
	f := imagetest.File{Type: elf.ET_EXEC, Machine: elf.EM_X86_64, Sections: []imagetest.Section{
		{Name: ".debug_abbrev", Type: elf.SHT_PROGBITS, Data: abbrev},
		{Name: ".debug_info", Type: elf.SHT_PROGBITS, Data: info},
	}}
	m, err := elfimage.Open(bytes.NewReader(f.Bytes()), "hostile")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// member is a field of a structure and its offset.
type member struct {
	name   string
	offset int
}

// structures returns the entries of the structures that LayoutFrom reads, with an offset of runtime.g.atomicstatus.
func structures(status int) []byte {
	var out []byte
	for _, s := range []struct {
		name    string
		members []member
	}{
		{"runtime.gobuf", []member{{"sp", 0}, {"pc", offPC - offSP}, {"g", offSelf - offSP}, {"bp", 40}, {"lr", 32}}},
		{"runtime.m", []member{{"procid", 64}, {"curg", 128}}},
		{"runtime.g", []member{
			{"stack", offStackLow}, {"m", offThread}, {"sched", offSP}, {"syscallsp", 112}, {"syscallpc", 120},
			{"atomicstatus", status}, {"goid", 152}, {"waitreason", 176}, {"lockedm", 240},
		}},
	} {
		out = append(append(append(out, structEntry), s.name...), 0)
		for _, m := range s.members {
			out = append(append(append(out, memberEntry), m.name...), 0)
			for ; m.offset < -64 || m.offset > 63; m.offset >>= 7 {
				out = append(out, byte(m.offset)|0x80)
			}
			out = append(out, byte(m.offset)&0x7f)
		}
		out = append(out, 0)
	}
	return out
}

// TestLayoutFrom checks that an offset outside of a structure is not used.
func TestLayoutFrom(t *testing.T) {
	for status, want := range map[int]error{144: nil, -8: ErrRuntimeVersion, 1 << 12: ErrRuntimeVersion} {
		l, err := LayoutFrom(describedBy(t, structures(status)))
		if !errors.Is(err, want) || err == nil && l.Status != status {
			t.Errorf("%d: %+v, %v", status, l, err)
		}
	}
}

// TestLayoutFromNested checks that LayoutFrom skips deeply nested entries without a deep stack.
func TestLayoutFromNested(t *testing.T) {
	defer debug.SetMaxStack(debug.SetMaxStack(16 << 20))
	const depth = 1 << 20
	nested := append(bytes.Repeat([]byte{functionEntry}, depth), make([]byte, depth)...)
	if l, err := LayoutFrom(describedBy(t, append(nested, structures(144)...))); err != nil || l.Status != 144 {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err := LayoutFrom(describedBy(t, nested[:depth])); !errors.Is(err, ErrRuntimeVersion) {
		t.Errorf("cut: %+v, %v", l, err)
	}
}
