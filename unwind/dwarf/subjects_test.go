package dwarf_test

import (
	"cmp"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/debugfile"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/image"
	"pg_stat_backtrace/unwind/symbol"
)

func openImage(t testing.TB, name string) *image.Image {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	m, err := image.Open(f, name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// openData opens a file's debugging information together with its supplementary file.
func openData(t testing.TB, name string) *dwarf.Data {
	t.Helper()
	m := openImage(t, name)
	o := dwarf.Options{Cache: dwarf.NewCache(0), Spill: func() (dwarf.SpillFile, error) {
		return os.CreateTemp(t.TempDir(), "spill")
	}}
	if _, ok := debugfile.SupplementLink(m); ok {
		sup, err := debugfile.FindSupplement(m, name, debugfile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sup.Close() })
		if o.Supplement, err = dwarf.New(sup.Image, o); err != nil {
			t.Fatal(err)
		}
	}
	d, err := dwarf.New(m, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Load(); err != nil {
		t.Fatal(err)
	}
	return d
}

// ours asks this package.
func ours(t testing.TB, d *dwarf.Data, addrs []uint64) []chain {
	t.Helper()
	all := make([]chain, len(addrs))
	for i, addr := range addrs {
		frames, err := d.Frames(addr)
		if err != nil {
			t.Fatalf("%#x: %v", addr, err)
		}
		for _, f := range frames {
			all[i] = append(all[i], place{f.Function, f.File, f.Line})
		}
	}
	return all
}

// randomAddresses are n addresses in the code of a file, some of them equal, in random order.
func randomAddresses(t testing.TB, name string, n int) []uint64 {
	t.Helper()
	code, total := codeSections(t, name), uint64(0)
	for _, s := range code {
		total += s.Memsz
	}
	if total == 0 {
		t.Fatalf("%s has no code", name)
	}
	r := rand.New(rand.NewPCG(1, uint64(n))) //nolint:gosec // the same addresses each time
	addrs := make([]uint64, n)
	for i := range addrs {
		at := r.Uint64N(total)
		for _, s := range code {
			if at < s.Memsz {
				addrs[i] = s.Vaddr + at
				break
			}
			at -= s.Memsz
		}
	}
	slices.Sort(addrs) // the tools are fast that way
	return addrs
}

// codeSections are the sections of code, by readelf, without the jump tables of the linker.
func codeSections(t testing.TB, name string) []image.Segment {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "readelf", "-SW", name).Output()
	if err != nil {
		t.Skipf("readelf: %v", err)
	}
	var all []image.Segment
	for line := range strings.Lines(string(out)) {
		_, rest, ok := strings.Cut(line, "]")
		f := strings.Fields(rest)
		if !ok || len(f) != 10 || !strings.Contains(f[6], "X") || strings.HasPrefix(f[0], ".plt") {
			continue
		}
		all = append(all, image.Segment{Vaddr: hexNumber(t, f[2]), Memsz: hexNumber(t, f[4])})
	}
	return all
}

// elfSymbols are the symbols of code, by address.
type elfSymbols []symbol.Symbol

func symbolsOf(t testing.TB, name string) elfSymbols {
	t.Helper()
	files := []string{name}
	if debug := debugFileOf(t, name); debug != "" {
		files = append(files, debug)
	}
	var all elfSymbols
	for _, file := range files {
		symbols, err := openImage(t, file).Symbols(".symtab")
		if err != nil {
			continue
		}
		for s := range symbols {
			all = append(all, symbol.Symbol{Name: strings.Clone(s.Name), Addr: s.Addr, Size: s.Size})
		}
	}
	slices.SortFunc(all, func(a, b symbol.Symbol) int { return cmp.Compare(a.Addr, b.Addr) })
	return all
}

// at is the symbol that covers an address.
func (s elfSymbols) at(addr uint64) string {
	i, _ := slices.BinarySearchFunc(s, addr+1, func(s symbol.Symbol, a uint64) int { return cmp.Compare(s.Addr, a) })
	for i--; i >= 0 && addr-s[i].Addr < 1<<20; i-- {
		if addr-s[i].Addr < s[i].Size {
			return s[i].Name
		}
	}
	return ""
}

// subjects are the files to compare: those of this machine, and programs in every form of DWARF that can be made here.
func subjects(t *testing.T) []subject {
	t.Helper()
	var all []subject
	for _, name := range filepath.SplitList(os.Getenv("PGSB_ORACLE_FILES")) {
		all = append(all, subject{name: filepath.Base(name), exe: name, debug: name})
	}
	for _, pattern := range []string{"/lib/*-linux-gnu/libc.so.6", "/lib/*-linux-gnu/ld-linux-*.so.*"} {
		found, _ := filepath.Glob(pattern)
		for _, exe := range found {
			if debug := debugFileOf(t, exe); debug != "" {
				all = append(all, subject{name: filepath.Base(exe), exe: exe, debug: debug})
			} else {
				t.Logf("%s has no debug file here: not compared (package libc6-dbg)", exe)
			}
		}
	}
	if bin := os.Getenv("PGSB_DEBUG_BINDIR"); bin != "" {
		exe := filepath.Join(bin, "postgres")
		all = append(all, subject{name: "postgres -g -O2", exe: exe, debug: exe})
	} else {
		t.Log("PGSB_DEBUG_BINDIR is not set (scripts/debug-postgresql.sh makes one): PostgreSQL is not compared")
	}
	b := builder{t: t, dir: t.TempDir()}
	return append(all, b.all()...)
}

// builder makes programs.
type builder struct {
	t   *testing.T
	dir string
}

func (b *builder) path(name string) string { return filepath.Join(b.dir, name) }

// run runs a tool in the folder; false, with the reason printed, if it is not there or fails.
func (b *builder) run(env []string, tool string, args ...string) bool {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), tool, args...)
	cmd.Dir, cmd.Env = b.dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Logf("left out: %s %v: %v %s", tool, args, err, out)
		return false
	}
	return true
}

// sources puts the programs into the folder.
func (b *builder) sources() {
	for name, file := range map[string]string{"p.cc": "shapes.cc", "r.rs": "shapes.rs", "g.go": "shapes.go.txt"} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(b.path(name), text, 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
}

// all makes what the tools here can make.
func (b *builder) all() []subject {
	b.sources()
	var all []subject
	add := func(name, file, twin string) {
		s := subject{name: name, exe: b.path(file), debug: b.path(file)}
		if twin != "" {
			s.twin = b.path(twin)
		}
		all = append(all, s)
	}
	for _, version := range []string{"2", "3", "4", "5"} {
		if b.run(nil, "g++", "-gdwarf-"+version, "-O2", "-o", "cc"+version, "p.cc") {
			add("C++, DWARF "+version, "cc"+version, "")
		}
	}
	if b.run(nil, "g++", "-gdwarf-5", "-gdwarf64", "-O2", "-o", "cc64", "p.cc") {
		add("C++, 64-bit DWARF", "cc64", "cc5") // binutils cannot read it
	}
	if b.run(nil, "g++", "-g", "-O2", "-flto", "-ffunction-sections", "-Wl,--gc-sections", "-o", "cclto", "p.cc") {
		add("C++, LTO, collected", "cclto", "")
	}
	for _, kind := range []string{"zlib", "zlib-gnu", "zstd"} {
		if b.run(nil, "objcopy", "--compress-debug-sections="+kind, "cc5", "cc5"+kind) {
			add("C++, "+kind, "cc5"+kind, "cc5")
		}
	}
	all = append(all, b.dwz()...)
	if b.run(nil, "rustc", "-g", "-O", "-o", "rs", "r.rs") {
		add("Rust", "rs", "")
	}
	// Neither tool can read the line tables of Go's DWARF 5: see TestGo.
	if b.run([]string{"GOEXPERIMENT=nodwarf5"}, "go", "build", "-trimpath", "-o", "go4", "g.go") {
		add("Go, DWARF 4", "go4", "")
	}
	return all
}

// dwz moves what two programs have in common to a supplementary file, in both encodings.
func (b *builder) dwz() []subject {
	var all []subject
	for _, option := range []string{"", "--dwarf-5"} {
		one, two, sup := "one"+option, "two"+option, b.path("sup"+option)
		if !b.run(nil, "cp", "cc5", one) || !b.run(nil, "g++", "-g", "-O2", "-no-pie", "-o", two, "p.cc") {
			continue
		}
		args := []string{"-m", sup, "-M", sup, one, two}
		if option != "" {
			args = append([]string{option}, args...)
		}
		if b.run(nil, "dwz", args...) {
			all = append(all, subject{name: "C++, dwz " + option, exe: b.path(one), debug: b.path(one), twin: b.path("cc5")})
		}
	}
	return all
}

// TestGo compares a Go program of this toolchain's default, DWARF 5 in compressed sections, with what the Go tools read
// from the table that the runtime uses: the function that has the frame, and the line of the innermost call.
func TestGo(t *testing.T) {
	b := builder{t: t, dir: t.TempDir()}
	b.sources()
	if !b.run(nil, "go", "build", "-o", "go5", "g.go") {
		t.Skip("the Go tools cannot build here")
	}
	addrs := randomAddresses(t, b.path("go5"), addresses(t))
	var in, want strings.Builder
	for _, addr := range addrs {
		in.WriteString("0x" + strconv.FormatUint(addr, 16) + "\n")
	}
	cmd := exec.CommandContext(t.Context(), "go", "tool", "addr2line", b.path("go5"))
	cmd.Stdin, cmd.Stdout = strings.NewReader(in.String()), &want
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	said := strings.Split(want.String(), "\n")
	equal, unknown, other := 0, 0, 0
	for i, c := range ours(t, openData(t, b.path("go5")), addrs) {
		function, at := said[2*i], said[2*i+1]
		switch {
		case function == "?" || len(c) == 0:
			unknown++ // padding, and assembly without debugging information
		case c[len(c)-1].function == function && c[0].file+":"+strconv.Itoa(c[0].line) == at:
			equal++
		default:
			if other++; other <= 5 {
				t.Logf("%#x: %v, but %s %s", addrs[i], c, function, at)
			}
		}
	}
	figure.Printf(t, "%d of %d equal, %d unknown to either, %d other", equal, len(addrs), unknown, other)
	if other*50 > len(addrs) || equal*2 < len(addrs) {
		t.Errorf("%d differ", other)
	}
}
