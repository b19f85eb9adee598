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
