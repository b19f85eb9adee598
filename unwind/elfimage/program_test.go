package elfimage_test

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/elfimage"
)

// TestStart checks that programs, position independent or not, have the same start as in debug/elf. Libraries and the
// dynamic linker have none. The dynamic linker is recognised.
func TestStart(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]bool{self: true, "/bin/sh": true}
	for pattern, program := range map[string]bool{
		"/lib/*/libc.so.6": true, // it can be run, and has an interpreter for that
		"/lib/*/libm.so.6": false, "/lib*/ld-linux*.so.*": false,
	} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Errorf("no %s: %v", pattern, err)
		}
		for _, name := range found {
			files[name] = program
		}
	}
	for name, program := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		m, err := elfimage.Open(f, name)
		if err != nil {
			t.Fatal(err)
		}
		want := uint64(0)
		if e, err := elf.NewFile(f); err != nil {
			t.Fatal(err)
		} else if program {
			want = e.Entry
		}
		if got := m.Start(); got != want || program && got == 0 {
			t.Errorf("%s: %#x, not %#x", name, got, want)
		}
		if linker := strings.HasPrefix(filepath.Base(name), "ld-linux"); m.DynamicLinker() != linker {
			t.Errorf("%s: is taken for a dynamic linker: %t", name, !linker)
		}
	}
}
