package selfnames_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/selfnames"
	"pg_stat_backtrace/unwind/symbol"
)

// subjects are the programs and PL/pgSQL modules of the servers in PGSB_TEST_BINDIRS and PGSB_DEBUG_BINDIR, and the
// files in PGSB_NAMES_TRUTH, which are other builds with symbols.
func subjects() []string {
	files := filepath.SplitList(os.Getenv("PGSB_NAMES_TRUTH"))
	dirs := os.Getenv("PGSB_DEBUG_BINDIR") + string(filepath.ListSeparator) + os.Getenv("PGSB_TEST_BINDIRS")
	for _, dir := range filepath.SplitList(dirs) {
		if dir == "" {
			continue
		}
		files = append(files, filepath.Join(dir, "postgres"))
		for _, lib := range []string{"../lib/postgresql", "../lib"} {
			module := filepath.Join(dir, lib, "plpgsql.so")
			if _, err := os.Stat(module); err == nil {
				files = append(files, module)
			}
		}
	}
	return files
}

// openImage opens an image with the data from which names are derived.
func openImage(t testing.TB, file string) (*elfimage.Image, *cfi.Table, *symbol.Table) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	m, err := elfimage.Open(f, filepath.Base(file))
	if err != nil {
		t.Fatal(err)
	}
	a, err := arch.ByMachine(m.Machine(), m.Order())
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.CFISections()
	if err != nil {
		t.Fatal(err)
	}
	table, err := cfi.New(cfi.Sections{
		EHFrameHdr: cfi.Section(s.EHFrameHdr), EHFrame: cfi.Section(s.EHFrame), Order: m.Order(), AddrSize: m.AddrSize(),
		Arch: a, TextAddr: s.TextAddr, DataAddr: s.DataAddr,
	})
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := symbol.NewTable(m)
	if err != nil {
		t.Fatal(err)
	}
	return m, table, symbols
}

func functions(table *cfi.Table) (n int) {
	for range table.FDEs {
		n++
	}
	return n
}

// framesOfSymbols makes call frame information of the places and sizes of the functions in .symtab, in which all code
// has the frame of an entry. npm's builds for aarch64 have none of their own. It is nil without .symtab.
func framesOfSymbols(t *testing.T, m *elfimage.Image, file string) *cfi.Table {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	symbols, err := f.Symbols()
	if err != nil {
		return nil
	}
	var ranges [][2]uint64
	for _, s := range symbols {
		// The linker's detours around a fault of a processor are named e843419@. No call frame information has them.
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Size > 0 && !strings.Contains(s.Name, "@") {
			ranges = append(ranges, [2]uint64{s.Value, s.Size})
		}
	}
	a, err := arch.ByMachine(m.Machine(), m.Order())
	if err != nil {
		t.Fatal(err)
	}
	table, err := cfi.New(cfi.Sections{
		EHFrame: cfi.Section{Data: frameInformation(ranges, m.Machine())}, Order: m.Order(), AddrSize: m.AddrSize(), Arch: a,
	})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// stripped makes a copy of a file without symbols.
func stripped(t testing.TB, file string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), filepath.Base(file))
	for _, tool := range []string{"strip", "llvm-strip"} {
		if exec.CommandContext(t.Context(), tool, "--strip-all", "-o", out, file).Run() == nil {
			return out
		}
	}
	t.Skipf("neither strip nor llvm-strip can strip %s", file)
	return ""
}

// compare derives the facts of a stripped copy, and compares all of them with the symbols of the file. Without tr it
// only counts them.
func compare(t *testing.T, file string, tr *truth, tables *selfnames.Tables) shares {
	t.Helper()
	m, table, symbols := openImage(t, stripped(t, file))
	const few = 100
	if made := framesOfSymbols(t, m, file); made != nil && functions(table) < few {
		t.Logf("%s has no call frame information: its symbols stand for it", file)
		table = made
	}
	names, err := selfnames.Derive(m, table, symbols, tables)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	s := shares{major: names.Major()}
	for fde := range table.FDEs {
		s.total++
		if _, ok := symbols.Lookup(fde.Start, fde.Start, fde.End); ok {
			s.symbol++
			continue
		}
		if fact, ok := names.At(fde.Start); tr == nil {
			s.count(fact, ok)
			continue
		}
		s.check(t, tr, names, symbols, fde.Start)
	}
	const typical, each = 100_000, 6
	if size, most := names.Size(), max(typical, each*s.total); size > most {
		t.Errorf("%s: the facts take %d bytes, more than %d", file, size, most)
	}
	if s.unchecked*1000 > s.total {
		t.Errorf("%s: debugging information lacks %d functions with a note", file, s.unchecked)
	}
	share := func(n int) float64 { return 100 * float64(n) / float64(s.total) }
	figure.Printf(t, "%s: table of %d; %d functions and parts: symbol %.1f %%, derived name %.1f %%, part of %.1f %%, "+
		"code of %.1f %%, address taken %.1f %%, file %.1f %%, nothing %.1f %%; wrong: names %d, parts %d, code %d, "+
		"files %d; code unchecked %d",
		file, names.Major(), s.total, share(s.symbol), share(s.named), share(s.part), share(s.code), share(s.taken),
		share(s.file), share(s.nothing), s.wrongName, s.wrongPart, s.wrongCode, s.wrongFile, s.unchecked)
	return s
}

var versionText = regexp.MustCompile(`postgres \(PostgreSQL\) ([0-9]+)`)

// expectTable requires that a server has many names if there is a table of its major version. Without this, a table
// that is not used would have no wrong names.
func expectTable(t *testing.T, file string, s shares) {
	t.Helper()
	if filepath.Base(file) != "postgres" {
		return
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	version := versionText.FindSubmatch(data)
	if version == nil {
		t.Errorf("%s: no version in it", file)
		return
	}
	major, err := strconv.Atoi(string(version[1]))
	if err != nil {
		t.Fatal(err)
	}
	if selfnames.Builtin().Read(major) == nil {
		if s.major != 0 || s.named != 0 {
			t.Errorf("%s: %d names by the table of %d", file, s.named, s.major)
		}
		return
	}
	const least = 500
	if s.major != major || s.named < least {
		t.Errorf("%s: %d names by the table of %d, want %d or more by that of %d", file, s.named, s.major, least, major)
	}
}

// TestDerivedNamesAreTrue compares all functions of stripped servers with their symbols and debugging information.
func TestDerivedNamesAreTrue(t *testing.T) {
	t.Parallel()
	compared := 0
	for _, file := range subjects() {
		tr, ok := readTruth(t, file)
		if !ok {
			expectTable(t, file, compare(t, file, nil, selfnames.Builtin()))
			t.Logf("not compared, since it has no .symtab: %s", file)
			continue
		}
		compared++
		s := compare(t, file, &tr, selfnames.Builtin())
		if s.wrong() > 0 {
			t.Errorf("%s: %d are wrong", file, s.wrong())
		}
		if !tr.mingled {
			expectTable(t, file, s)
		}
	}
	if compared == 0 {
		t.Skip("no server with .symtab: set PGSB_TEST_BINDIRS or PGSB_NAMES_TRUTH")
	}
}

// TestMutatedTableIsNoticed uses tables in which no function mentions another one and all report. Rule N then assigns
// to a function the only name with which it reports. The comparison must find wrong names.
func TestMutatedTableIsNoticed(t *testing.T) {
	t.Parallel()
	mutated := selfnames.Tables{Read: func(major int) []byte {
		table := selfnames.Builtin().Read(major)
		if table == nil {
			return nil
		}
		source, err := selfnames.Unpack(table)
		if err != nil {
			t.Fatal(err)
		}
		for i := range source.Files {
			for j := range source.Files[i].Functions {
				f := &source.Files[i].Functions[j]
				f.Mentions, f.Reports = nil, true
			}
		}
		packed, err := source.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return packed
	}}
	compared, wrong := 0, 0
	for _, file := range subjects() {
		tr, ok := readTruth(t, file)
		if !ok || filepath.Base(file) != "postgres" {
			continue
		}
		s := compare(t, file, &tr, &mutated)
		compared, wrong = compared+s.named, wrong+s.wrongName
	}
	if compared == 0 {
		t.Skip("no server with .symtab and a table: set PGSB_TEST_BINDIRS or PGSB_NAMES_TRUTH")
	}
	if wrong == 0 {
		t.Errorf("none of %d names is wrong", compared)
	}
}

func BenchmarkDerive(b *testing.B) {
	files := subjects()
	if len(files) == 0 {
		b.Skip("no server: set PGSB_TEST_BINDIRS")
	}
	m, table, symbols := openImage(b, stripped(b, files[0]))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := selfnames.Derive(m, table, symbols, selfnames.Builtin()); err != nil {
			b.Fatal(err)
		}
	}
}
