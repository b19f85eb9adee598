package places

import (
	"os"
	"path/filepath"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestEmptiedDataDirectory: an administrator empties the data directory of a stopped server and fills it anew, as pg_basebackup does,
// which refuses a directory with files. The worker makes no file there, and answers as soon as the server runs.
func TestEmptiedDataDirectory(t *testing.T) {
	each(t, func(t *testing.T, binDir string) {
		s := pgtest.Start(t, binDir, pgtest.Options{})
		s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
		w := attend(t, s)
		w.says(t, `"ready"`)
		s.Stop("fast")
		saved := filepath.Join(t.TempDir(), "saved")
		run(t, "cp", "-a", s.DataDir, saved)
		for _, path := range entriesOf(t, s.DataDir) {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
		w.says(t, "waiting for the server")
		if left := entriesOf(t, s.DataDir); len(left) > 0 {
			t.Errorf("in the empty data directory are %q", left)
		}
		run(t, "cp", "-a", saved+"/.", s.DataDir)
		s.Start()
		pgtest.Wait(t, "an answer", func() bool { return answers(t, s) })
	})
}

// entriesOf returns the paths of the files in a directory.
func entriesOf(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
