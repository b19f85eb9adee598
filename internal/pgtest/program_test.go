package pgtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestSharedProgram checks that a program of the run is copied, not built again.
func TestSharedProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PGSB_TEST_PROGRAMS", dir)
	if err := os.WriteFile(filepath.Join(dir, "pg_stat_backtrace"), []byte("built before"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"first", "second"} {
		path := filepath.Join(t.TempDir(), name)
		if err := pgtest.BuildProgram(path); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != "built before" {
			t.Errorf("%d bytes, %v, want the program that was built before", len(got), err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o111 != 0o111 {
			t.Errorf("%v, %v: the server's user cannot run it", info, err)
		}
	}
}

// TestWriteProgram checks that a written program can be executed at once, even if other processes are started
// meanwhile.
func TestWriteProgram(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for n := range 50 {
				name := filepath.Join(dir, strconv.Itoa(worker)+"-"+strconv.Itoa(n))
				if err := pgtest.WriteProgram(name, program); err != nil {
					t.Error(err)
					return
				}
				if err := exec.CommandContext(t.Context(), name).Run(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}
