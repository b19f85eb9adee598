package selfnames_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/selfnames"
	"pg_stat_backtrace/unwind/symbol"
)

// Where a small image has its parts.
const (
	textAddr, stringsAddr, framesAddr = 0x1000, 0x8000, 0xc000
	functionSize                      = 32
)

// frameInformation is .eh_frame for functions with these addresses and sizes.
func frameInformation(functions [][2]uint64, machine elf.Machine) []byte {
	var b bytes.Buffer
	word := func(v uint32) { _ = binary.Write(&b, binary.LittleEndian, v) }
	// Version 1, no augmentation, factors 1 and -8, the return address in column 16 or 30, and the frame of an entry.
	cie := []byte{1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0}
	if machine == elf.EM_AARCH64 {
		cie = []byte{1, 0, 1, 0x78, 30, 0x0c, 31, 0, 0, 0, 0, 0}
	}
	word(uint32(4 + len(cie)))
	word(0)
	b.Write(cie)
	for _, f := range functions {
		word(4 + 16)
		word(uint32(b.Len()))
		_ = binary.Write(&b, binary.LittleEndian, f)
	}
	word(0)
	return b.Bytes()
}

// smallImage is an image of code, strings and relocations, in which the first function is errfinish.
func smallImage(t testing.TB, machine elf.Machine, code, strs, relocations []byte) (
	*elfimage.Image, *cfi.Table, *symbol.Table,
) {
	t.Helper()
	code = append(code, make([]byte, (functionSize-len(code)%functionSize)%functionSize)...)
	var functions [][2]uint64
	for at := 0; at < len(code); at += functionSize {
		functions = append(functions, [2]uint64{textAddr + uint64(at), functionSize})
	}
	frames := frameInformation(functions, machine)
	f := imagetest.File{Type: elf.ET_DYN, Machine: machine}
	f.Programs = []imagetest.Program{
		{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_X, Vaddr: textAddr, Memsz: uint64(len(code)), Data: code},
		{Type: elf.PT_LOAD, Flags: elf.PF_R, Vaddr: stringsAddr, Memsz: uint64(len(strs)), Data: strs},
	}
	f.Sections = append(f.Sections,
		imagetest.Section{
			Name: ".text", Type: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, Addr: textAddr, Data: code,
		},
		imagetest.Section{Name: ".eh_frame", Type: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC, Addr: framesAddr, Data: frames},
		imagetest.Section{Name: ".rela.dyn", Type: elf.SHT_RELA, //nolint:misspell // their names
			Flags: elf.SHF_ALLOC, Addr: framesAddr + 0x4000, Data: relocations, Link: ".dynsym"})
	symbols := []imagetest.Symbol{
		{Name: "errfinish", Addr: textAddr, Size: functionSize, Type: elf.STT_FUNC, Bind: elf.STB_GLOBAL, Section: 1},
		{Name: "exported", Addr: textAddr + functionSize, Size: functionSize, Type: elf.STT_FUNC, Section: 1},
	}
	f.Sections = append(f.Sections, f.SymbolTable(".dynsym", ".dynstr", symbols...)...)
	m, err := elfimage.Open(bytes.NewReader(f.Bytes()), "fuzz")
	if err != nil {
		t.Fatal(err)
	}
	a, err := arch.ByMachine(machine, binary.LittleEndian)
	if err != nil {
		t.Fatal(err)
	}
	table, err := cfi.New(cfi.Sections{
		EHFrame: cfi.Section{Addr: framesAddr, Data: frames}, Order: binary.LittleEndian, AddrSize: 8, Arch: a,
	})
	if err != nil {
		t.Fatal(err)
	}
	exported, err := symbol.NewTable(m)
	if err != nil {
		t.Fatal(err)
	}
	return m, table, exported
}

// reportingX86 is errfinish, an exported function, and a function that reports with the string at stringsAddr.
func reportingX86() []byte {
	code := bytes.Repeat([]byte{0xc3}, 3*functionSize)
	at := func(offset int, b ...byte) { copy(code[2*functionSize+offset:], b) }
	relative := func(from, to int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(int32(to-from))) }
	here := textAddr + 2*functionSize
	at(0, append([]byte{0x48, 0x8d, 0x15}, relative(here+7, stringsAddr)...)...)     // lea rdx, name
	at(7, append([]byte{0x48, 0x8d, 0x3d}, relative(here+14, stringsAddr+16)...)...) // lea rdi, file
	at(14, append([]byte{0xe8}, relative(here+19, textAddr)...)...)                  // call errfinish
	return code
}

// theNames are a function's and a file's.
const theNames = "heap_insert\x00\x00\x00\x00\x00heapam.c\x00"

var identifier = regexp.MustCompile(`^[A-Za-z_]\w*$`)

// TestReportedFunction derives a note from the smallest image that has one.
func TestReportedFunction(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ what, names, want string }{
		{"a function", theNames, "has code of heap_insert; heapam.c"},
		{"no identifier", strings.Replace(theNames, "_", " ", 1), ""},
		{"an identifier that is too long", strings.Repeat("x", 100) + "\x00", ""},
		{"no end", "heap_insert", ""},
		{"no file", strings.Replace(theNames, ".c", ".o", 1), "has code of heap_insert"},
		{"a function of a header", strings.Replace(theNames, ".c", ".h", 1), ""},
	} {
		m, table, exported := smallImage(t, elf.EM_X86_64, reportingX86(), []byte(c.names), nil)
		names, err := selfnames.Derive(m, table, exported, selfnames.Builtin())
		if err != nil {
			t.Fatal(err)
		}
		if fact, _ := names.At(textAddr + 2*functionSize); fact.Note != c.want || fact.Name != "" {
			t.Errorf("%s: %+v, want %q", c.what, fact, c.want)
		}
	}
}

// FuzzDerive derives facts from arbitrary code, strings and relocations of both architectures.
func FuzzDerive(f *testing.F) {
	f.Add(reportingX86(), []byte(theNames), []byte(nil), false)
	f.Add(bytes.Repeat([]byte{0x0f, 0x85, 0x10, 0, 0, 0}, 200), []byte(theNames), bytes.Repeat([]byte{8}, 48), false)
	f.Add(bytes.Repeat([]byte{0x42, 0, 0, 0x94, 0x20, 0, 0, 0x54}, 50), []byte(theNames), []byte(nil), true)
	f.Fuzz(func(t *testing.T, code, strs, relocations []byte, arm bool) {
		const most = 0x6000
		if len(code) < 2*functionSize || len(code) > most || len(strs) == 0 || len(strs) > 0x3000 {
			return
		}
		machine := elf.EM_X86_64
		if arm {
			machine = elf.EM_AARCH64
		}
		m, table, exported := smallImage(t, machine, code, strs, relocations)
		names, err := selfnames.Derive(m, table, exported, selfnames.Builtin())
		if err != nil {
			if !errors.Is(err, selfnames.ErrForeign) && !errors.Is(err, elfimage.ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		for fde := range table.FDEs {
			fact, _ := names.At(fde.Start)
			if fact.Name != "" && !identifier.MatchString(fact.Name) {
				t.Errorf("name %q", fact.Name)
			}
			if strings.ContainsFunc(fact.Note, unicode.IsControl) {
				t.Errorf("note %q", fact.Note)
			}
		}
	})
}

// FuzzUnpack reads arbitrary tables.
func FuzzUnpack(f *testing.F) {
	source := selfnames.Source{Version: "15.18", Files: []selfnames.SourceFile{{
		Path: "backend/a.c", Functions: []selfnames.SourceFunction{
			{Name: "a", Static: true, Reports: true, Mentions: []int{1}}, {Name: "b", Points: []int{0}},
		},
	}}}
	packed, err := source.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packed)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := selfnames.Unpack(p)
		if err != nil {
			if !errors.Is(err, selfnames.ErrTable) {
				t.Fatal(err)
			}
			return
		}
		for i := range s.Files {
			fns := s.Files[i].Functions
			for j := range fns {
				for _, to := range append(fns[j].Mentions, fns[j].Points...) {
					if to < 0 || to >= len(fns) {
						t.Fatalf("%d of %d functions", to, len(fns))
					}
				}
			}
		}
	})
}

// TestHugeText refuses an image with 500 MB of code before it reads it.
func TestHugeText(t *testing.T) {
	t.Parallel()
	m, table, exported := smallImage(t, elf.EM_X86_64, reportingX86(), []byte(theNames), nil)
	if _, err := selfnames.Derive(m, table, exported, nil); err != nil {
		t.Fatal(err)
	}
	huge := hugeImage(t)
	if _, err := selfnames.Derive(huge, table, exported, nil); !errors.Is(err, selfnames.ErrTooLarge) {
		t.Errorf("%v, want %v", err, selfnames.ErrTooLarge)
	}
}

// hugeImage has a segment of code of 500 MB, in a file that would have it if it were read.
func hugeImage(t *testing.T) *elfimage.Image {
	t.Helper()
	const size = 500 << 20
	f := imagetest.File{Type: elf.ET_DYN, Machine: elf.EM_X86_64}
	f.Programs = []imagetest.Program{
		{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_X, Vaddr: textAddr, Offset: 0x1000, Filesz: size, Memsz: size},
	}
	f.Sections = f.SymbolTable(".dynsym", ".dynstr", imagetest.Symbol{
		Name: "errfinish", Addr: textAddr, Size: functionSize, Type: elf.STT_FUNC, Bind: elf.STB_GLOBAL,
		Section: elf.SHN_ABS - 1,
	})
	m, err := elfimage.Open(endless{bytes.NewReader(f.Bytes())}, "huge")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// endless is a file that has zeros behind its end. Its size is not known.
type endless struct{ r *bytes.Reader }

func (e endless) ReadAt(p []byte, off int64) (int, error) {
	n, _ := e.r.ReadAt(p, off)
	clear(p[n:])
	return len(p), nil
}
