package spool

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAlias checks that requests come through the link in the data directory. The link must lead only to the worker's
// spool, and end with it.
func TestAlias(t *testing.T) {
	dataDir := t.TempDir()
	link := filepath.Join(dataDir, aliasDir, aliasLeaf)
	if err := os.Mkdir(filepath.Dir(link), 0o700); err != nil {
		t.Fatal(err)
	}
	// What came with a copy of another data directory.
	if err := os.Symlink("/nonexistent", link); err != nil {
		t.Fatal(err)
	}
	s := serve(t, Config{DataDir: dataDir}, echo)
	if leads, err := os.Readlink(link); err != nil || leads != s.Dir() {
		t.Errorf("the link leads to %q, %v", leads, err)
	}
	file, err := os.ReadFile(filepath.Join(dataDir, pidName))
	if lines := strings.Split(string(file), "\n"); err != nil || len(lines) != 14 || lines[10] != aliasPath {
		t.Errorf("pid file %q, %v", file, err)
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(link); !os.IsNotExist(err) {
		t.Errorf("the link is left: %v", err)
	}
}

// TestNoAlias checks that requests use the path of the spool directory if the link cannot be made.
func TestNoAlias(t *testing.T) {
	const plans = "/var/cache/plans of a worker"
	s := serve(t, Config{Plans: plans}, echo)
	file, err := os.ReadFile(filepath.Join(s.cfg.DataDir, pidName))
	lines := strings.Split(string(file), "\n")
	if err != nil || len(lines) != 14 || lines[5] != s.Dir() || lines[10] != "" {
		t.Errorf("pid file %q, %v", file, err)
	}
	if info, err := Find(s.cfg.DataDir); err != nil || info.Plans != plans {
		t.Errorf("%+v, %v", info, err)
	}
	if len(s.reported()) > 0 {
		t.Error(s.reported())
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}
