package dwarf

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pg_stat_backtrace/unwind/image"
	"pg_stat_backtrace/unwind/image/imagetest"
)

// splitParts compiles a program with split DWARF and returns the sections of the image and of the .dwo file, which have
// ".dwo" behind their names.
func splitParts(t testing.TB, version string) (parts, dwo map[string][]byte) {
	t.Helper()
	dir := t.TempDir()
	source, exe := filepath.Join(dir, "seed.c"), filepath.Join(dir, "seed")
	if err := os.WriteFile(source, []byte(seedSource), 0o600); err != nil {
		t.Fatal(err)
	}
	gcc := exec.CommandContext(t.Context(), "gcc", "-gdwarf-"+version, "-gsplit-dwarf", "-O2", "-o", exe, source)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Skipf("%v: %s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.dwo"))
	if err != nil || len(found) != 1 {
		t.Fatalf("split files %q, %v", found, err)
	}
	read := func(name, suffix string) map[string][]byte {
		f, err := elf.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		all := make(map[string][]byte)
		for _, name := range rawSections {
			if s := f.Section(name + suffix); s != nil {
				all[name+suffix], _ = s.Data()
			}
		}
		return all
	}
	return read(exe, ""), read(found[0], ".dwo")
}

// splitFrom makes debugging information of which the split file has the sections dwo.
func splitFrom(parts, dwo map[string][]byte) *Data {
	d := fromBytes(parts, nil)
	d.options.Split = func(SplitFile) (*image.Image, error) {
		f := imagetest.File{Type: elf.ET_REL, Machine: elf.EM_X86_64}
		for name, data := range dwo {
			f.Sections = append(f.Sections, imagetest.Section{Name: name, Type: elf.SHT_PROGBITS, Data: data})
		}
		return image.Open(bytes.NewReader(f.Bytes()), "split")
	}
	return d
}

// TestSplitFiles: without its split file a unit has lines only, and the error says so; a file of another build, whose
// unit has another id, is not used.
func TestSplitFiles(t *testing.T) {
	for _, version := range []string{"4", "5"} {
		parts, dwo := splitParts(t, version)
		d := splitFrom(parts, dwo)
		if err := d.Load(); err != nil || len(d.index.spans) == 0 {
			t.Fatalf("DWARF %s: %v, %v", version, d.index.spans, err)
		}
		addr := d.index.spans[len(d.index.spans)-1].low
		frames, err := d.Frames(addr)
		if err != nil || len(frames) == 0 || frames[len(frames)-1].Function == "" || frames[0].Line == 0 {
			t.Errorf("DWARF %s: %+v, %v", version, frames, err)
		}
		for i := range d.units {
			d.units[i].dwoID++
		}
		d.cache = NewCache(0)
		without := splitFrom(parts, dwo)
		without.options.Split = nil
		for what, other := range map[string]*Data{"another id": d, "no file": without} {
			frames, err := other.Frames(addr)
			if !errors.Is(err, ErrNoSplit) || len(frames) != 1 || frames[0].Function != "" || frames[0].Line == 0 {
				t.Errorf("DWARF %s, %s: %+v, %v", version, what, frames, err)
			}
		}
	}
}

// FuzzSplit damages a skeleton and its split file.
func FuzzSplit(f *testing.F) {
	for _, version := range []string{"4", "5"} {
		p, dwo := splitParts(f, version)
		f.Add(p[".debug_info"], p[".debug_abbrev"], p[".debug_addr"], p[".debug_ranges"],
			dwo[".debug_info.dwo"], dwo[".debug_abbrev.dwo"], dwo[".debug_rnglists.dwo"], dwo[".debug_str_offsets.dwo"])
	}
	f.Fuzz(func(t *testing.T, info, abbrev, addrs, ranges, dwoInfo, dwoAbbrev, lists, offsets []byte) {
		everything(t, splitFrom(map[string][]byte{
			".debug_info": info, ".debug_abbrev": abbrev, ".debug_addr": addrs, ".debug_ranges": ranges, ".debug_rnglists": ranges,
		}, map[string][]byte{
			".debug_info.dwo": dwoInfo, ".debug_abbrev.dwo": dwoAbbrev, ".debug_rnglists.dwo": lists,
			".debug_str_offsets.dwo": offsets, ".debug_str.dwo": info,
		}))
	})
}
