package symbol_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/symbol"
)

// The made-up files have code from 0x1000 to 0x9000 in section 1 and data from 0xa000 in section 2.
const (
	text elf.SectionIndex = 1
	data elf.SectionIndex = 2
)

// makeImage builds an image with these symbols.
func makeImage(t testing.TB, symbols ...imagetest.Symbol) *elfimage.Image {
	t.Helper()
	f := imagetest.File{Type: elf.ET_DYN, Machine: elf.EM_X86_64}
	f.Programs = []imagetest.Program{
		{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_X, Vaddr: 0x1000, Memsz: 0x8000},
		{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_W, Vaddr: 0xa000, Memsz: 0x1000},
	}
	f.Sections = append([]imagetest.Section{
		{Name: ".text", Type: elf.SHT_NOBITS, Flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, Addr: 0x1000, Size: 0x8000},
		{Name: ".data", Type: elf.SHT_NOBITS, Flags: elf.SHF_ALLOC | elf.SHF_WRITE, Addr: 0xa000, Size: 0x1000},
	}, f.SymbolTable(".symtab", ".strtab", symbols...)...)
	m, err := elfimage.Open(bytes.NewReader(f.Bytes()), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func makeTable(t testing.TB, symbols ...imagetest.Symbol) *symbol.Table {
	t.Helper()
	table, err := symbol.NewTable(makeImage(t, symbols...))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// fn is a function with a name and a binding.
func fn(name string, addr, size uint64, bind elf.SymBind) imagetest.Symbol {
	return imagetest.Symbol{Name: name, Addr: addr, Size: size, Type: elf.STT_FUNC, Bind: bind, Section: text}
}

func TestAliases(t *testing.T) {
	const global, weak, local = elf.STB_GLOBAL, elf.STB_WEAK, elf.STB_LOCAL
	for _, c := range []struct {
		want    string
		symbols []imagetest.Symbol
	}{
		{"zz", []imagetest.Symbol{fn("a", 0x1000, 16, local), fn("b", 0x1000, 16, weak), fn("zz", 0x1000, 16, global)}},
		{"b", []imagetest.Symbol{fn("a", 0x1000, 16, local), fn("b", 0x1000, 16, weak)}},
		{"fork", []imagetest.Symbol{
			fn("__fork", 0x1000, 16, global), fn("_f", 0x1000, 16, global), fn("fork", 0x1000, 16, global),
		}},
		{"_f", []imagetest.Symbol{fn("__a", 0x1000, 16, global), fn("_f", 0x1000, 16, global)}},
		{"ab", []imagetest.Symbol{fn("abc", 0x1000, 16, global), fn("ac", 0x1000, 16, global), fn("ab", 0x1000, 16, global)}},
		{"unique", []imagetest.Symbol{fn("w", 0x1000, 16, weak), fn("unique", 0x1000, 16, elf.STB_LOOS)}},
		{"old", []imagetest.Symbol{fn("old@V1", 0x1000, 16, global), fn("newer@@V2", 0x1000, 16, global)}},
		{"f.cold", []imagetest.Symbol{fn("f.cold", 0x1000, 16, local)}},
		{"f.part.0.isra.1", []imagetest.Symbol{fn("f.part.0.isra.1", 0x1000, 16, local)}},
	} {
		for range 2 { // in both orders
			if s, ok := makeTable(t, c.symbols...).Lookup(0x100f, 0x1000, 0x1010); !ok || s.Name != c.want {
				t.Errorf("%v: %+v, %v", c.symbols, s, ok)
			}
			slices.Reverse(c.symbols)
		}
	}
}

// TestSymbolsThatNameNoCode has every kind of symbol that must not name code.
func TestSymbolsThatNameNoCode(t *testing.T) {
	const none, local, global = elf.STT_NOTYPE, elf.STB_LOCAL, elf.STB_GLOBAL
	for name, s := range map[string]imagetest.Symbol{
		"no size":         fn("f", 0x1000, 0, global),
		"undefined":       {Name: "f", Addr: 0x1000, Size: 16, Type: elf.STT_FUNC, Bind: global},
		"absolute":        {Name: "f", Addr: 0x1000, Size: 16, Type: elf.STT_FUNC, Bind: global, Section: elf.SHN_ABS},
		"common":          {Name: "f", Addr: 0x1000, Size: 16, Type: none, Bind: global, Section: elf.SHN_COMMON},
		"object":          {Name: "f", Addr: 0x1000, Size: 16, Type: elf.STT_OBJECT, Bind: global, Section: text},
		"thread-local":    {Name: "f", Addr: 0x1000, Size: 16, Type: elf.STT_TLS, Bind: global, Section: text},
		"section":         {Name: "f", Addr: 0x1000, Size: 16, Type: elf.STT_SECTION, Bind: local, Section: text},
		"file":            {Name: "f.c", Addr: 0x1000, Size: 16, Type: elf.STT_FILE, Bind: local, Section: elf.SHN_ABS},
		"in data":         {Name: "f", Addr: 0xa000, Size: 16, Type: elf.STT_FUNC, Bind: global, Section: data},
		"not in its part": {Name: "f", Addr: 0x1000, Size: 16, Type: elf.STT_FUNC, Bind: global, Section: data},
		"mapping symbol":  {Name: "$x.17", Addr: 0x1000, Size: 16, Type: none, Bind: local, Section: text},
		"local label":     {Name: ".L42", Addr: 0x1000, Size: 16, Type: none, Bind: local, Section: text},
		"no name":         fn("", 0x1000, 16, global),
		"line break":      fn("f\n#0  0x0 in evil", 0x1000, 16, global),
		"space":           fn("f g", 0x1000, 16, global),
		"escape":          fn("f\x1b[31m", 0x1000, 16, global),
		"not UTF-8":       fn("f\xff", 0x1000, 16, global),
		"very long name":  fn(strings.Repeat("f", 70_000), 0x1000, 16, global),
		"too wide":        fn("f", 0x1000, 1<<32, global),
		"wraps around":    fn("f", 0x1000, ^uint64(0), global),
		"beyond the text": fn("f", 0xffff_ffff_ffff_fff0, 32, global),
	} {
		table := makeTable(t, s)
		for _, addr := range []uint64{0x1000, 0x1008, 0xa000, 0xffff_ffff_ffff_fff8, 0} {
			if got, ok := table.Lookup(addr, 0, 0); ok {
				t.Errorf("%s: %#x is %+v", name, addr, got)
			}
		}
	}
}

// TestCode checks other kinds of symbols that name code, in addition to plain functions.
func TestCode(t *testing.T) {
	for name, s := range map[string]imagetest.Symbol{
		"assembler without a type": {Name: "f", Addr: 0x1000, Size: 16, Section: text},
		"indirect function":        {Name: "f", Addr: 0x1000, Size: 16, Type: elf.STT_GNU_IFUNC, Section: text},
		"extended section index":   {Name: "f", Addr: 0x1000, Size: 16, Type: elf.STT_FUNC, Section: elf.SHN_XINDEX},
	} {
		if got, ok := makeTable(t, s).Lookup(0x1000, 0, 0); !ok || got != (symbol.Symbol{Name: "f", Addr: 0x1000, Size: 16}) {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
}

// TestOverlaps looks up addresses where functions nest, overlap and are too wide.
func TestOverlaps(t *testing.T) {
	const local = elf.STB_LOCAL
	table := makeTable(t,
		fn("outer", 0x1000, 0x1000, elf.STB_GLOBAL), fn("inner", 0x1100, 0x100, local), fn("core", 0x1140, 0x40, local),
		fn("head", 0x1000, 0x10, local), // begins with outer, but is smaller
		fn("left", 0x3000, 0x200, local), fn("right", 0x3100, 0x200, local),
	)
	for _, c := range []struct {
		addr, start, end uint64
		want             string
	}{
		{0xfff, 0, 0, ""}, {0x1000, 0, 0, "head"}, {0x1010, 0, 0, "outer"}, {0x1100, 0, 0, "inner"},
		{0x1140, 0, 0, "core"}, {0x1180, 0, 0, "inner"}, {0x1200, 0, 0, "outer"}, {0x1fff, 0, 0, "outer"},
		{0x2000, 0, 0, ""}, {0x30ff, 0, 0, "left"}, {0x3100, 0, 0, "right"}, {0x32ff, 0, 0, "right"}, {0x3300, 0, 0, ""},
		// inside the range of the call frame information
		{0x1200, 0x1000, 0x2000, "outer"}, {0x1200, 0x1200, 0x2000, ""}, {0x1150, 0x1100, 0x1200, "core"},
		{0x1190, 0x1140, 0x1200, ""}, {0x1500, 0x1500, 0x1600, ""}, {0x3100, 0x3000, 0x3300, "right"},
		// a range that does not contain the address
		{0x1000, 0x3000, 0x3100, ""}, {0x1000, 0x1000, 0x1000, ""}, {0x1100, 0x1000, 0x1100, ""},
	} {
		s, ok := table.Lookup(c.addr, c.start, c.end)
		if s.Name != c.want || ok != (c.want != "") {
			t.Errorf("%#x in [%#x, %#x): %+v, not %q", c.addr, c.start, c.end, s, c.want)
		}
	}
}

// TestDeepNesting checks that a look-up stops after a limited walk outwards, and never returns a wrong answer.
func TestDeepNesting(t *testing.T) {
	symbols := make([]imagetest.Symbol, 0, 1000)
	for i := range uint64(1000) {
		symbols = append(symbols, fn("f", 0x1000+i, 4000-2*i, elf.STB_LOCAL))
	}
	table := makeTable(t, symbols...)
	for addr := uint64(0xfff); addr < 0x2100; addr++ {
		if s, ok := table.Lookup(addr, 0, 0); ok && (addr < s.Addr || addr >= s.Addr+s.Size) {
			t.Fatalf("%#x: %+v", addr, s)
		}
	}
}

// TestTwoImages adds the symbols of a debug file to the symbols of the stripped file.
func TestTwoImages(t *testing.T) {
	stripped := makeImage(t, fn("public", 0x1000, 16, elf.STB_GLOBAL))
	debug := makeImage(t, fn("public", 0x1000, 16, elf.STB_GLOBAL), fn("static", 0x1010, 16, elf.STB_LOCAL))
	table, err := symbol.NewTable(stripped, debug)
	if err != nil || table.Len() != 2 {
		t.Fatalf("%d functions, %v", table.Len(), err)
	}
	if s, ok := table.Lookup(0x101f, 0x1010, 0x1020); !ok || s.Name != "static" {
		t.Errorf("%+v, %v", s, ok)
	}
	named, total := table.Coverage(sequence([]span{{0x1000, 0x1010}, {0x1010, 0x1020}, {0x1020, 0x1030}}), noOtherName)
	if named != 2 || total != 3 {
		t.Errorf("%d of %d", named, total)
	}
}

// TestOverlappingNames reads many long names that share their bytes. All are invalid, and reading them must end.
func TestOverlappingNames(t *testing.T) {
	const n = 20_000
	f := imagetest.File{}
	symbols := make([]imagetest.Symbol, n)
	for i := range symbols {
		symbols[i] = fn("", 0x1000+uint64(i), 1, elf.STB_GLOBAL)
	}
	sections := f.SymbolTable(".symtab", ".strtab", symbols...)
	for i := range n {
		binary.LittleEndian.PutUint32(sections[0].Data[(i+1)*24:], uint32(i))
	}
	sections[1].Data = append(bytes.Repeat([]byte("n"), n), 0)
	f.Sections = append([]imagetest.Section{
		{Name: ".text", Type: elf.SHT_NOBITS, Flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, Addr: 0x1000, Size: 0x8000},
	}, sections...)
	m, err := elfimage.Open(bytes.NewReader(f.Bytes()), "overlapping")
	if err != nil {
		t.Fatal(err)
	}
	table, err := symbol.NewTable(m)
	if !errors.Is(err, symbol.ErrTooLarge) || table == nil {
		t.Errorf("%v, %v", table, err)
	}
}

func TestEmpty(t *testing.T) {
	table, err := symbol.NewTable()
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []uint64{0, 1, ^uint64(0)} {
		if s, ok := table.Lookup(addr, 0, 0); ok {
			t.Errorf("%#x: %+v", addr, s)
		}
	}
}

func TestDemangle(t *testing.T) {
	for name, want := range map[string]string{
		"PostgresMain":                           "PostgresMain",
		"_Z3fooi":                                "foo(int)",
		"_ZN3foo3barEv.cold":                     "foo::bar() [clone .cold]",
		"_RNvC6_123foo3bar":                      "123foo::bar",
		"_ZN4core3fmt5write17h0123456789abcdefE": "core::fmt::write",
		"exec_stmt.part.0":                       "exec_stmt.part.0",
		"_ZN1a28__rust_begin_short_backtrace17hb8e0473d96dacc95E": "a::__rust_begin_short_backtrace",
		"_ZN4core3fmt5write17h0123456789abcdefE.cold":             "core::fmt::write [clone .cold]",
		"_ZN4core3fmt5write17h0123456789abcdefE.llvm.4711":        "core::fmt::write",
		"_RNvC6_123foo3bar.cold":                                  "123foo::bar [clone .cold]",
		"_ZN4core3fmt5write17h0123456789abcdefEx":                 "core::fmt::write::h0123456789abcdef(long long)",
		"_Rust_is_no_mangling":                                    "_Rust_is_no_mangling",
		"_Zbroken":                                                "_Zbroken",
		"":                                                        "",
		strings.Repeat("_Z", 5_000):                               strings.Repeat("_Z", 5_000),
	} {
		if got := symbol.Demangle(name); got != want {
			t.Errorf("%q: %q, not %q", name, got, want)
		}
	}
}
