package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"pg_stat_backtrace/worker/cli/console"
)

// TestOutputDirectoryMissing expects the error before the profile is taken.
func TestOutputDirectoryMissing(t *testing.T) {
	t.Parallel()
	if _, err := console.CreateOutput(filepath.Join(t.TempDir(), "none", "file"), nil); !os.IsNotExist(err) {
		t.Error(err)
	}
	if _, err := console.CreateOutput(t.TempDir(), nil); err == nil {
		t.Error("a directory was opened")
	}
}

// TestOutputKeepsOldFile expects that a file that exists stays until the new one is complete.
func TestOutputKeepsOldFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, complete := range []bool{false, true} {
		o, err := console.CreateOutput(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprint(o, "new"); err != nil {
			t.Fatal(err)
		}
		want := "old"
		if complete {
			want = "new"
			if err := o.Commit(); err != nil {
				t.Error(err)
			}
		}
		o.Discard()
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%q, %v", got, err)
		}
		if left, err := os.ReadDir(filepath.Dir(name)); err != nil || len(left) != 1 {
			t.Errorf("%v, %v", left, err)
		}
	}
}
