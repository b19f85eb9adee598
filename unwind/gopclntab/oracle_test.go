package gopclntab_test

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
	"pg_stat_backtrace/unwind/gopclntab"
	"pg_stat_backtrace/unwind/image"
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

func openTable(t *testing.T, file string) (*image.Image, *gopclntab.Table) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	m, err := image.Open(f, file)
	if err != nil {
		t.Fatal(err)
	}
	table, err := gopclntab.New(m)
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
		{"amd64, stripped", "amd64", []string{"-trimpath", "-ldflags=-s -w"}},
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

func compareFunctions(t *testing.T, exe string) {
	t.Helper()
	_, table := openTable(t, exe)
	truth := symbolTable(t, exe)
	if table.Functions() != len(truth.Funcs) {
		t.Fatalf("%d functions, debug/gosym has %d", table.Functions(), len(truth.Funcs))
	}
	lines, inlined := 0, 0
	for i := range truth.Funcs {
		want := &truth.Funcs[i]
		f, err := table.Function(i)
		if err != nil {
			t.Fatalf("%s: %v", want.Name, err)
		}
		if f.Name != want.Name || f.Entry != want.Entry || f.End != want.End {
			t.Fatalf("%s [%#x, %#x), not %s [%#x, %#x)", f.Name, f.Entry, f.End, want.Name, want.Entry, want.End)
		}
		for addr := f.Entry; addr < f.End; addr += 4 {
			frames, err := table.Frames(addr)
			if errors.Is(err, gopclntab.ErrNotCovered) {
				break // what fills the gap to the next function
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

// TestOracleDWARF compares the calls at every seventh address, inlined ones included, with those that the debugging
// information has.
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
	data, err := dwarf.New(m, dwarf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var n shares
	for i := range table.Functions() {
		f, err := table.Function(i)
		if err != nil {
			t.Fatal(err)
		}
		for addr := f.Entry; addr < f.End; addr += 7 {
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
	figure.Printf(t, "of %d addresses, %d with inlined calls, %.3f %% have the same calls, %.3f %% with the same lines",
		n.all, n.inlined, 100*float64(n.names)/float64(n.all), 100*float64(n.same)/float64(n.all))
	if n.names*1000 < n.all*999 || n.same*1000 < n.all*999 {
		t.Error("they differ too often")
	}
}

// shares counts addresses: with inlined calls, with the same names, with the same lines too.
type shares struct{ all, inlined, names, same int }

func (n *shares) compare(t *testing.T, addr uint64, got []gopclntab.Frame, want []dwarf.Frame) {
	t.Helper()
	n.all++
	if len(want) > 1 {
		n.inlined++
	}
	equalNames, equal := len(got) == len(want), len(got) == len(want)
	for j := range got {
		if !equalNames {
			break
		}
		equalNames = plain(got[j].Function) == plain(want[j].Function)
		if got[j].File == "<autogenerated>" && want[j].File == "" {
			continue // debugging information has no line for what the compiler made by itself
		}
		equal = equal && equalNames && got[j].File == want[j].File && got[j].Line == want[j].Line
	}
	if equalNames {
		n.names++
	}
	if equal && equalNames {
		n.same++
	} else if n.all-n.same <= 5 {
		t.Logf("%#x:\n  table %+v\n  DWARF %+v", addr, got, want)
	}
}
