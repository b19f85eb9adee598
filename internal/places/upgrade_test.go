package places

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// A package upgrade replaces the files of a server that runs, by renaming new ones over them, and a removal unlinks
// them. The stack and its names stay those of the build that runs.
func TestUpgraded(t *testing.T) {
	each(t, func(t *testing.T, binDir string) {
		tree := copyTree(t, binDir)
		s := pgtest.Start(t, filepath.Join(tree, "bin"), pgtest.Options{})
		pid := sleeper(t, s)
		before := stack(t, s, pid)
		complete(t, "before", before)

		n := upgrade(t, tree, otherTree(t, binDir))
		t.Logf("%d files replaced", n)
		check := func(what string) {
			t.Helper()
			// Without CAP_CHECKPOINT_RESTORE a library that is gone is read from the process's memory, which has what it
			// exports; the program itself can always be opened.
			same(t, what, stack(t, s, pid), before, true)
			if os.Geteuid() == 0 {
				same(t, what+", by root", stack(t, s, pid, "nice", "-n0"), before, false)
			}
		}
		check("replaced")
		if err := os.RemoveAll(filepath.Join(tree, "lib")); err != nil {
			t.Fatal(err)
		}
		check("libraries removed")
		// pg_ctl is needed at the end of the test.
		if err := os.Remove(filepath.Join(tree, "bin", "postgres")); err != nil {
			t.Fatal(err)
		}
		check("all removed")
		s.Connect(t, s.User, "postgres") // it still runs
	})
}

// otherTree is another version's installation, the same one if there is only one.
func otherTree(t *testing.T, binDir string) string {
	for _, other := range pgtest.BinDirs(t) {
		tree := filepath.Dir(other)
		if _, err := os.Stat(filepath.Join(tree, "share", "postgresql")); err == nil && other != binDir {
			return tree
		}
	}
	return filepath.Dir(binDir)
}

// upgrade replaces the programs and libraries of a tree as dpkg does: the new file is written beside the old one and
// renamed over it. It returns how many there were.
func upgrade(t *testing.T, tree, from string) (replaced int) {
	for _, part := range []string{"bin", "lib"} {
		err := filepath.WalkDir(filepath.Join(tree, part), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || d.Name() == "pg_ctl" {
				return err
			}
			relative, err := filepath.Rel(tree, path)
			if err != nil {
				return err
			}
			data, err := os.ReadFile(filepath.Join(from, relative))
			if err != nil {
				return nil //nolint:nilerr // the other version does not have it
			}
			fresh := path + ".dpkg-new"
			if err := pgtest.WriteProgram(fresh, data); err != nil {
				return err
			}
			replaced++
			return os.Rename(fresh, path)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if replaced == 0 {
		t.Fatal("nothing was replaced")
	}
	return replaced
}
