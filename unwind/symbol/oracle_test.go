package symbol_test

import (
	"cmp"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/symbol"
)

// The oracle is readelf, which shares no code with this package. Its list is taken as correct.

// named is a symbol that readelf lists in an executable section.
type named struct {
	start, end uint64
	name       string
}

// span is a range of the call frame information.
type span struct{ start, end uint64 }

// oracleFiles are the ELF files in PGSB_ORACLE_FILES (separated by colons), or files of this machine by default.
func oracleFiles(t testing.TB) []string {
	t.Helper()
	if _, err := exec.LookPath("readelf"); err != nil {
		t.Skip("readelf is not installed: nothing to compare with")
	}
	files := filepath.SplitList(os.Getenv("PGSB_ORACLE_FILES"))
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin/postgres", "/usr/lib/postgresql/*/lib/plpgsql.so",
		"/lib/*-linux-gnu/libc.so.6", "/lib/*-linux-gnu/libcrypto.so.3", "/lib/*-linux-gnu/ld-linux-*.so.*",
	} {
		found, _ := filepath.Glob(pattern)
		files = append(files, found...)
	}
	if len(files) == 0 {
		t.Skip("no file to look into: set PGSB_ORACLE_FILES")
	}
	return files
}

func openImage(t testing.TB, path string) *elfimage.Image {
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

func openTable(t testing.TB, paths ...string) *symbol.Table {
	t.Helper()
	images := make([]*elfimage.Image, 0, len(paths))
	for _, p := range paths {
		images = append(images, openImage(t, p))
	}
	table, err := symbol.NewTable(images...)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func readelf(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "readelf", args...).Output()
	if err != nil {
		t.Fatalf("readelf %v: %v", args, err)
	}
	return string(out)
}

func hexNumber(t testing.TB, s string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// codeSections are the indexes of the executable sections.
func codeSections(t testing.TB, path string) map[string]bool {
	t.Helper()
	code := make(map[string]bool)
	for line := range strings.Lines(readelf(t, "-SW", path)) {
		index, rest, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "["), "]")
		fields := strings.Fields(rest)
		if ok && len(fields) == 10 && strings.Contains(fields[6], "X") {
			code[strings.TrimSpace(index)] = true
		}
	}
	return code
}

// withDebugFile adds the separate debug file from a distribution's package.
func withDebugFile(t testing.TB, path string) []string {
	t.Helper()
	id := openImage(t, path).BuildID()
	if len(id) > 2 {
		debug := "/usr/lib/debug/.build-id/" + id[:2] + "/" + id[2:] + ".debug"
		if _, err := os.Stat(debug); err == nil && debug != path {
			return []string{path, debug}
		}
	}
	return []string{path}
}

// oracleSymbols are the symbols that name code, by address.
func oracleSymbols(t testing.TB, paths ...string) []named {
	t.Helper()
	var all []named
	for _, path := range paths {
		all = append(all, fileSymbols(t, path)...)
	}
	slices.SortFunc(all, func(a, b named) int { return cmp.Compare(a.start, b.start) })
	return all
}

// fileSymbols returns the symbols of one file.
func fileSymbols(t testing.TB, path string) []named {
	t.Helper()
	code := codeSections(t, path)
	var all []named
	for line := range strings.Lines(readelf(t, "-sW", path)) {
		f := strings.Fields(line)
		if len(f) < 8 || !code[f[6]] || f[3] != "FUNC" && f[3] != "IFUNC" && f[3] != "NOTYPE" {
			continue
		}
		size, err := strconv.ParseUint(f[2], 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(f[7], "@")
		if addr := hexNumber(t, f[1]); size > 0 {
			all = append(all, named{addr, addr + size, name})
		}
	}
	return all
}

// oracleFDEs returns the ranges of the call frame information. A debug file itself has none.
func oracleFDEs(t testing.TB, path string) []span {
	t.Helper()
	var all []span
	for line := range strings.Lines(readelf(t, "--debug-dump=no-follow-links", "--debug-dump=frames", path)) {
		if !strings.Contains(line, " FDE ") {
			continue
		}
		_, pc, ok := strings.Cut(line, " pc=")
		start, end, ok2 := strings.Cut(strings.TrimSpace(pc), "..")
		if ok && ok2 {
			all = append(all, span{hexNumber(t, start), hexNumber(t, end)})
		}
	}
	return all
}

// oracle answers for one file.
type oracle struct {
	symbols []named
	longest uint64
}

func newOracle(symbols []named) *oracle {
	o := &oracle{symbols: symbols}
	for _, s := range symbols {
		o.longest = max(o.longest, s.end-s.start)
	}
	return o
}

// covering returns the symbols whose range contains addr.
func (o *oracle) covering(addr uint64) []named {
	i, _ := slices.BinarySearchFunc(o.symbols, addr, func(s named, a uint64) int { return cmp.Compare(s.start, a+1) })
	var all []named
	for i--; i >= 0 && o.symbols[i].start+o.longest > addr; i-- {
		if addr < o.symbols[i].end {
			all = append(all, o.symbols[i])
		}
	}
	return all
}

// innermost keeps the symbols with the highest start.
func innermost(all []named) []named {
	last := uint64(0)
	for _, s := range all {
		last = max(last, s.start)
	}
	return slices.DeleteFunc(all, func(s named) bool { return s.start < last })
}

func hasName(all []named, name string) bool {
	return slices.ContainsFunc(all, func(s named) bool { return s.name == name })
}

// eachOracle runs a test on every file alone and, if it has one, together with its debug file.
func eachOracle(t *testing.T, test func(t *testing.T, paths ...string)) {
	t.Helper()
	for _, path := range oracleFiles(t) {
		t.Run(path, func(t *testing.T) { test(t, path) })
		if both := withDebugFile(t, path); len(both) > 1 {
			t.Run(path+" with its debug file", func(t *testing.T) { test(t, both...) })
		}
	}
}

// TestEverySymbol looks up the first, middle and last byte of every function, and the neighbouring bytes. The name
// must be one of the innermost functions that contain the address. There must be a name if and only if there is such
// a function.
func TestEverySymbol(t *testing.T) {
	eachOracle(t, func(t *testing.T, paths ...string) {
		symbols := oracleSymbols(t, paths...)
		o, table, checked, none := newOracle(symbols), openTable(t, paths...), 0, 0
		for _, s := range symbols {
			for _, addr := range []uint64{s.start, s.start + (s.end-s.start)/2, s.end - 1, s.end, s.start - 1} {
				want := innermost(o.covering(addr))
				got, ok := table.Lookup(addr, 0, 0)
				if ok != (len(want) > 0) || ok && !hasName(want, got.Name) {
					t.Fatalf("%#x: %+v, %v, but %v", addr, got, ok, want)
				}
				checked++
				if !ok {
					none++
				}
			}
		}
		figure.Printf(t, "%d symbols, %d addresses right, %d of them without a name", len(symbols), checked, none)
	})
}

// TestEveryFDE looks up the first, middle and last byte of every range in the call frame information.
func TestEveryFDE(t *testing.T) {
	eachOracle(t, func(t *testing.T, paths ...string) {
		o, table, fdes, cut := newOracle(oracleSymbols(t, paths...)), openTable(t, paths...), oracleFDEs(t, paths[0]), 0
		for _, f := range fdes {
			for _, addr := range f.points() {
				want := innermost(o.covering(addr))
				covered := len(want) > 0
				want = slices.DeleteFunc(want, func(s named) bool { return s.start < f.start || s.start >= f.end })
				got, ok := table.Lookup(addr, f.start, f.end)
				if ok != (len(want) > 0) || ok && !hasName(want, got.Name) {
					t.Fatalf("%#x in %v: %+v, %v, but %v", addr, f, got, ok, want)
				}
				if covered && !ok {
					cut++
				}
			}
		}
		named, total := table.Coverage(sequence(fdes), noOtherName)
		figure.Printf(t, "%d of %d functions have a name (%.1f %%); of %d addresses the symbol begins elsewhere",
			named, total, 100*float64(named)/float64(max(total, 1)), cut)
	})
}

// noOtherName is a source that names no address.
func noOtherName(uint64) bool { return false }

// sequence makes an iterator of ranges.
func sequence(all []span) iter.Seq2[uint64, uint64] {
	return func(yield func(start, end uint64) bool) {
		for _, s := range all {
			if !yield(s.start, s.end) {
				return
			}
		}
	}
}

// points are the first, middle and last byte.
func (s span) points() []uint64 {
	if s.end <= s.start {
		return nil
	}
	return []uint64{s.start, s.start + (s.end-s.start)/2, s.end - 1}
}
