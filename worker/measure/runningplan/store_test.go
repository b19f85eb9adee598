package runningplan_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/pg/plan"
)

// TestStore keeps a result, and ignores files that were changed, or that other users could have written.
func TestStore(t *testing.T) {
	const build = "0123456789abcdef"
	s := runningplan.Store{Dir: filepath.Join(t.TempDir(), "cache")}
	c := &runningplan.Calibration{Build: build, Major: 15, Proof: &plan.Proof{Kinds: []string{"SeqScan"}, Fields: []string{"Alias"}}}
	if s.Load(build, 15) != nil {
		t.Fatal("a result without a file")
	}
	if err := s.Save(c); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(s.Dir, "pg_stat_backtrace-plans")
	path := filepath.Join(folder, build+"-15.json")
	good := func() bool { p := s.Load(build, 15); return p != nil && slices.Equal(p.Fields, c.Proof.Fields) }
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || !good() {
		t.Fatalf("%v, %v, found: %v", info, err, good())
	}
	if s.Load(build, 16) != nil || s.Load("fedcba9876543210", 15) != nil || s.Load("../"+build, 15) != nil {
		t.Error("a result of another build")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(folder)
	if len(entries) != 1 {
		t.Errorf("files: %v", entries)
	}
	put := func(content string, mode os.FileMode) {
		t.Helper()
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"another field": strings.Replace(string(data), `"Alias"`, `"Plan Rows"`, 1), "a part": string(data[:len(data)/2]), "nothing": "",
		"another version": strings.Replace(string(data), `"major":15`, `"major":14`, 1), "null": "null", "no proof": "{}",
	} {
		if put(content, 0o600); s.Load(build, 15) != nil {
			t.Errorf("%s is taken", name)
		}
	}
	if put(string(data), 0o644); s.Load(build, 15) != nil {
		t.Error("a file that others can read is taken")
	}
	put(string(data), 0o600)
	if !good() {
		t.Error("the right file is ignored")
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if s.Load(build, 15) != nil {
			t.Error("another user's file is taken")
		}
		put(string(data), 0o600)
	}
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if s.Load(build, 15) != nil || s.Save(c) == nil {
		t.Error("a folder that others can write is used")
	}
	if err := os.Chmod(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".x"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path+".x", path); err != nil {
		t.Fatal(err)
	}
	if s.Load(build, 15) != nil {
		t.Error("a symbolic link is followed")
	}
}
