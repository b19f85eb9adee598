package symbol_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"testing"
	"unicode"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/symbol"
)

// fuzzSymbols makes symbols of bytes, twelve each, most of them in the small space where they overlap.
func fuzzSymbols(p []byte) []imagetest.Symbol {
	var all []imagetest.Symbol
	for ; len(p) >= 12 && len(all) < 200; p = p[12:] {
		addr, size := binary.LittleEndian.Uint16(p[1:]), binary.LittleEndian.Uint16(p[3:])
		s := fn(string(rune('a'+p[0]%26)), uint64(addr), uint64(size), elf.SymBind(p[5]%3))
		if p[6] > 200 {
			s.Type, s.Section = elf.SymType(p[7]&0xf), elf.SectionIndex(p[8])
			s.Addr |= uint64(p[9]) << 56
			s.Size |= uint64(p[10]) << 56
			s.Name += string(p[11:12])
		}
		all = append(all, s)
	}
	return all
}

// FuzzTable checks look-ups in a table of foreign symbols against a search through all of them.
func FuzzTable(f *testing.F) {
	const plain = "\x00\x00\x00\x00\x00\x00"
	f.Add([]byte("a\x00\x10\x10\x00\x01"+plain+"b\x08\x10\x04\x00\x00"+plain), uint64(0x1008))
	f.Add(bytes.Repeat([]byte("q\x00\x20\x20\x03\x02\xff\x02\x01\x00\x00\x00"), 40), uint64(0x2010))
	f.Fuzz(func(t *testing.T, p []byte, addr uint64) {
		symbols := fuzzSymbols(p)
		table := makeTable(t, symbols...)
		checkOrder(t, table)
		for _, a := range []uint64{addr, addr & 0xffff, 0x1000 + addr&0xfff} {
			checkLookup(t, table, a)
		}
	})
}

// checkOrder checks that the functions ascend and that each has a name that fits into a line of output.
func checkOrder(t *testing.T, table *symbol.Table) {
	t.Helper()
	last := uint64(0)
	for s := range table.All() {
		if s.Addr < last || s.Size == 0 || s.Addr+s.Size < s.Addr || s.Name == "" {
			t.Fatalf("%+v behind %#x", s, last)
		}
		for _, r := range s.Name {
			if unicode.IsSpace(r) || unicode.IsControl(r) {
				t.Fatalf("name %q", s.Name)
			}
		}
		last = s.Addr
	}
}

// checkLookup compares with the last function of the table that contains addr. In the table's order the innermost
// function is last. If functions nest deeper than any real ones, there may be no answer.
func checkLookup(t *testing.T, table *symbol.Table, addr uint64) {
	t.Helper()
	var want symbol.Symbol
	depth := 0
	for s := range table.All() {
		if addr >= s.Addr {
			depth++
			if addr < s.Addr+s.Size {
				want, depth = s, 0
			}
		}
	}
	got, ok := table.Lookup(addr, 0, 0)
	if ok != (got.Size > 0) || got != want && (ok || depth < 32) {
		t.Fatalf("%#x: %+v, %v, but %+v", addr, got, ok, want)
	}
	if s, ok := table.Lookup(addr, addr+1, addr+2); ok {
		t.Fatalf("%#x: %+v of another range", addr, s)
	}
	if s, ok := table.Lookup(addr, addr&^0xff, addr|0xff); ok && (s != want || s.Addr < addr&^0xff) {
		t.Fatalf("%#x: %+v begins outside", addr, s)
	}
}

// FuzzNewTable builds tables of foreign files.
func FuzzNewTable(f *testing.F) {
	seed := imagetest.File{Type: elf.ET_DYN}
	seed.Programs = []imagetest.Program{{Type: elf.PT_LOAD, Flags: elf.PF_X, Vaddr: 0x1000, Memsz: 0x8000}}
	seed.Sections = seed.SymbolTable(".symtab", ".strtab", fn("main", 0x1000, 16, elf.STB_GLOBAL))
	f.Add(seed.Bytes())
	f.Fuzz(func(t *testing.T, p []byte) {
		m, err := elfimage.Open(bytes.NewReader(p), "fuzz")
		if err != nil {
			return
		}
		table, err := symbol.NewTable(m)
		if table == nil || err != nil && table.Len() != 0 && len(m.Segments()) == 0 {
			t.Fatalf("table %v, error %v", table, err)
		}
		checkOrder(t, table)
		for s := range table.All() {
			if got, ok := table.Lookup(s.Addr, 0, 0); ok && got.Addr != s.Addr {
				t.Fatalf("%#x: %+v", s.Addr, got)
			}
		}
	})
}

// FuzzDemangle checks that foreign names cannot cause a panic or a huge result.
func FuzzDemangle(f *testing.F) {
	for _, name := range []string{
		"_Z3fooi", "_ZN3foo3barEv.cold", "_RNvC6_123foo3bar", "_ZSt4moveIRiEONSt16remove_referenceIT_E4typeEOS2_",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if out := symbol.Demangle(name); len(out) > len(name)+1<<20 {
			t.Fatalf("%d bytes of %d", len(out), len(name))
		}
	})
}
