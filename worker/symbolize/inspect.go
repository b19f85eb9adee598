package symbolize

import (
	"debug/elf"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/debugfile"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/symbol"
)

// Image is an ELF image as captures read it.
type Image struct {
	*elfimage.Image

	// Path is where it is, as its process sees it ("[vdso]" is at no path).
	Path string
	// Deleted means that the file at Path is not this one any more: it was
	// removed or replaced since.
	Deleted bool
	// InMemory means that the file cannot be read, only what the process has
	// mapped of it.
	InMemory bool

	module *Module
}

// Images returns the images that a process has mapped to run, each once, in
// the order of their addresses. What can neither be opened nor read from the
// process's memory is left out. debugDirs are those of Config.DebugDirs. The
// error is that of reading its maps.
func Images(pid int, debugDirs []string) ([]Image, error) {
	host := arch.Host()
	if host == nil {
		return nil, ErrArchitecture
	}
	maps, err := procfs.Maps(pid)
	if err != nil {
		return nil, err
	}
	imgs := NewCache(host, &Sources{Folders: debugDirs, AwaitNames: true})
	all := make([]Image, 0, 32)
	seen := make(map[*Module]bool)
	for i := range maps {
		if maps[i].Perms&procfs.Exec == 0 {
			continue
		}
		at, f := maps[i], imgs.Mapped(pid, maps, i)
		m := f.Module
		if m == nil || seen[m] {
			continue
		}
		seen[m] = true
		if f.Name != ModuleName(at.Path) {
			at = procfs.Mapping{Path: m.Path} // see images.moved
		}
		all = append(all, Image{
			Image: m.Image, Path: at.Path, Deleted: at.Deleted, InMemory: m.Path == "" && at.Inode != 0,
			module: m,
		})
	}
	return all, nil
}

// OpenImage opens an ELF file. debugDirs are those of Config.DebugDirs. The
// caller closes it with the function that is returned.
func OpenImage(file string, debugDirs []string) (Image, func() error, error) {
	f, _, err := Candidate(file).File()
	if err != nil {
		return Image{}, nil, err
	}
	img, err := elfimage.Open(f, path.Base(file))
	var a *arch.Arch
	if err == nil && img.Type() == elf.ET_CORE {
		err = fmt.Errorf("%s: %w", file, ErrCoreFile)
	}
	if err == nil {
		a, err = arch.ByMachine(img.Machine(), img.Order())
	}
	if err != nil {
		_ = f.Close()
		return Image{}, nil, err
	}
	at := file
	if target, err := os.Readlink(file); err == nil && filepath.IsAbs(target) {
		at = target // of /proc/PID/exe
	}
	if abs, err := filepath.Abs(at); err == nil {
		at = abs
	}
	m := &Module{Image: img, Name: img.Name(), Arch: a, Path: at, Sources: &Sources{Folders: debugDirs, AwaitNames: true}}
	return Image{Image: img, Path: at, module: m}, f.Close, nil
}

// Root is what to put before a path of the process to reach it from here.
func (m *Image) Root() string { return m.module.Root }

// DebugOptions say where separate debug files are looked for, one place after
// the other: below the root directory of the process, and below this one's.
func (m *Image) DebugOptions() []debugfile.Options { return m.module.debugOptions() }

// GoFunctions is the number of functions in the table that Go's linker puts into every program, 0 if there is none. It
// has their names and lines.
func (m *Image) GoFunctions() int {
	if t, _ := m.module.GoTable(nil); t != nil {
		return t.Functions()
	}
	return 0
}

// Derived counts the functions without a symbol that get a name from the code of a stripped server, and the other
// functions and parts that get a note. Both are 0 with a symbol table or a debug file.
func (m *Image) Derived(debug ...*elfimage.Image) (named, noted int) {
	if len(debug) > 0 || m.SymbolCount(".symtab") > 0 {
		return 0, 0
	}
	m.module.stripped = true
	names, _ := m.module.derivedNames(nil)
	return names.Derived()
}

// Coverage counts the functions that the call frame information lists, and
// those of them that the symbols of the image itself and of its debug files
// name, or Go's table. A Go program without call frame information has the
// functions of that table.
func (m *Image) Coverage(debug ...*elfimage.Image) (named, total int, err error) {
	table, _ := m.module.Table(nil)
	golang, _ := m.module.GoTable(nil)
	if table == nil && golang != nil {
		return golang.Functions(), golang.Functions(), nil
	}
	if table == nil {
		return 0, 0, fmt.Errorf("%s: no call frame information", m.Name())
	}
	// What could be read of a damaged table comes beside the error.
	symbols, _ := symbol.NewTable(append([]*elfimage.Image{m.Image}, debug...)...)
	named, total = symbols.Coverage(func(yield func(start, end uint64) bool) {
		for fde := range table.FDEs {
			if !yield(fde.Start, fde.End) {
				return
			}
		}
	}, func(addr uint64) bool {
		if golang == nil {
			return false
		}
		_, err := golang.Find(addr)
		return err == nil
	})
	return named, total, nil
}
