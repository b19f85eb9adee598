package cfi

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/arch"
)

// The oracle is GNU readelf. For every FDE of real files, the test compares our rules with the rules that readelf
// prints, for every row and register.
//
// readelf differs from DWARF in these points:
//
//	"u"            also for a register without any rule: readelf starts every column that an
//	               FDE mentions as undefined. The second oracle, llvm-dwarfdump, distinguishes
//	               undefined from unspecified.
//	"exp", "vexp"  without the expression. The second oracle compares the operations.
//	no rows        for an FDE without instructions but padding: its one row is the CIE's.
//	rows repeated  for one address, when it advances by zero: the last one holds.
//	no end         of a row: it is the address of the next row, or the end of the FDE.
//
// PGSB_ORACLE_FILES names more files, separated by colons. PGSB_ORACLE_SLOW=1 adds the slow files. -short uses only
// small files.

// oracleFiles returns the existing files among the files to compare.
func oracleFiles(t *testing.T) []string {
	t.Helper()
	patterns := []string{
		"/usr/lib/postgresql/*/bin/postgres",
		"/usr/lib/postgresql/*/lib/plpgsql.so",
		"/lib/x86_64-linux-gnu/libc.so.6",
		"/lib64/ld-linux-x86-64.so.2",
		"/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
		"/usr/lib/x86_64-linux-gnu/libpython3*.so.1.0",
		"/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
		"/usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
		"/usr/lib/x86_64-linux-gnu/libffi.so.8",
		"/usr/bin/node",
	}
	if testing.Short() {
		return existing(t, smallFiles())
	}
	patterns = append(patterns, npmFiles()...)
	slow := []string{"/usr/lib/x86_64-linux-gnu/libLLVM-*.so.1"}
	if os.Getenv("PGSB_ORACLE_SLOW") != "" {
		patterns = append(patterns, slow...)
	} else {
		t.Logf("left out without PGSB_ORACLE_SLOW=1: %s", strings.Join(slow, " "))
	}
	return existing(t, append(patterns, filepath.SplitList(os.Getenv("PGSB_ORACLE_FILES"))...))
}

// npmFiles returns the servers that other tests run, and their PL/pgSQL.
func npmFiles() []string {
	var files []string
	for _, dir := range filepath.SplitList(os.Getenv("PGSB_TEST_BINDIRS")) {
		files = append(files, filepath.Join(dir, "postgres"))
		for _, lib := range []string{"lib", "lib/postgresql"} {
			if plpgsql := filepath.Join(dir, "..", lib, "plpgsql.so"); isFile(plpgsql) {
				files = append(files, plpgsql)
			}
		}
	}
	return files
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// smallFiles contain each kind of rule.
func smallFiles() []string {
	return []string{
		"/usr/lib/postgresql/*/lib/plpgsql.so", "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2",
	}
}

// existing returns the files that match patterns, each once.
func existing(t *testing.T, patterns []string) []string {
	t.Helper()
	seen := map[string]bool{}
	var files []string
	for _, p := range patterns {
		found, err := filepath.Glob(p)
		if err != nil || len(found) == 0 {
			t.Logf("not on this machine: %s", p)
		}
		for _, path := range found {
			if file, err := filepath.EvalSymlinks(path); err == nil && !seen[file] {
				seen[file] = true
				files = append(files, path)
			}
		}
	}
	return files
}

// needTool skips a test, with the reason, where a program is not installed.
func needTool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed", name)
	}
}

func TestOracleReadelf(t *testing.T) {
	if arch.Host() != arch.AMD64 {
		t.Skip("knows readelf's names of x86-64 registers only")
	}
	needTool(t, "readelf")
	selected := figure.Share(t, 3)
	// A program that the test builds, and the vDSO, come first.
	files := []string{"", vdsoFile(t)}
	if selected(0) {
		files[0] = goProgram(t)
	}
	files = append(files, oracleFiles(t)...)
	var fdes, rows, cells atomic.Int64
	compared := 0
	t.Run("files", func(t *testing.T) {
		for i, path := range files {
			if path == "" || !selected(i) {
				continue
			}
			compared++
			t.Run(filepath.Base(path), func(t *testing.T) {
				t.Parallel()
				o := comparison{t: t, table: load(t, path), path: path}
				o.run()
				t.Logf("%s: %d FDEs, %d rows, %d rules", path, o.fdes, o.rows, o.cells)
				fdes.Add(int64(o.fdes))
				rows.Add(int64(o.rows))
				cells.Add(int64(o.cells))
			})
		}
	})
	figure.Printf(t, "equal to readelf: %d FDEs, %d rows, %d rules of %d files",
		fdes.Load(), rows.Load(), cells.Load(), compared)
}

// goProgram builds a Go program with cgo: its C parts are in .eh_frame, its Go
// parts in a compressed .debug_frame. "" where that cannot be built.
func goProgram(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Log("no Go program with cgo: gcc is not installed")
		return ""
	}
	dir := t.TempDir()
	source := "package main\n\n// int one(void) { return 1; }\nimport \"C\"\n\nfunc main() { println(C.one()) }\n"
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "cgo-program")
	build := exec.Command("go", "build", "-o", program, "main.go")
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Logf("no Go program with cgo: %v\n%s", err, out)
		return ""
	}
	return program
}

// maxReports bounds the differences that one file reports.
const maxReports = 20

// comparison compares one file.
type comparison struct {
	t     *testing.T
	table *Table
	path  string

	fdes, rows, cells, reports int
}

func (o *comparison) errorf(format string, args ...any) {
	o.t.Helper()
	if o.reports++; o.reports <= maxReports {
		o.t.Errorf(format, args...)
	}
}

func (o *comparison) run() {
	ours := map[place]FDE{}
	for f := range o.table.FDEs {
		ours[place{f.InDebugFrame(), f.Offset()}] = f
	}
	total := len(ours)
	for theirs := range readelfFDEs(o.t, o.path) {
		f, ok := ours[theirs.place]
		if !ok {
			if theirs.start != theirs.end && theirs.start != 0 {
				o.errorf("FDE %v is missing", theirs.place)
			}
			continue
		}
		delete(ours, theirs.place)
		o.fdes++
		if f.Start != theirs.start || f.End != theirs.end {
			o.errorf("FDE %v: %#x..%#x, readelf %#x..%#x", theirs.place, f.Start, f.End, theirs.start, theirs.end)
			continue
		}
		o.compareFDE(&theirs)
	}
	if o.fdes == 0 {
		o.errorf("nothing was compared")
	}
	if len(ours) != 0 || total != o.fdes {
		o.errorf("%d FDEs that readelf does not know", len(ours))
	}
}

// compareFDE compares the rows of an FDE, found by address.
func (o *comparison) compareFDE(theirs *readelfFDE) {
	for i, want := range theirs.rows {
		end := theirs.end
		if i+1 < len(theirs.rows) {
			end = theirs.rows[i+1].addr
		}
		if want.addr >= theirs.end {
			continue // rows behind the function's end have no meaning
		}
		end = min(end, theirs.end)
		o.rows++
		o.cells += 1 + len(theirs.columns)
		row, err := o.table.Row(want.addr)
		if err != nil {
			o.errorf("FDE %v, %#x: %v", theirs.place, want.addr, err)
			continue
		}
		if row.Start != want.addr || row.End != end || row.FDEStart != theirs.start || row.FDEEnd != theirs.end {
			o.errorf("FDE %v: row %#x..%#x of %#x..%#x, readelf %#x..%#x", theirs.place,
				row.Start, row.End, row.FDEStart, row.FDEEnd, want.addr, end)
		}
		o.compareRow(theirs, &row, want)
	}
}

// compareRow compares the rules of all registers, including registers that only one side mentions.
func (o *comparison) compareRow(theirs *readelfFDE, row *Row, want readelfRow) {
	if got := readelfRule(row, row.CFA, true); got != want.cfa {
		o.errorf("%#x: CFA %s, readelf %s", want.addr, got, want.cfa)
	}
	var seen columnSet
	for i, column := range theirs.columns {
		seen.add(uint64(column))
		if got := readelfRule(row, row.Rule(column), false); got != want.cells[i] {
			o.errorf("%#x: column %d: %s, readelf %s", want.addr, column, got, want.cells[i])
		}
	}
	for _, rule := range row.Rules() {
		if !seen.has(uint64(rule.Column)) {
			o.errorf("%#x: column %d: readelf has no rule", want.addr, rule.Column)
		}
	}
}
