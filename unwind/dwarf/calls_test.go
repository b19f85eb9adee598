package dwarf

import (
	"encoding/binary"
	"testing"
)

// TestBlockWithoutAddresses: a lexical block without addresses may contain the address, so calls behind it are found.
func TestBlockWithoutAddresses(t *testing.T) {
	const name, low, high, line = byte(attrName), byte(attrLowPC), byte(attrHighPC), byte(attrCallLine)
	const unit, function, inlined, block, variable = 1, 2, 3, 4, 5
	abbrev := []byte{
		unit, byte(tagCompileUnit), 1, low, 0x01, high, 0x07, 0, 0,
		function, byte(tagSubprogram), 1, name, 0x08, low, 0x01, high, 0x07, 0, 0,
		inlined, byte(tagInlinedSubroutine), 1, name, 0x08, low, 0x01, high, 0x07, line, 0x0b, 0, 0,
		block, byte(tagLexicalBlock), 1, 0, 0,
		variable, 0x34, 0, 0, 0,
		0,
	}
	const addr, size = 0x1000, 0x10
	at := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, addr), size)
	var entries []byte
	add := func(parts ...[]byte) {
		for _, p := range parts {
			entries = append(entries, p...)
		}
	}
	add([]byte{4, 0, 0, 0, 0, 0, 8}) // version, table of abbreviations, size of addresses
	add([]byte{unit}, at, []byte{function}, []byte("f\x00"), at)
	add([]byte{inlined}, []byte("a\x00"), at, []byte{10, block, variable, 0})
	add([]byte{inlined}, []byte("b\x00"), at, []byte{20, 0, 0, 0, 0})
	info := append(binary.LittleEndian.AppendUint32(nil, uint32(len(entries))), entries...)
	frames, err := fromBytes(map[string][]byte{".debug_abbrev": abbrev, ".debug_info": info}, nil).Frames(addr)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for i := range frames {
		got += frames[i].Function
	}
	if got != "baf" {
		t.Errorf("functions %q of %+v", got, frames)
	}
}
