package elfimage_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
)

// realFiles are the ELF files in PGSB_ORACLE_FILES (separated by colons), or files of this machine by default.
func realFiles(t testing.TB) []string {
	t.Helper()
	files := filepath.SplitList(os.Getenv("PGSB_ORACLE_FILES"))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, self)
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin/postgres", "/usr/lib/postgresql/*/lib/plpgsql.so",
		"/lib/*-linux-gnu/libc.so.6", "/lib/*-linux-gnu/libcrypto.so.3", "/lib/*-linux-gnu/ld-linux-*.so.*",
	} {
		found, _ := filepath.Glob(pattern)
		files = append(files, found...)
	}
	return files
}

func open(t testing.TB, path string) *elfimage.Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	m, err := elfimage.Open(f, path)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestRealFiles compares everything with debug/elf.
func TestRealFiles(t *testing.T) {
	for _, path := range realFiles(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			m := open(t, path)
			want, err := elf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = want.Close() }()
			if m.Machine() != want.Machine || m.Type() != want.Type || m.Order() != want.ByteOrder {
				t.Errorf("header: %v %v %v", m.Machine(), m.Type(), m.Order())
			}
			compareSegments(t, m, want)
			compareSections(t, m, want)
			compareSymbols(t, m, want)
			compareDefined(t, m, want)
		})
	}
}

func compareSegments(t *testing.T, m *elfimage.Image, want *elf.File) {
	t.Helper()
	var loads []elfimage.Segment
	for _, p := range want.Progs {
		if p.Type == elf.PT_LOAD {
			loads = append(loads, elfimage.Segment{
				Vaddr: p.Vaddr, Memsz: p.Memsz, Offset: p.Off, Filesz: p.Filesz, Flags: p.Flags,
			})
		}
	}
	if len(loads) != len(m.Segments()) {
		t.Fatalf("%d segments, not %d", len(m.Segments()), len(loads))
	}
	for i, s := range m.Segments() {
		if s != loads[i] {
			t.Errorf("segment %d: %+v, not %+v", i, s, loads[i])
		}
		if !mapped(m) || os.Getpagesize() != 4<<10 { // with larger pages, the places are others
			continue
		}
		if bias, ok := m.Bias(0x7f0000000000+s.Vaddr&^0xfff, s.Offset&^0xfff); !ok || bias != 0x7f0000000000 {
			t.Errorf("segment %d: bias %#x, %v", i, bias, ok)
		}
	}
}

func compareSections(t *testing.T, m *elfimage.Image, want *elf.File) {
	t.Helper()
	seen := map[string]bool{"": true}
	for _, s := range want.Sections {
		if seen[s.Name] {
			continue
		}
		seen[s.Name] = true
		data, addr, err := m.Section(s.Name)
		if s.Type == elf.SHT_NOBITS {
			if !errors.Is(err, elfimage.ErrNoSection) {
				t.Errorf("%s without content: %v", s.Name, err)
			}
			continue
		}
		expected, wantErr := s.Data()
		if err != nil || wantErr != nil {
			t.Errorf("%s: %v, %v", s.Name, err, wantErr)
		}
		if addr != s.Addr || !bytes.Equal(data, expected) {
			t.Errorf("%s differs", s.Name)
		}
	}
}

// compareDefined looks up every name of the dynamic symbols, with and without a definition, and some unknown names.
func compareDefined(t *testing.T, m *elfimage.Image, want *elf.File) {
	t.Helper()
	symbols, err := want.DynamicSymbols()
	if err != nil {
		return // a program without
	}
	names := []string{"", "no such symbol"}
	addrs := map[string][]uint64{}
	for _, s := range symbols {
		names = append(names, s.Name, s.Name+"x")
		if s.Section != elf.SHN_UNDEF && s.Value != 0 {
			addrs[s.Name] = append(addrs[s.Name], s.Value) // of several versions
		}
	}
	for kind, m := range map[string]*elfimage.Image{"by its hash table": m, "without one": unhashed(t, m.Name())} {
		found, err := m.Defined(names...)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if addr, ok := found[name]; ok != (addrs[name] != nil) || ok && !slices.Contains(addrs[name], addr) {
				t.Errorf("%s, %q is at %#x, %v, not at one of %#x", kind, name, addr, ok, addrs[name])
			}
		}
	}
}

// unhashed opens a file whose GNU hash table has another section type.
func unhashed(t *testing.T, path string) *elfimage.Image {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	shoff, entries := binary.LittleEndian.Uint64(p[40:]), binary.LittleEndian.Uint16(p[60:])
	for i := range uint64(entries) {
		if typ := p[shoff+i*64+4:]; elf.SectionType(binary.LittleEndian.Uint32(typ)) == elf.SHT_GNU_HASH {
			binary.LittleEndian.PutUint32(typ, uint32(elf.SHT_PROGBITS))
		}
	}
	m, err := elfimage.Open(bytes.NewReader(p), path)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func compareSymbols(t *testing.T, m *elfimage.Image, want *elf.File) {
	t.Helper()
	for table, read := range map[string]func() ([]elf.Symbol, error){
		".symtab": want.Symbols, ".dynsym": want.DynamicSymbols,
	} {
		expected, wantErr := read()
		got, err := m.Symbols(table)
		if errors.Is(wantErr, elf.ErrNoSymbols) {
			if !errors.Is(err, elfimage.ErrNoSection) {
				t.Errorf("%s: %v", table, err)
			}
			continue
		}
		if err != nil || wantErr != nil {
			t.Fatal(err, wantErr)
		}
		i := 0
		for s := range got {
			w := expected[i]
			if s.Name != strings.SplitN(w.Name, "@", 2)[0] && s.Name != w.Name || s.Addr != w.Value || s.Size != w.Size ||
				s.Section != w.Section || s.Type != elf.ST_TYPE(w.Info) || s.Bind != elf.ST_BIND(w.Info) {
				t.Fatalf("%s %d: %+v, not %+v", table, i, s, w)
			}
			i++
		}
		if i != len(expected) {
			t.Errorf("%s: %d symbols, not %d", table, i, len(expected))
		}
	}
}

// mapped reports whether a file can be mapped to run. A separate debug file cannot: its segments' offsets mean
// nothing.
func mapped(m *elfimage.Image) bool {
	_, _, err := m.Section(".text")
	return err == nil
}

// build opens a made-up file.
func build(t testing.TB, f *imagetest.File) *elfimage.Image {
	t.Helper()
	m, err := elfimage.Open(bytes.NewReader(f.Bytes()), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestFormats reads the same content in every class and byte order.
func TestFormats(t *testing.T) {
	for name, f := range map[string]*imagetest.File{
		"64 little": {},
		"64 big":    {Order: binary.BigEndian},
		"32 little": {Is32: true},
		"32 big":    {Is32: true, Order: binary.BigEndian},
	} {
		t.Run(name, func(t *testing.T) {
			f.Type, f.Machine = elf.ET_EXEC, elf.EM_S390
			f.Programs = []imagetest.Program{
				{Type: elf.PT_LOAD, Flags: elf.PF_X | elf.PF_R, Vaddr: 0x1000, Memsz: 0x100, Data: make([]byte, 0x100)},
				{Type: elf.PT_LOAD, Flags: elf.PF_W | elf.PF_R, Vaddr: 0x3000, Memsz: 0x80},
			}
			f.Sections = append(f.SymbolTable(".symtab", ".strtab", imagetest.Symbol{
				Name: "f", Addr: 0x1010, Size: 7, Type: elf.STT_FUNC, Bind: elf.STB_GLOBAL, Section: elf.SHN_XINDEX,
			}), imagetest.Section{Name: ".data", Type: elf.SHT_PROGBITS, Addr: 0x3000, Data: []byte("content")})
			m := build(t, f)
			checkFormat(t, f, m)
		})
	}
}

func checkFormat(t *testing.T, f *imagetest.File, m *elfimage.Image) {
	t.Helper()
	size := 8
	if f.Is32 {
		size = 4
	}
	if m.AddrSize() != size || m.Type() != elf.ET_EXEC || m.Machine() != elf.EM_S390 {
		t.Errorf("header: %d %v %v", m.AddrSize(), m.Type(), m.Machine())
	}
	if lo, hi := m.AddrRange(); lo != 0x1000 || hi != 0x3080 {
		t.Errorf("range %#x to %#x", lo, hi)
	}
	if !m.Executable(0x10ff) || m.Executable(0x1100) || m.Executable(0x3000) {
		t.Error("executable segment")
	}
	if data, addr, err := m.Section(".data"); string(data) != "content" || addr != 0x3000 || err != nil {
		t.Errorf(".data: %q %#x %v", data, addr, err)
	}
	symbols, err := m.Symbols(".symtab")
	if err != nil {
		t.Fatal(err)
	}
	for s := range symbols {
		if s.Name != "f" || s.Addr != 0x1010 || s.Size != 7 || !m.InCode(s) {
			t.Errorf("symbol %+v", s)
		}
	}
}

// unsized hides how long a file is.
type unsized struct{ io.ReaderAt }

func TestUnknownSize(t *testing.T) {
	f := imagetest.File{Sections: []imagetest.Section{
		{Name: ".big", Type: elf.SHT_PROGBITS, Data: bytes.Repeat([]byte("0123456789"), 400_000)},
	}}
	m, err := elfimage.Open(unsized{bytes.NewReader(f.Bytes())}, "unsized")
	if err != nil {
		t.Fatal(err)
	}
	data, _, err := m.Section(".big")
	if err != nil || !bytes.Equal(data, f.Sections[0].Data) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

func TestBuildIDAndDebugLink(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		u32 := func(v uint32) string { return string(order.AppendUint32(nil, v)) }
		other := u32(4) + u32(2) + u32(1) + "XYZ\x00" + "ab\x00\x00"
		note := []byte(other + u32(4) + u32(3) + u32(3) + "GNU\x00" + "\xab\xcd\x01\x00")
		f := imagetest.File{Sections: []imagetest.Section{
			{Name: ".note.gnu.build-id", Type: elf.SHT_NOTE, Data: note},
			{Name: ".gnu_debuglink", Type: elf.SHT_PROGBITS, Data: []byte("a.debug\x00" + u32(0x12345678))},
		}}
		if order == binary.BigEndian {
			f.Order = binary.BigEndian
		}
		m := build(t, &f)
		if m.BuildID() != "abcd01" {
			t.Errorf("build-id %q", m.BuildID())
		}
		if name, crc, ok := m.DebugLink(); name != "a.debug" || crc != 0x12345678 || !ok {
			t.Errorf("debug link %q %#x %v", name, crc, ok)
		}
		f.Sections[1].Data = f.Sections[1].Data[:10]
		if name, _, ok := build(t, &f).DebugLink(); ok {
			t.Errorf("cut debug link %q", name)
		}
	}
}
