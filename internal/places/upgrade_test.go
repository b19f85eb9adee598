package places

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestUpgraded replaces the files of a running server, as a package upgrade does by renaming new files over them, and
// removes them. The stack and its names must stay those of the running build.
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
			// Without CAP_CHECKPOINT_RESTORE the worker reads a deleted library from the process's memory, which
			// contains its exported symbols. The program itself can always be opened.
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

// TestUpgradedNewSessions checks a package upgrade without a restart. New sessions cannot load plpgsql.so. Sessions
// that have loaded it, and the command line, must work, and doctor must explain the problem.
func TestUpgradedNewSessions(t *testing.T) {
	each(t, func(t *testing.T, binDir string) {
		other := otherTree(t, binDir)
		if other == filepath.Dir(binDir) {
			t.Skip("there is no other version to upgrade to")
		}
		tree := copyTree(t, binDir)
		s := pgtest.Start(t, filepath.Join(tree, "bin"), pgtest.Options{})
		s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
		where := s.DSN(s.User, "postgres")
		serveBy(t, s.AsServerUser(exec.Command(program, "worker", "-D", s.DataDir, where)))
		open, target := s.Connect(t, s.User, "postgres"), sleeper(t, s)
		doctor := func() string {
			out, err := s.AsServerUser(exec.Command(program, "doctor", "-D", s.DataDir, where)).CombinedOutput()
			if err != nil {
				t.Errorf("doctor: %v\n%s", err, out)
			}
			return string(out)
		}
		if got := ask(t, open, target); !strings.Contains(got, " in PostgresMain+0x") {
			t.Fatal(got)
		}
		if got := doctor(); !strings.Contains(got, "ok    program:") {
			t.Errorf("before: %s", got)
		}
		upgrade(t, tree, other)
		if got := ask(t, open, target); !strings.Contains(got, " in PostgresMain+0x") {
			t.Errorf("an open session: %s", got)
		}
		if got := ask(t, s.Connect(t, s.User, "postgres"), target); !strings.Contains(got, "plpgsql") {
			t.Errorf("a new session loads the other version's plpgsql.so: %s", got)
		}
		complete(t, "the command line", stack(t, s, target))
		got := doctor()
		for _, want := range []string{"warn  program:", "was replaced or removed", "plpgsql.so", "Restart the server"} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
	})
}

// otherTree returns another version's installation, or the same one if there is only one.
func otherTree(t *testing.T, binDir string) string {
	for _, other := range pgtest.BinDirs(t) {
		tree := filepath.Dir(other)
		if _, err := os.Stat(filepath.Join(tree, "share", "postgresql")); err == nil && other != binDir {
			return tree
		}
	}
	return filepath.Dir(binDir)
}

// upgrade replaces the programs and libraries of a tree like dpkg: it writes the new file beside the old one and
// renames it over the old one. It returns the number of replaced files.
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
