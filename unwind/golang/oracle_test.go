package golang_test

import (
	"debug/elf"
	"debug/gosym"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/golang"
)

// program builds testdata/program for an architecture.
func program(t *testing.T, arch string, flags ...string) string {
	t.Helper()
	return build(t, arch, "./testdata/program", flags...)
}

// build builds a program for an architecture.
func build(t *testing.T, arch, pkg string, flags ...string) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", append(append([]string{"build", "-o", exe}, flags...), pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS=linux", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return exe
}

func openTable(t *testing.T, file string) (*elfimage.Image, *golang.Table) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	m, err := elfimage.Open(f, file)
	if err != nil {
		t.Fatal(err)
	}
	table, err := golang.NewTable(m)
	if err != nil {
		t.Fatal(err)
	}
	return m, table
}

// symbolTable reads the same file with the standard library.
func symbolTable(t *testing.T, file string) *gosym.Table {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	section := f.Section(".gopclntab")
	if section == nil {
		section = f.Section(".data.rel.ro.gopclntab")
	}
	data, err := section.Data()
	if err != nil {
		t.Fatal(err)
	}
	table, err := gosym.NewTable(nil, gosym.NewLineTable(data, f.Section(".text").Addr))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestOracleFunctions compares every function, and the line of every fourth address of its code, with debug/gosym.
func TestOracleFunctions(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a build of Go's own library: not with -short")
	}
	for _, c := range []struct {
		name, arch string
		flags      []string
	}{
		{"amd64", "amd64", nil},
		{"amd64, stripped", "amd64", []string{"-ldflags=-s -w"}}, // takes no build of Go's own library
		{"amd64, stripped, trimmed paths", "amd64", []string{"-trimpath", "-ldflags=-s -w"}},
		{"amd64, stripped, position-independent", "amd64", []string{"-buildmode=pie", "-ldflags=-s -w"}},
		{"arm64, stripped", "arm64", []string{"-ldflags=-s -w"}},
		{"s390x, stripped", "s390x", []string{"-ldflags=-s -w"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "amd64, stripped" && os.Getenv("PGSB_ORACLE_SLOW") == "" {
				t.Skip("without PGSB_ORACLE_SLOW=1: each takes a build of Go's own library")
			}
			compareFunctions(t, program(t, c.arch, c.flags...))
		})
	}
}

// manyFunctions is the number of functions up to which a full run compares the lines of all functions. In larger
// programs, it compares every second, third and so on.
const manyFunctions = 2000

func compareFunctions(t *testing.T, exe string) {
	t.Helper()
	_, table := openTable(t, exe)
	truth := symbolTable(t, exe)
	if table.Functions() != len(truth.Funcs) {
		t.Fatalf("%d functions, debug/gosym has %d", table.Functions(), len(truth.Funcs))
	}
	lines, inlined := 0, 0
	selected, many := figure.Share(t, 3), 1+table.Functions()/manyFunctions
	for i := range truth.Funcs {
		want := &truth.Funcs[i]
		f, err := table.Function(i)
		if err != nil {
			t.Fatalf("%s: %v", want.Name, err)
		}
		if f.Name != want.Name || f.Entry != want.Entry || f.End != want.End {
			t.Fatalf("%s [%#x, %#x), not %s [%#x, %#x)", f.Name, f.Entry, f.End, want.Name, want.Entry, want.End)
		}
		every := 4 * (1 + (f.End-f.Entry)/maxEvery)
		for addr := f.Entry; addr < f.End && selected(i/many) && i%many == 0; addr += every {
			frames, err := table.Frames(addr)
			if errors.Is(err, golang.ErrNotCovered) {
				break // padding up to the next function
			}
			file, line, fn := truth.PCToLine(addr)
			if err != nil || fn == nil || frames[0].File != file || frames[0].Line != line {
				t.Fatalf("%#x in %s: %+v (%v), not %s:%d", addr, f.Name, frames, err, file, line)
			}
			if last := frames[len(frames)-1]; last.Function != f.Name || last.Inlined {
				t.Fatalf("%#x: the last of %+v is not %s", addr, frames, f.Name)
			}
			lines++
			inlined += len(frames) - 1
		}
	}
	if inlined == 0 {
		t.Error("no inlined calls")
	}
	figure.Printf(t, "%d functions, %d addresses, %d inlined calls", table.Functions(), lines, inlined)
}

// plain is a function's name without type arguments.
func plain(name string) string {
	name, _, _ = strings.Cut(name, "[")
	return name
}

// TestOracleDWARF compares the calls at every seventh address, including inlined calls, with the debugging
// information. Every difference must have a known reason.
func TestOracleDWARF(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a build of Go's own library: not with -short")
	}
	for _, c := range []struct {
		name, arch, pkg string
		flags           []string
	}{
		{"amd64", "amd64", "./testdata/program", nil},
		{"amd64, this project's program", "amd64", "pg_stat_backtrace", nil},
		{"amd64, position-independent", "amd64", "./testdata/program", []string{"-buildmode=pie"}},
		{"amd64, the compiler", "amd64", "cmd/compile", nil},
		{"arm64", "arm64", "./testdata/program", nil},
		{"s390x", "s390x", "./testdata/program", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "amd64" && os.Getenv("PGSB_ORACLE_SLOW") == "" {
				t.Skip("without PGSB_ORACLE_SLOW=1: each takes a build of Go's own library, or is large")
			}
			compareDWARF(t, build(t, c.arch, c.pkg, c.flags...))
		})
	}
}

func compareDWARF(t *testing.T, exe string) {
	t.Helper()
	m, table := openTable(t, exe)
	data, err := dwarf.New(m, dwarf.Options{Cache: dwarf.NewCache(1 << 30)}) // compressed sections are expanded once
	if err != nil {
		t.Fatal(err)
	}
	n := shares{code: m}
	selected := figure.Share(t, 3)
	for i := range table.Functions() {
		if !selected(i) {
			continue
		}
		f, err := table.Function(i)
		if err != nil {
			t.Fatal(err)
		}
		for addr := f.Entry; addr < f.End; addr += 7 * (1 + (f.End-f.Entry)/maxEvery) {
			got, err := table.Frames(addr)
			if err != nil {
				break
			}
			want, err := data.Frames(addr)
			if err == nil && len(want) > 0 {
				n.compare(t, addr, got, want)
			}
		}
	}
	figure.Printf(t, "%d addresses, %d with inlined calls; %d (%.3f %%) have the same calls and lines; "+
		"%d times Go's table lacks a call or its line in a function that the compiler has made, %d times the "+
		"debugging information not the line of an instruction that does nothing, or is a function's first",
		n.all, n.inlined, n.same, 100*float64(n.same)/float64(n.all), n.made, n.idles)
	if n.inlined == 0 || n.same*1000 < n.all*999 {
		t.Error("too little was compared")
	}
}

// maxEvery is the length up to which every seventh, or fourth, address of a function is compared. In longer functions
// fewer addresses are compared, because each look-up takes time in proportion to the length.
const maxEvery = 16 << 10

// shares counts addresses: with inlined calls, with the same lines, and with an explained difference.
type shares struct {
	code                                   *elfimage.Image
	all, inlined, same, made, idles, wrong int
}

// compare compares the calls at an address. Names and lines must be equal, unless one of the two tables is known to
// lack them.
func (n *shares) compare(t *testing.T, addr uint64, got []golang.Frame, want []dwarf.Frame) {
	t.Helper()
	n.all++
	if len(want) > 1 {
		n.inlined++
	}
	if lacksCalls(got, want) {
		n.made++
		return
	}
	made, idle, wrong := false, false, len(got) != len(want)
	for j := 0; j < len(got) && !wrong; j++ {
		switch {
		case plain(got[j].Function) != plain(want[j].Function):
			wrong = true
		case got[j].File == want[j].File && got[j].Line == want[j].Line:
		case got[j].File == "<autogenerated>":
			made = made || want[j].File != "" // code without a line in both tables does not differ
		case j == 0 && (want[j].File == "" || n.idle(addr)):
			idle = true
		default:
			wrong = true
		}
	}
	switch {
	case wrong:
		n.wrong++
		if n.wrong > 10 {
			t.Fatal("and more")
		}
		t.Errorf("%#x:\n  table %+v\n  DWARF %+v", addr, got, want)
	case made:
		n.made++
	case idle:
		n.idles++
	default:
		n.same++
	}
}

// lacksCalls reports whether the table lacks a call between the others, in a function that the compiler has made. Where
// such a function has no instruction for a call, the call's parent in the table is the function's entry. The Go runtime
// then prints no other calls either.
func lacksCalls(got []golang.Frame, want []dwarf.Frame) bool {
	if len(got) < 2 || len(got) >= len(want) || got[len(got)-1].File != "<autogenerated>" {
		return false
	}
	k := 0
	for j := range want {
		if k < len(got) && plain(got[k].Function) == plain(want[j].Function) {
			k++
		}
	}
	return k == len(got) && plain(got[0].Function) == plain(want[0].Function) &&
		plain(got[k-1].Function) == plain(want[len(want)-1].Function)
}

// padding are instructions of x86-64 that do nothing, as the assembler puts them in; an operand may be behind.
var padding = []struct {
	code   string
	length uint64
}{
	{"\x90", 1}, {"\x66\x90", 2}, {"\x0f\x1f\x00", 3}, {"\x0f\x1f\x40", 4}, {"\x0f\x1f\x44", 5}, {"\x66\x0f\x1f\x44", 6},
	{"\x0f\x1f\x80", 7}, {"\x0f\x1f\x84", 8}, {"\x66\x0f\x1f\x84", 9},
}

// idle reports whether the address belongs to padding that the assembler inserted. Go's table has a line for padding.
// DWARF's table has no row for it, and continues the row of the instruction before.
func (n *shares) idle(addr uint64) bool {
	for _, p := range padding {
		for k := range p.length {
			code, err := n.code.Bytes(addr-k, uint64(len(p.code)))
			if err == nil && string(code) == p.code {
				return true
			}
		}
	}
	return false
}
