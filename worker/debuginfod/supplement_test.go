package debuginfod

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pg_stat_backtrace/internal/debuginfodtest"
)

// TestSupplement: with a debug file that dwz has moved parts of to another one comes that other one too.
func TestSupplement(t *testing.T) {
	dir := t.TempDir()
	var ids, files []string
	for i, flag := range []string{"-O1", "-O2"} {
		p := debuginfodtest.Build(t, "testdata/program.c", flag, "-gdwarf-4")
		file := filepath.Join(dir, []string{"a.debug", "b.debug"}[i])
		if err := os.Rename(p.Debug, file); err != nil {
			t.Fatal(err)
		}
		ids, files = append(ids, p.BuildID), append(files, file)
	}
	sup := filepath.Join(dir, "sup.debug")
	args := append([]string{"-m", sup, "-M", "/nonexistent/sup.debug"}, files...)
	dwz := exec.CommandContext(t.Context(), "dwz", args...)
	if out, err := dwz.CombinedOutput(); err != nil {
		t.Fatalf("dwz: %v\n%s", err, out)
	}
	if _, err := os.Stat(sup); err != nil {
		t.Fatalf("dwz found nothing in common: %v", err)
	}
	supID := debuginfodtest.BuildID(t, sup)
	server := debuginfodtest.Start(t, dir, ids[0], supID)
	c, _ := newClient(t, Config{URLs: []string{server.URL}})
	path, err := c.Fetch(t.Context(), DebugInfo, ids[0])
	if err != nil {
		t.Fatal(err)
	}
	same(t, path, files[0])
	got := c.DebugFile(supID)
	if got == "" {
		t.Fatal("the supplementary file has not come")
	}
	same(t, got, sup)
	if id, ok := missingSupplement(path); !ok || id != supID {
		t.Errorf("%q, %v", id, ok) // it is in the cache, not at its place on this host
	}
}
