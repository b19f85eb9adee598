package dwarf

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
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

// splitFrom creates debugging information with a split file that has the sections dwo.
func splitFrom(parts, dwo map[string][]byte) *Data {
	d := fromBytes(parts, nil)
	d.options.Split = func(SplitFile) (*elfimage.Image, error) {
		f := imagetest.File{Type: elf.ET_REL, Machine: elf.EM_X86_64}
		for name, data := range dwo {
			f.Sections = append(f.Sections, imagetest.Section{Name: name, Type: elf.SHT_PROGBITS, Data: data})
		}
		return elfimage.Open(bytes.NewReader(f.Bytes()), "split")
	}
	return d
}

// TestSplitFiles checks a unit without its split file: it has only lines, and an error reports this. A file of
// another build is not used, because its unit has another id.
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

// packageFrom creates debugging information with a package that has the sections dwo, each behind some bytes of
// another unit.
func packageFrom(parts, dwo map[string][]byte, version uint16, id uint64) *Data {
	const before = 64
	numbers := map[string]uint32{
		".debug_info.dwo": sectInfo, ".debug_abbrev.dwo": sectAbbrev, ".debug_str_offsets.dwo": sectStrOffsets,
		".debug_rnglists.dwo": sectRnglists,
	}
	f := imagetest.File{Type: elf.ET_REL, Machine: elf.EM_X86_64}
	var columns, offsets, sizes []byte
	count := uint32(0)
	for name, data := range dwo {
		if number, ok := numbers[name]; ok {
			columns = binary.LittleEndian.AppendUint32(columns, number)
			offsets = binary.LittleEndian.AppendUint32(offsets, before)
			sizes = binary.LittleEndian.AppendUint32(sizes, uint32(len(data)))
			data = append(bytes.Repeat([]byte{0xff}, before), data...)
			count++
		}
		f.Sections = append(f.Sections, imagetest.Section{Name: name, Type: elf.SHT_PROGBITS, Data: data})
	}
	const slots = 4
	index := binary.LittleEndian.AppendUint32(nil, uint32(version))
	index = binary.LittleEndian.AppendUint32(index, count)
	index = binary.LittleEndian.AppendUint32(index, 1)
	index = binary.LittleEndian.AppendUint32(index, slots)
	hashes, rows := make([]byte, 8*slots), make([]byte, 4*slots)
	at := id % slots
	binary.LittleEndian.PutUint64(hashes[8*at:], ^id) // in the way: the unit is in the next slot of its sequence
	binary.LittleEndian.PutUint32(rows[4*at:], 9)
	at = (at + (id>>32%slots | 1)) % slots
	binary.LittleEndian.PutUint64(hashes[8*at:], id)
	binary.LittleEndian.PutUint32(rows[4*at:], 1)
	f.Sections = append(f.Sections, imagetest.Section{
		Name: ".debug_cu_index", Type: elf.SHT_PROGBITS,
		Data: bytes.Join([][]byte{index, hashes, rows, columns, offsets, sizes}, nil),
	})
	d := fromBytes(parts, nil)
	d.options.Package = func() (*elfimage.Image, error) { return elfimage.Open(bytes.NewReader(f.Bytes()), "package") }
	return d
}

// TestPackage compares a package with the split file that it contains.
func TestPackage(t *testing.T) {
	for version, number := range map[string]uint16{"4": 2, "5": 5} {
		parts, dwo := splitParts(t, version)
		file := splitFrom(parts, dwo)
		if err := file.Load(); err != nil {
			t.Fatal(err)
		}
		id := uint64(0)
		for i := range file.units {
			if file.units[i].split {
				id = file.units[i].dwoID
			}
		}
		if id == 0 {
			t.Fatalf("DWARF %s: no skeleton in %+v", version, file.units)
		}
		whole, other := packageFrom(parts, dwo, number, id), packageFrom(parts, dwo, number, id+1)
		for _, s := range file.index.spans {
			for addr := s.low; addr < s.high; addr++ {
				want, err := file.Frames(addr)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := whole.Frames(addr); err != nil || !reflect.DeepEqual(got, want) {
					t.Fatalf("DWARF %s, %#x: %+v, %v, not %+v", version, addr, got, err, want)
				}
				if got, err := other.Frames(addr); !errors.Is(err, ErrNoSplit) || len(got) > 1 {
					t.Fatalf("DWARF %s, %#x: another unit's %+v, %v", version, addr, got, err)
				}
			}
		}
	}
}

// FuzzPackageIndex damages the index of a package.
func FuzzPackageIndex(f *testing.F) {
	f.Add([]byte("\x02\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00"+
		"\x07\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x20\x00\x00\x00\x30\x00\x00\x00"), uint64(7), false)
	f.Fuzz(func(t *testing.T, raw []byte, id uint64, big bool) {
		x, err := parsePackageIndex(raw, big)
		if err != nil {
			return
		}
		if parts, _ := x.find(id); len(parts) > len(x.columns) {
			t.Errorf("%d parts of %d", len(parts), len(x.columns))
		}
	})
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
			".debug_info": info, ".debug_abbrev": abbrev, ".debug_addr": addrs, ".debug_ranges": ranges,
			".debug_rnglists": ranges,
		}, map[string][]byte{
			".debug_info.dwo": dwoInfo, ".debug_abbrev.dwo": dwoAbbrev, ".debug_rnglists.dwo": lists,
			".debug_str_offsets.dwo": offsets, ".debug_str.dwo": info,
		}))
	})
}
