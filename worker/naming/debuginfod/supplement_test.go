package debuginfod

import (
	"os"
	"path/filepath"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
)

// TestSupplement checks that the file to which dwz has moved parts of a debug file is downloaded too.
func TestSupplement(t *testing.T) {
	a := imagetest.BuildSplit(t, "testdata/program.c", "-O1", "-gdwarf-4")
	b := imagetest.BuildSplit(t, "testdata/program.c", "-O2", "-gdwarf-4")
	sup, supID := imagetest.Share(t, a, b)
	dir := t.TempDir()
	for _, file := range []string{a.Debug, sup} {
		if err := os.Link(file, filepath.Join(dir, filepath.Base(file))); err != nil {
			t.Fatal(err)
		}
	}
	server := imagetest.StartDebuginfod(t, dir, a.BuildID, supID)
	c, _ := newClient(t, Config{URLs: []string{server.URL}})
	path, err := c.Fetch(t.Context(), DebugInfo, a.BuildID)
	if err != nil {
		t.Fatal(err)
	}
	same(t, path, a.Debug)
	got := c.DebugFile(supID)
	if got == "" {
		t.Fatal("the supplementary file has not come")
	}
	same(t, got, sup)
	if id, ok := missingSupplement(path); !ok || id != supID {
		t.Errorf("%q, %v", id, ok) // it is in the cache, not at its place on this host
	}
}
