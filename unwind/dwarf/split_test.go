package dwarf

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestSplit checks a program with split DWARF, whose functions are in a file that is not read. Its units have only
// lines, and the reason is reported once.
func TestSplit(t *testing.T) {
	for _, version := range []string{"4", "5"} {
		dir := t.TempDir()
		source, exe := filepath.Join(dir, "seed.c"), filepath.Join(dir, "seed")
		if err := os.WriteFile(source, []byte(seedSource), 0o600); err != nil {
			t.Fatal(err)
		}
		gcc := exec.CommandContext(t.Context(), "gcc", "-gdwarf-"+version, "-gsplit-dwarf", "-O2", "-o", exe, source)
		if out, err := gcc.CombinedOutput(); err != nil {
			t.Skipf("%v: %s", err, out)
		}
		f, err := elf.Open(exe)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		parts := make(map[string][]byte)
		for _, name := range rawSections {
			if s := f.Section(name); s != nil {
				parts[name], _ = s.Data()
			}
		}
		d := fromBytes(parts, nil)
		var reported []error
		d.options.Report = func(err error) { reported = append(reported, err) }
		if err := d.Load(); !errors.Is(err, ErrSplit) || len(d.index.spans) == 0 {
			t.Fatalf("DWARF %s: %v, %v", version, d.index.spans, err)
		}
		frames, err := d.Frames(d.index.spans[len(d.index.spans)-1].low)
		if !errors.Is(err, ErrSplit) || len(frames) != 1 || frames[0].Function != "" || frames[0].Line == 0 ||
			filepath.Base(frames[0].File) != "seed.c" {
			t.Errorf("DWARF %s: %+v, %v", version, frames, err)
		}
		if len(reported) != 1 || !errors.Is(reported[0], ErrSplit) {
			t.Errorf("DWARF %s: reported %v", version, reported)
		}
	}
}
