package dwarf_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/elfimage"
)

func openImage(t testing.TB, name string) *elfimage.Image {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	m, err := elfimage.Open(f, name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// openData opens a file's debugging information together with its supplementary file, and lists its units.
func openData(t testing.TB, name string) *dwarf.Data {
	t.Helper()
	d := newData(t, name)
	if err := d.Load(); err != nil {
		t.Fatal(err)
	}
	return d
}

// newData opens a file's debugging information, of which nothing is read yet.
func newData(t testing.TB, name string) *dwarf.Data {
	t.Helper()
	m := openImage(t, name)
	o := dwarf.Options{Cache: dwarf.NewCache(0), Spill: func() (dwarf.SpillFile, error) {
		return os.CreateTemp(t.TempDir(), "spill")
	}, Split: func(f dwarf.SplitFile) (*elfimage.Image, error) {
		return openImage(t, filepath.Join(f.Dir, f.Name)), nil
	}}
	if _, err := os.Stat(name + ".dwp"); err == nil {
		o.Split = nil
		o.Package = func() (*elfimage.Image, error) { return openImage(t, name+".dwp"), nil }
	}
	if _, ok := elfimage.SupplementLink(m); ok {
		sup, err := elfimage.FindSupplement(m, name, elfimage.SearchOptions{
			Open: func(path string) (elfimage.File, error) { return os.Open(path) },
		})
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
	return d
}

// ours returns this package's answers.
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
	r := rand.New(rand.NewPCG(1, uint64(n)))
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
func codeSections(t testing.TB, name string) []elfimage.Segment {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "readelf", "-SW", name).Output()
	if err != nil {
		t.Skipf("readelf: %v", err)
	}
	var all []elfimage.Segment
	for line := range strings.Lines(string(out)) {
		_, rest, ok := strings.Cut(line, "]")
		f := strings.Fields(rest)
		if !ok || len(f) != 10 || !strings.Contains(f[6], "X") || strings.HasPrefix(f[0], ".plt") {
			continue
		}
		all = append(all, elfimage.Segment{Vaddr: hexNumber(t, f[2]), Memsz: hexNumber(t, f[4])})
	}
	return all
}

// subjects are the files to compare: files of this machine, and programs in every form of DWARF that the tools here
// support.
func subjects(t *testing.T) []subject {
	t.Helper()
	var all []subject
	add := func(name, exe, debug string) {
		all = append(all, subject{name, true, func() (files, error) { return files{exe: exe, debug: debug}, nil }})
	}
	for _, name := range filepath.SplitList(os.Getenv("PGSB_ORACLE_FILES")) {
		add(filepath.Base(name), name, cmp.Or(debugFileOf(t, name), name))
	}
	for _, pattern := range []string{"/lib/*-linux-gnu/libc.so.6", "/lib/*-linux-gnu/ld-linux-*.so.*"} {
		found, _ := filepath.Glob(pattern)
		for _, exe := range found {
			if debug := debugFileOf(t, exe); debug != "" {
				add(filepath.Base(exe), exe, debug)
			} else {
				t.Logf("%s has no debug file here: not compared (package libc6-dbg)", exe)
			}
		}
	}
	if bin := os.Getenv("PGSB_DEBUG_BINDIR"); bin != "" {
		for _, name := range []string{"bin/postgres", "lib/plpgsql.so"} {
			exe := filepath.Join(filepath.Dir(bin), name)
			add(filepath.Base(name)+" -g -O2", exe, exe)
		}
	} else {
		t.Log("PGSB_DEBUG_BINDIR is not set (scripts/build-postgresql.sh makes one): PostgreSQL is not compared")
	}
	return append(all, newBuilder(t).subjects()...)
}

// builder builds programs, each when it is first needed.
type builder struct {
	t    *testing.T
	dir  string
	made map[string]error
}

func newBuilder(t *testing.T) *builder {
	t.Helper()
	b := &builder{t: t, dir: t.TempDir(), made: make(map[string]error)}
	for name, file := range map[string]string{"p.cc": "shapes.cc", "r.rs": "shapes.rs", "g.go": "shapes.go.txt"} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err == nil {
			err = os.WriteFile(b.path(name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *builder) path(name string) string { return filepath.Join(b.dir, name) }

// run runs a tool in the folder.
func (b *builder) run(env []string, tool string, args ...string) error {
	ctx, cancel := context.WithTimeout(b.t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.Dir, cmd.Env = b.dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w %s", tool, args, err, out)
	}
	return nil
}

// recipes are the commands that build the programs: the tool and its arguments, which follow "-o NAME" if necessary.
var recipes = map[string][]string{
	"cc2":        {"g++", "-gdwarf-2", "-O2", "p.cc"},
	"cc3":        {"g++", "-gdwarf-3", "-O2", "p.cc"},
	"cc4":        {"g++", "-gdwarf-4", "-O2", "p.cc"},
	"cc5":        {"g++", "-gdwarf-5", "-O2", "p.cc"},
	"cc64":       {"g++", "-gdwarf-5", "-gdwarf64", "-O2", "p.cc"},
	"ccsplit4":   {"g++", "-gdwarf-4", "-gsplit-dwarf", "-O2", "p.cc"},
	"ccsplit5":   {"g++", "-gdwarf-5", "-gsplit-dwarf", "-O2", "p.cc"},
	"ccdwp4":     {"dwp", "-gdwarf-4", "p.cc"},
	"cclto":      {"g++", "-g", "-O2", "-flto", "-ffunction-sections", "-Wl,--gc-sections", "p.cc"},
	"other":      {"g++", "-g", "-O2", "-no-pie", "p.cc"},
	"cczlib":     {"objcopy", "--compress-debug-sections=zlib", "cc5"},
	"cczlib-gnu": {"objcopy", "--compress-debug-sections=zlib-gnu", "cc5"},
	"cczstd":     {"objcopy", "--compress-debug-sections=zstd", "cc5"},
	"ccdwz":      {"dwz", "cc5", "other"},
	"ccdwz5":     {"dwz", "cc5", "other", "--dwarf-5"},
	"rs":         {"rustc", "-g", "-O", "r.rs"},
	"go4":        {"go", "build", "-trimpath", "g.go"},
}

// program makes a program, once.
func (b *builder) program(name string) (string, error) {
	err, ok := b.made[name]
	if !ok {
		err = b.build(name)
		b.made[name] = err
	}
	return b.path(name), err
}

func (b *builder) build(name string) error {
	tool, args := recipes[name][0], recipes[name][1:]
	switch tool {
	case "objcopy":
		if _, err := b.program(args[1]); err != nil {
			return err
		}
		return b.run(nil, tool, append(args, name)...)
	case "dwz":
		return b.dwz(name, args[0], args[1], args[2:]...)
	case "dwp": // the dwp of binutils 2.40 and LLVM 14 fail on gcc's DWARF 5: see TestPackage
		if err := b.run(nil, "g++", args[0], "-gsplit-dwarf", "-O2", "-o", name, args[1]); err != nil {
			return err
		}
		return b.run(nil, tool, "-e", name, "-o", name+".dwp")
	case "go": // neither tool can read the line tables of Go's DWARF 5: see TestGo
		if os.Getenv("PGSB_TEST_FULL") == "" {
			return errors.New("without PGSB_TEST_FULL=1: it takes a build of Go's own library")
		}
		return b.run([]string{"GOEXPERIMENT=nodwarf5"}, tool, append([]string{args[0], "-o", name}, args[1:]...)...)
	default:
		return b.run(nil, tool, append([]string{"-o", name}, args...)...)
	}
}

// dwz moves common data of two programs to a supplementary file.
func (b *builder) dwz(name, one, two string, options ...string) error {
	for from, to := range map[string]string{one: name, two: name + "2"} {
		if _, err := b.program(from); err != nil {
			return err
		}
		if err := b.run(nil, "cp", from, to); err != nil {
			return err
		}
	}
	sup := b.path(name + "sup")
	return b.run(nil, "dwz", append(options, "-m", sup, "-M", sup, name, name+"2")...)
}

// subjects are the programs.
func (b *builder) subjects() []subject {
	var all []subject
	add := func(name, file, twin string) {
		all = append(all, subject{name, false, func() (files, error) {
			exe, err := b.program(file)
			f := files{exe: exe, debug: exe}
			if err == nil && twin != "" {
				f.twin, err = b.program(twin)
			}
			return f, err
		}})
	}
	for _, version := range []string{"2", "3", "4", "5"} {
		add("C++, DWARF "+version, "cc"+version, "")
	}
	add("C++, 64-bit DWARF", "cc64", "cc5") // binutils cannot read it
	add("C++, split DWARF 4", "ccsplit4", "cc4")
	add("C++, split DWARF 5", "ccsplit5", "cc5")
	add("C++, package of DWARF 4", "ccdwp4", "cc4")
	add("C++, LTO, collected", "cclto", "")
	for _, kind := range []string{"zlib", "zlib-gnu", "zstd"} {
		add("C++, "+kind, "cc"+kind, "cc5")
	}
	add("C++, dwz", "ccdwz", "cc5")
	add("C++, dwz --dwarf-5", "ccdwz5", "cc5")
	add("Rust", "rs", "")
	add("Go, DWARF 4", "go4", "")
	return all
}

// TestGo compares a Go program in this toolchain's default format (DWARF 5 in compressed sections) with the table
// that Go's runtime uses: the function of the frame, and the line of the innermost call.
func TestGo(t *testing.T) {
	b := newBuilder(t)
	if err := b.run(nil, "go", "build", "-o", "go5", "g.go"); err != nil {
		t.Skip(err)
	}
	_, n := addresses(t)
	addrs := randomAddresses(t, b.path("go5"), n)
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
	equal, unknown, lineless, other := 0, 0, 0, 0
	for i, c := range ours(t, openData(t, b.path("go5")), addrs) {
		function, at := said[2*i], said[2*i+1]
		switch {
		case function == "?" || len(c) == 0:
			unknown++ // padding, and assembly without debugging information
		case c[len(c)-1].function == function && c[0].file+":"+strconv.Itoa(c[0].line) == at:
			equal++
		case len(c) == 1 && c[0].function == function && c[0].line == 0 && strings.HasPrefix(at, "<autogenerated>"):
			lineless++ // compiler-generated code has no line in DWARF 5; debug/dwarf finds none either
		default:
			if other++; other <= 5 {
				t.Logf("%#x: %v, but %s %s", addrs[i], c, function, at)
			}
		}
	}
	figure.Printf(t, "%d of %d equal, %d unknown to either, %d generated and without a line, %d other",
		equal, len(addrs), unknown, lineless, other)
	if other*50 > len(addrs) || equal*2 < len(addrs) {
		t.Errorf("%d differ", other)
	}
}
