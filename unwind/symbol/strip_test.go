package symbol_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/unwind/symbol"
)

// unstripped returns the first file whose .symtab has more names than a distribution keeps. It searches the oracle's
// files and, for make check-names, the PostgreSQL with debugging information and the servers.
func unstripped(t testing.TB) string {
	t.Helper()
	files := oracleFiles(t)
	if os.Getenv("PGSB_ORACLE_ADDRESSES") != "" {
		for _, list := range []string{"PGSB_DEBUG_BINDIR", "PGSB_TEST_BINDIRS"} {
			for _, bin := range filepath.SplitList(os.Getenv(list)) {
				files = append(files, filepath.Join(bin, "postgres"))
			}
		}
	}
	for _, path := range files {
		if _, err := openImage(t, path).Symbols(".symtab"); err == nil && len(oracleFDEs(t, path)) > 1000 {
			return path
		}
	}
	t.Skip("none of the files has a .symtab: make check-names has some")
	return ""
}

// TestStrippedNamesAgree strips a copy as Debian does. No name that the copy gives may contradict the full file.
func TestStrippedNamesAgree(t *testing.T) {
	path := unstripped(t)
	stripped := filepath.Join(t.TempDir(), "stripped")

	cmd := exec.CommandContext(t.Context(), "strip", "--strip-unneeded", "--remove-section=.comment",
		"--remove-section=.note", "-o", stripped, path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("strip cannot: %v: %s", err, out)
	}
	o, full, cut := newOracle(oracleSymbols(t, path)), openTable(t, path), openTable(t, stripped)
	var count struct{ named, unnamed, other, wrong, nearest int }
	for _, f := range oracleFDEs(t, path) {
		for _, addr := range f.points() {
			s, ok := cut.Lookup(addr, f.start, f.end)
			whole, _ := full.Lookup(addr, f.start, f.end)
			switch {
			case !ok:
				count.unnamed++
				if nearest(cut, addr) != whole.Name {
					count.nearest++
				}
			case !hasName(o.covering(addr), s.Name):
				count.wrong++
				t.Errorf("%#x: %s, but %v", addr, s.Name, o.covering(addr))
			case s != whole:
				count.other++
				t.Logf("%#x: %+v, with all symbols %+v", addr, s, whole)
			default:
				count.named++
			}
		}
	}
	figure.Printf(t, "%s: named %d, by another alias %d, unnamed %d, of which the nearest symbol is wrong %d, wrong %d",
		path, count.named, count.other, count.unnamed, count.nearest, count.wrong)
	if info, err := os.Stat(stripped); err != nil || count.named == 0 || count.unnamed == 0 {
		t.Errorf("the copy is not what this test needs: %v, %v", info, err)
	}
}

// nearest returns the last function that begins at or before addr. Package symbol must not do this.
func nearest(t *symbol.Table, addr uint64) string {
	name := ""
	for s := range t.All() {
		if s.Addr > addr {
			break
		}
		name = s.Name
	}
	return name
}
