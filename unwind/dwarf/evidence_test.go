package dwarf_test

import (
	"cmp"
	"debug/dwarf"
	"debug/elf"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"pg_stat_backtrace/unwind/symbol"
)

// elfSymbols are the symbols of code, by address.
type elfSymbols []symbol.Symbol

func symbolsOf(t testing.TB, name string) elfSymbols {
	t.Helper()
	files := []string{name}
	if debug := debugFileOf(t, name); debug != "" {
		files = append(files, debug)
	}
	var all elfSymbols
	for _, file := range files {
		symbols, err := openImage(t, file).Symbols(".symtab")
		if err != nil {
			continue
		}
		for s := range symbols {
			all = append(all, symbol.Symbol{Name: strings.Clone(s.Name), Addr: s.Addr, Size: s.Size})
		}
	}
	slices.SortFunc(all, func(a, b symbol.Symbol) int { return cmp.Compare(a.Addr, b.Addr) })
	return all
}

// at returns the symbols that cover an address, and the last symbols that begin before it.
func (s elfSymbols) at(addr uint64) (covering, nearest []string) {
	i, _ := slices.BinarySearchFunc(s, addr+1, func(s symbol.Symbol, a uint64) int { return cmp.Compare(s.Addr, a) })
	first := i - 1
	for i--; i >= 0 && addr-s[i].Addr < 1<<20; i-- {
		if addr-s[i].Addr < s[i].Size {
			covering = append(covering, s[i].Name)
		}
		if s[i].Addr == s[first].Addr {
			nearest = append(nearest, s[i].Name)
		}
	}
	return covering, nearest
}

// arange is a range of .debug_aranges.
type arange struct {
	low, high, unit uint64
}

// aranges is readelf's output for .debug_aranges, and the units' main source files.
type aranges struct {
	ranges []arange // by address
	names  map[uint64]string
}

// arangesOf reads .debug_aranges with readelf.
func arangesOf(t testing.TB, file string) aranges {
	t.Helper()
	a := aranges{names: unitNames(t, file)}
	out, err := exec.CommandContext(t.Context(), "readelf", "--debug-dump=aranges", file).Output()
	if err != nil {
		t.Fatalf("readelf: %v", err)
	}
	unit := uint64(0)
	for line := range strings.Lines(string(out)) {
		if _, at, ok := strings.Cut(line, "Offset into .debug_info:"); ok {
			unit = hexNumber(t, strings.TrimPrefix(strings.TrimSpace(at), "0x"))
			continue
		}
		f := strings.Fields(line)
		if len(f) != 2 || len(f[0]) < 8 || strings.Trim(f[0]+f[1], "0123456789abcdef") != "" {
			continue
		}
		if low, size := hexNumber(t, f[0]), hexNumber(t, f[1]); size > 0 {
			a.ranges = append(a.ranges, arange{low, low + size, unit})
		}
	}
	slices.SortFunc(a.ranges, func(a, b arange) int { return cmp.Compare(a.low, b.low) })
	return a
}

// unitNames are the units' DW_AT_name, by offset, as readelf prints them.
func unitNames(t testing.TB, file string) map[uint64]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "readelf", "--debug-dump=info", "--dwarf-depth=1", file).Output()
	if err != nil {
		t.Fatalf("readelf: %v", err)
	}
	names := make(map[uint64]string)
	unit := uint64(0)
	for line := range strings.Lines(string(out)) {
		if _, at, ok := strings.Cut(line, "Compilation Unit @ offset "); ok {
			unit = hexNumber(t, strings.TrimPrefix(strings.Trim(at, ": \n"), "0x"))
		} else if _, name, ok := strings.Cut(line, "DW_AT_name"); ok {
			names[unit] = strings.TrimSpace(name[strings.LastIndex(name, ": ")+1:])
		}
	}
	return names
}

// at is the main source file of the unit that .debug_aranges has for an address.
func (a *aranges) at(addr uint64) (name string, ok bool) {
	i, _ := slices.BinarySearchFunc(a.ranges, addr+1, func(r arange, at uint64) int { return cmp.Compare(r.low, at) })
	if i == 0 || addr >= a.ranges[i-1].high {
		return "", false
	}
	return a.names[a.ranges[i-1].unit], true
}

// entries are the entries of functions as the standard library reads them.
type entries struct {
	t    testing.TB
	data func() *dwarf.Data
	// units are the ranges of the functions of each unit read so far.
	units map[dwarf.Offset][][2]uint64
}

func entriesOf(t testing.TB, s *files) entries {
	t.Helper()
	file := s.debug
	if s.twin != "" {
		file = s.twin
	}
	return entries{t, sync.OnceValue(func() *dwarf.Data {
		f, err := elf.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		d, err := f.DWARF()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}), make(map[dwarf.Offset][][2]uint64)}
}

// at reports whether the entry of a function covers an address. It is true also if this is unknown.
func (e *entries) at(addr uint64) bool {
	r := e.data().Reader()
	unit, err := r.SeekPC(addr)
	if err != nil {
		return true
	}
	ranges, ok := e.units[unit.Offset]
	if !ok {
		ranges = e.functions(r)
		e.units[unit.Offset] = ranges
	}
	return slices.ContainsFunc(ranges, func(r [2]uint64) bool { return addr >= r[0] && addr < r[1] })
}

// functions returns the ranges of the functions of the unit at the position of r.
func (e *entries) functions(r *dwarf.Reader) [][2]uint64 {
	var all [][2]uint64
	for {
		entry, err := r.Next()
		switch {
		case err != nil:
			e.t.Fatal(err)
		case entry == nil || entry.Tag == dwarf.TagCompileUnit || entry.Tag == dwarf.TagPartialUnit:
			return all
		case entry.Tag == dwarf.TagSubprogram:
			ranges, err := e.data().Ranges(entry)
			if err != nil {
				e.t.Fatal(err)
			}
			all = append(all, ranges...)
		}
	}
}
