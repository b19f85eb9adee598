package image_test

import (
	"debug/elf"
	"os"
	"path/filepath"
	"testing"

	"pg_stat_backtrace/unwind/image"
)

// TestStart: programs, position independent or not, have a start, which is that of debug/elf; libraries have none.
func TestStart(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]bool{self: true, "/bin/sh": true}
	libraries, _ := filepath.Glob("/lib/*/libc.so.6")
	for _, name := range libraries {
		files[name] = false // has an entry, and is a program beside that
		if m, err := elf.Open(name); err == nil {
			for _, p := range m.Progs {
				files[name] = files[name] || p.Type == elf.PT_INTERP
			}
			_ = m.Close()
		}
	}
	loaders, _ := filepath.Glob("/lib*/ld-linux*.so.*")
	for _, name := range loaders {
		files[name] = false
	}
	for name, program := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		m, err := image.Open(f, name)
		if err != nil {
			t.Fatal(err)
		}
		want := uint64(0)
		if e, err := elf.NewFile(f); err != nil {
			t.Fatal(err)
		} else if program {
			want = e.Entry
		}
		if got := m.Start(); got != want || m.Entry() == 0 {
			t.Errorf("%s: %#x, not %#x", name, got, want)
		}
	}
}
