package dwarf

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// rawSections are the sections that the fuzz tests damage.
var rawSections = []string{
	".debug_info", ".debug_abbrev", ".debug_str", ".debug_line", ".debug_ranges", ".debug_rnglists", ".debug_aranges",
	".debug_addr", ".debug_line_str", ".debug_str_offsets",
}

// fromBytes makes debugging information of sections in memory.
func fromBytes(parts map[string][]byte, sup *Data) *Data {
	d := &Data{name: "fuzz", cache: NewCache(0), sup: sup}
	d.sections.each(func(_ uint64, s *section, name string) {
		*s = section{name: name, size: uint64(len(parts[name])), r: bytes.NewReader(parts[name])}
	})
	return d
}

// everything reads each unit's functions, and the frames at both ends of each function.
func everything(t *testing.T, d *Data) {
	t.Helper()
	_ = d.Load() // any error will do
	for i := range d.units {
		u := &d.units[i]
		f, err := d.functions(u)
		if (f == nil) == (err == nil) {
			t.Fatalf("functions %v and error %v", f, err)
		}
		if f == nil {
			continue
		}
		for _, fn := range f.all[:min(len(f.all), 64)] {
			for _, addr := range []uint64{fn.low, fn.high - 1} {
				if got, ok := f.find(addr); !ok || !got.holds(addr) {
					t.Fatalf("%#x is in %+v, but found %+v", addr, fn, got)
				}
				checkFrames(t, d, addr)
			}
		}
	}
	for _, s := range d.index.spans[:min(len(d.index.spans), 64)] {
		checkFrames(t, d, s.low)
		checkFrames(t, d, s.high-1)
	}
}

// checkFrames looks up an address and checks the form of the answer.
func checkFrames(t *testing.T, d *Data, addr uint64) {
	t.Helper()
	frames, _ := d.Frames(addr)
	for i, f := range frames {
		if f.Inlined != (i < len(frames)-1) || f.Start > addr || (f.File == "") != (f.Line == 0) {
			t.Fatalf("%#x: frame %d of %d: %+v", addr, i, len(frames), f)
		}
	}
}

const seedSource = `
static inline int twice(int x) { return x * x + 3; }
static __attribute__((noinline)) int worker(int n) { int s = 0; while (n-- > 0) s += twice(n ^ s); return s; }
int main(int n, char **v) { (void)v; if (__builtin_expect(n > 7, 0)) __builtin_abort(); return worker(n) + twice(n); }
`

// seeds are the sections of a small program in each version of DWARF, if there is a compiler.
func seeds(f *testing.F) []map[string][]byte {
	f.Helper()
	dir := f.TempDir()
	source := filepath.Join(dir, "seed.c")
	if err := os.WriteFile(source, []byte(seedSource), 0o600); err != nil {
		f.Fatal(err)
	}
	var all []map[string][]byte
	for _, version := range []string{"2", "3", "4", "5"} {
		exe := filepath.Join(dir, "seed"+version)
		out, err := exec.CommandContext(f.Context(), "gcc", "-gdwarf-"+version, "-O2", "-o", exe, source).CombinedOutput()
		if err != nil {
			f.Logf("no seed of version %s: %v: %s", version, err, out)
			continue
		}
		e, err := elf.Open(exe)
		if err != nil {
			f.Fatal(err)
		}
		parts := make(map[string][]byte)
		for _, name := range rawSections {
			if s := e.Section(name); s != nil {
				parts[name], _ = s.Data()
			}
		}
		_ = e.Close()
		all = append(all, parts)
	}
	return all
}

// FuzzEntries damages the descriptions of functions.
func FuzzEntries(f *testing.F) {
	for _, p := range seeds(f) {
		f.Add(p[".debug_info"], p[".debug_abbrev"], p[".debug_ranges"], p[".debug_rnglists"], p[".debug_str"])
	}
	f.Fuzz(func(t *testing.T, info, abbrev, ranges, rnglists, str []byte) {
		everything(t, fromBytes(map[string][]byte{
			".debug_info": info, ".debug_abbrev": abbrev, ".debug_ranges": ranges, ".debug_rnglists": rnglists,
			".debug_str": str, ".debug_addr": ranges, ".debug_str_offsets": rnglists,
		}, fromBytes(map[string][]byte{".debug_info": info, ".debug_abbrev": abbrev, ".debug_str": str}, nil)))
	})
}

// FuzzAbbrev damages the abbreviations alone.
func FuzzAbbrev(f *testing.F) {
	for _, p := range seeds(f) {
		f.Add(p[".debug_abbrev"], uint8(4))
	}
	f.Fuzz(func(t *testing.T, table []byte, version uint8) {
		c := cursor{data: table}
		u := unit{version: version%4 + 2, addrSize: 8}
		a, err := parseAbbrevs(&c, &u)
		if (a == nil) == (err == nil) {
			t.Fatalf("abbreviations %v and error %v", a, err)
		}
		if a == nil {
			return
		}
		for i := range a.dense {
			if a.find(uint64(i+1)) != &a.dense[i] {
				t.Fatalf("abbreviation %d is not found", i+1)
			}
		}
	})
}

// FuzzLines damages a line table.
func FuzzLines(f *testing.F) {
	for _, p := range seeds(f) {
		f.Add(p[".debug_line"], p[".debug_line_str"])
	}
	plain := []byte{1, 1, 1, 251, 14, 10, 0, 1, 1, 1, 1, 0, 0, 0, 1, 'd', 0, 0, 'f', 0, 1, 0, 0, 0}
	f.Add(lineTable(plain, []byte{0, 9, 2, 0, 16, 0, 0, 0, 0, 0, 0, 20, 255, 2, 1, 0, 1, 1}), []byte{})
	f.Fuzz(func(t *testing.T, line, str []byte) {
		// A unit that contains only the offset of its line table.
		info := []byte{12, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 1, 0, 0, 0, 0}
		abbrev := []byte{1, byte(tagCompileUnit), 0, byte(attrStmtList), byte(formSecOffset), 0, 0, 0}
		d := fromBytes(map[string][]byte{
			".debug_info": info, ".debug_abbrev": abbrev, ".debug_line": line, ".debug_line_str": str, ".debug_str": str,
		}, nil)
		if err := d.Load(); err != nil || len(d.units) != 1 {
			t.Fatalf("%d units, %v", len(d.units), err)
		}
		table, err := d.lines(&d.units[0])
		if (table == nil) == (err == nil) {
			t.Fatalf("table %v and error %v", table, err)
		}
		if table == nil {
			return
		}
		for _, s := range table.sequences {
			for _, r := range table.rows[s.first:min(s.last, s.first+64)] {
				if got, ok := table.find(r.addr); s.holds(r.addr) && !ok {
					t.Fatalf("row %+v of %+v is not found: %+v", r, s, got)
				}
				table.path(uint64(r.file))
			}
		}
	})
}

// FuzzRanges damages lists of ranges.
func FuzzRanges(f *testing.F) {
	for _, p := range seeds(f) {
		f.Add(p[".debug_ranges"], uint8(4), uint64(0))
		f.Add(p[".debug_rnglists"], uint8(5), uint64(12))
	}
	f.Fuzz(func(t *testing.T, list []byte, version uint8, off uint64) {
		d := fromBytes(map[string][]byte{".debug_ranges": list, ".debug_rnglists": list, ".debug_addr": list}, nil)
		u := unit{version: version%4 + 2, addrSize: 4 + version&4, low: 0x1000}
		for _, form := range []form{formSecOffset, formRnglistx} {
			budget := maxRangeBytes
			spans, err := d.rangeList(nil, &u, value{form: form, u: off}, &budget)
			if err != nil && len(spans) > maxRanges {
				t.Fatalf("%d ranges", len(spans))
			}
			for _, s := range spans {
				if !s.alive(&u) {
					t.Fatalf("range %+v", s)
				}
			}
		}
	})
}
