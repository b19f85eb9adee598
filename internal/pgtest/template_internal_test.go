package pgtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestUsedDataDirectory: a server gets the data directory of a stopped server, with every file as the template has it.
func TestUsedDataDirectory(t *testing.T) {
	binDir, o := Newest(t), Options{InitDB: []string{"--auth-host=reject"}} // no other test has this template
	t.Run("first", func(t *testing.T) {
		s := Start(t, binDir, o)
		for _, sql := range []string{
			"CREATE TABLE t AS SELECT generate_series(1, 1000)", "CREATE ROLE r", "CREATE DATABASE d", "ALTER SYSTEM SET work_mem = '5MB'",
		} {
			s.Exec(t, sql)
		}
		change := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		change(os.Remove(filepath.Join(s.DataDir, "pg_ident.conf")))
		change(os.Chmod(filepath.Join(s.DataDir, "PG_VERSION"), 0o640))
		change(os.Mkdir(filepath.Join(s.DataDir, "left"), 0o755))
		change(os.WriteFile(filepath.Join(s.DataDir, "left", "file"), nil, 0o600))
		change(os.WriteFile(filepath.Join(s.DataDir, "pg_hba.conf"), []byte("local all all trust\n"), 0o600))
	})
	t.Run("second", func(t *testing.T) {
		o.Stopped = true
		s := Start(t, binDir, o)
		if left, err := os.ReadDir(s.template + used); err != nil || len(left) > 0 {
			t.Errorf("the used directory was not taken: %d are left, %v", len(left), err)
		}
		have, want := tree(t, s.DataDir), tree(t, s.template)
		want["/postgresql.conf"] = have["/postgresql.conf"] // Start has added lines
		for name, file := range want {
			if have[name] != file {
				t.Errorf("%s differs from the template", name)
			}
			delete(have, name)
		}
		for name := range have {
			t.Errorf("%s is left", name)
		}
		s.Start()
		s.Exec(t, "CREATE TABLE t ()")
	})
}

// file is what a file has, except its time.
type file struct {
	content string
	mode    fs.FileMode
}

// tree reads all files of a directory.
func tree(t *testing.T, dir string) map[string]file {
	t.Helper()
	files := map[string]file{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		var content []byte
		if !e.IsDir() {
			content, err = os.ReadFile(path)
		}
		files[path[len(dir):]] = file{string(content), info.Mode()}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
