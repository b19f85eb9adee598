package symbolize

import (
	"bytes"
	"cmp"
	"debug/elf"
	"fmt"
	"os"
	"slices"
	"strings"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/selfnames"
	"pg_stat_backtrace/unwind/symbol"
)

// Loaded is an executable image of a process.
type Loaded struct {
	Image

	// Bias is the load bias: an address in the process minus the link-time address.
	Bias uint64
	// PID is the process whose mappings were read.
	PID int

	mapping, base process.Mapping
	moved         []process.Mapping // mappings with code of the image that are not mappings of its file
}

// Moved reports whether the process has moved the code at a link-time address to memory that is not the image's file.
// The kernel cannot put a probe there.
func (l *Loaded) Moved(addr uint64) bool {
	return slices.ContainsFunc(l.moved, func(m process.Mapping) bool {
		return addr+l.Bias >= m.Start && addr+l.Bias < m.End
	})
}

// IsFile reports whether a mapping is a mapping of the image's file.
func (l *Loaded) IsFile(m *process.Mapping) bool { return sameFile(m, &l.base) }

// Function is a function of an image.
type Function struct {
	Name string
	// Addr is the link-time address of its first instruction. Size is its length in bytes, or 0 if that is unknown.
	Addr, Size uint64
	// Derived is set if the name comes from the code of a stripped server instead of a symbol.
	Derived bool
	// Indirect is set if the symbol belongs to a resolver (IFUNC), which chooses a function when the program is
	// loaded.
	Indirect bool
	// Go is set if the function is in Go's own table.
	Go bool
}

// Loaded returns the executable images of a process, the program first.
func (c *Cache) Loaded(pid int) ([]Loaded, error) {
	maps, err := process.Maps(pid)
	if err != nil {
		return nil, err
	}
	all := make([]Loaded, 0, len(maps)/4)
	seen := make(map[*Module]int)
	late := &Deadline{After: imagesTime}
	defer late.Stop()
	for i := range maps {
		if maps[i].Perms&process.Exec == 0 {
			continue
		}
		f := c.mappedBefore(late, pid, maps, i)
		if f.Module == nil {
			continue
		}
		at, known := seen[f.Module]
		if !known {
			at = len(all)
			seen[f.Module] = at
			all = append(all, LoadedAt(pid, maps, i, &f))
		}
		if f.Moved {
			all[at].moved = append(all[at].moved, maps[i])
		}
	}
	exe, _ := programLink(pid)
	slices.SortStableFunc(all, func(a, b Loaded) int {
		return cmp.Compare(b.programRank(exe.Path), a.programRank(exe.Path))
	})
	return all, nil
}

// LoadedAt describes the image of a mapping.
func LoadedAt(pid int, maps []process.Mapping, i int, f *Placed) Loaded {
	m := maps[i]
	base, ok := baseMapping(maps, i)
	if f.Moved {
		m, base = f.Origin, f.Origin
	} else if !ok {
		base = m
	}
	return Loaded{
		Image: Image{
			Image: f.Module.Image, Path: m.Path, Deleted: m.Deleted,
			InMemory: f.Module.Path == "" && m.Inode != 0, module: f.Module,
		},
		Bias: f.Bias, PID: pid, mapping: m, base: base,
	}
}

// programRank is highest for the program of a process. exe is the file that the kernel has executed. If this is a
// dynamic linker, the program is the image for which the linker was called.
func (l *Loaded) programRank(exe string) int {
	switch {
	case l.mapping.Path == exe && l.IsProgram():
		return 3
	case l.IsProgram():
		return 2
	case l.mapping.Path == exe:
		return 1
	}
	return 0
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// OpenFile opens the file that the process has mapped, even if it was deleted or replaced since. The caller closes it.
func (l *Loaded) OpenFile() (*os.File, error) {
	if l.base.Inode == 0 {
		return nil, fmt.Errorf("%s is not a file", l.Name())
	}
	var failed error
	for _, open := range candidates(l.PID, &l.base, &l.mapping) {
		f, st, err := open.File()
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		img, err := elfimage.Open(f, l.Name())
		id := l.BuildID()
		if err == nil && (id != "" && img.BuildID() == id || id == "" && st.matches(&l.base)) {
			return f, nil
		}
		_ = f.Close()
	}
	if failed == nil {
		failed = errOtherBuild
	}
	return nil, fmt.Errorf("the file that process %d runs as %s cannot be opened: %w", l.PID, l.Name(), failed)
}

// Offset returns the file offset of a link-time address. It returns false if no segment has the address.
func (l *Loaded) Offset(addr uint64) (uint64, bool) {
	for _, s := range l.Segments() {
		if addr >= s.Vaddr && addr-s.Vaddr < s.Filesz {
			return addr - s.Vaddr + s.Offset, true
		}
	}
	return 0, false
}

// Functions returns the functions with this name, in the order of their addresses. The names come from symbol tables,
// Go's table, and the code of a stripped server. Aliases have equal addresses.
func (m *Image) Functions(name string) []Function {
	var found []Function
	m.eachSymbol(func(s elfimage.Symbol, plain string) {
		if plain == name || strings.HasPrefix(plain, "_") && symbol.Demangle(plain) == name {
			found = append(found, Function{
				Name: name, Addr: s.Addr, Size: s.Size, Indirect: s.Type == elf.STT_GNU_IFUNC,
			})
		}
	})
	if t, _ := m.module.GoTable(nil); t != nil {
		for i := range t.Functions() {
			f, err := t.Function(i)
			if err == nil && (f.Name == name || f.Name == "main."+name) {
				found = append(found, Function{Name: f.Name, Addr: f.Entry, Size: f.End - f.Entry, Go: true})
			}
		}
	}
	if len(found) == 0 {
		m.eachDerived(func(derived string, start, end uint64) {
			if derived == name {
				found = append(found, Function{Name: name, Addr: start, Size: end - start, Derived: true})
			}
		})
	}
	slices.SortStableFunc(found, func(a, b Function) int {
		return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(boolRank(b.Go), boolRank(a.Go)))
	})
	return slices.CompactFunc(found, func(a, b Function) bool { return a.Addr == b.Addr })
}

// Similar returns at most five names of functions that differ from a name only in upper and lower case, or by a suffix
// of the compiler (".cold").
func (m *Image) Similar(name string) []string {
	const most = 5
	var out []string
	consider := func(other string) {
		if len(out) < most && other != name && !slices.Contains(out, other) &&
			(strings.EqualFold(other, name) || strings.HasPrefix(other, name+".")) {
			out = append(out, strings.Clone(other))
		}
	}
	m.eachSymbol(func(_ elfimage.Symbol, plain string) { consider(plain) })
	if t, _ := m.module.GoTable(nil); t != nil {
		for i := range t.Functions() {
			if f, err := t.Function(i); err == nil {
				consider(f.Name)
			}
		}
	}
	m.eachDerived(func(derived string, _, _ uint64) { consider(derived) })
	return out
}

// Mentions reports whether debugging information or Go's table contains a name, of a function or of anything else. If
// Functions does not return the name, the function may be inlined at all its calls.
func (m *Image) Mentions(name string) bool {
	text := []byte("\x00" + name + "\x00")
	qualified := []byte("\x00main." + name + "\x00")
	has := func(img *elfimage.Image) bool {
		for _, section := range []string{".gopclntab", ".data.rel.ro.gopclntab", ".debug_str"} {
			data, _, err := img.Section(section)
			if err == nil && (bytes.Contains(data, text) || bytes.Contains(data, qualified)) {
				return true
			}
		}
		return false
	}
	found := false
	m.eachTable(func(img *elfimage.Image) { found = found || has(img) })
	return found
}

// Contains returns the limits and the name of the function at a link-time address, from the call frame information,
// Go's table or a symbol. It returns false if the function is unknown.
func (m *Image) Contains(addr uint64) (f Function, ok bool) {
	golang, _ := m.module.GoTable(nil)
	if golang != nil {
		if g, err := golang.Find(addr); err == nil {
			return Function{Name: g.Name, Addr: g.Entry, Size: g.End - g.Entry, Go: true}, true
		}
	}
	if table, _ := m.module.Table(nil); table != nil {
		if fde, err := table.Find(addr); err == nil {
			f.Addr, f.Size, ok = fde.Start, fde.End-fde.Start, true
		}
	}
	if name, start, named := m.module.FunctionAt(addr, nil); named {
		f.Name = name
		if !ok {
			f.Addr, ok = start, true
		}
	}
	if f.Name == "" && ok {
		if names := m.derivedNow(); names != nil {
			if fact, known := names.At(f.Addr); known && fact.Name != "" {
				f.Name, f.Derived = fact.Name, true
			}
		}
	}
	return f, ok
}

// IsGo reports whether the image has Go's table of functions.
func (m *Image) IsGo() bool { return m.GoFunctions() > 0 }

// Arch returns the architecture of the image.
func (m *Image) Arch() *arch.Arch { return m.module.Arch }

// eachTable calls the callback each for the image itself, and for its installed and its downloaded debug file.
func (m *Image) eachTable(each func(*elfimage.Image)) {
	each(m.Image)
	if debug, _, ok := m.module.findDebugFile(); ok {
		each(debug.Image)
		_ = debug.Close()
	}
	if m.module.remote.source != nil {
		if f, err := OpenFetched(m.module.remote.source.DebugFile(m.BuildID()), m.Image); err == nil {
			each(f.Image)
			_ = f.Close()
		}
	}
}

// eachSymbol calls the callback each for every symbol of code, with its name without a version.
func (m *Image) eachSymbol(each func(s elfimage.Symbol, name string)) {
	m.eachTable(func(img *elfimage.Image) {
		for _, table := range []string{".symtab", ".dynsym"} {
			symbols, err := img.Symbols(table)
			if err != nil {
				continue
			}
			for s := range symbols {
				code := s.Type == elf.STT_FUNC || s.Type == elf.STT_GNU_IFUNC || s.Type == elf.STT_NOTYPE
				// Here m.Executable is used, and not img.Executable, because a debug file has no code.
				if code && s.Section != elf.SHN_UNDEF && m.Executable(s.Addr) {
					name, _, _ := strings.Cut(s.Name, "@")
					each(s, name)
				}
			}
		}
	})
}

// eachDerived calls the callback each for every name that is derived from the code, with the limits of the function.
func (m *Image) eachDerived(each func(name string, start, end uint64)) {
	names := m.derivedNow()
	table, _ := m.module.Table(nil)
	if names == nil || table == nil {
		return
	}
	for fde := range table.FDEs {
		if fact, ok := names.At(fde.Start); ok && fact.Name != "" {
			each(fact.Name, fde.Start, fde.End)
		}
	}
}

// derivedNow waits for the derived names and returns them; nil if the image is not stripped.
func (m *Image) derivedNow() *selfnames.Names {
	_, _ = m.module.SymbolTable(nil) // sets whether the image is stripped
	if !m.module.stripped {
		return nil
	}
	names, _ := m.module.derived.Get(nil, m.module.Warn, m.module.deriveNames)
	return names
}
