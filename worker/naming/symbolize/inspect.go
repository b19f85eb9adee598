package symbolize

import (
	"debug/elf"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/host/rootfs"
)

// Image is an ELF image with the tables that a capture uses: symbols, lines and call frame information.
type Image struct {
	*elfimage.Image

	// Path is the image's path as its process sees it. It is "[vdso]" for the vDSO.
	Path string
	// Deleted means that the file was removed or replaced after it was mapped.
	Deleted bool
	// InMemory means that the file cannot be read, and the image was read from the process's memory.
	InMemory bool

	module *Module
}

// Images returns the executable images of a process, each once, in the order of their addresses. It leaves out images
// that can neither be opened nor read from memory. debugDirs has the meaning of Config.DebugDirs. It returns an error
// if the process's maps cannot be read.
func Images(pid int, debugDirs []string) ([]Image, error) {
	host := arch.Host()
	if host == nil {
		return nil, ErrArchitecture
	}
	maps, err := process.Maps(pid)
	if err != nil {
		return nil, err
	}
	imgs := NewCache(host, &Sources{Folders: debugDirs, AwaitNames: true})
	all := make([]Image, 0, 32)
	seen := make(map[*Module]bool)
	late := &Deadline{After: imagesTime}
	defer late.Stop()
	for i := range maps {
		if maps[i].Perms&process.Exec == 0 {
			continue
		}
		at, f := maps[i], imgs.mappedBefore(late, pid, maps, i)
		m := f.Module
		if m == nil || seen[m] {
			continue
		}
		seen[m] = true
		if f.Moved {
			at = f.Origin
		}
		all = append(all, Image{
			Image: m.Image, Path: insideRoot(pid, at.Path), Deleted: at.Deleted, InMemory: m.Path == "" && at.Inode != 0,
			module: m,
		})
	}
	return all, nil
}

// OpenImage opens an ELF file. debugDirs has the meaning of Config.DebugDirs. The caller must call the returned
// function to close the file.
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
		at = target // the target of /proc/PID/exe
	}
	if abs, err := filepath.Abs(at); err == nil {
		at = abs
	}
	user, err := rootfs.OfFile(file, f)
	if err != nil {
		_ = f.Close()
		return Image{}, nil, err
	}
	m := &Module{
		Image: img, Name: img.Name(), Arch: a, Path: at, User: user,
		Sources: &Sources{Folders: debugDirs, AwaitNames: true},
	}
	return Image{Image: img, Path: at, module: m}, f.Close, nil
}

// Root returns the prefix with which this program reaches a path of the process.
func (m *Image) Root() string { return m.module.Root }

// DebugOptions lists the places to search for separate debug files: first below the root directory of the process,
// then below this process's root.
func (m *Image) DebugOptions() []elfimage.SearchOptions { return m.module.debugOptions() }

// GoFunctions returns the number of functions in the table that Go's linker adds to every program, or 0 if there is
// no such table. The table has their names and lines.
func (m *Image) GoFunctions() int {
	if t, _ := m.module.GoTable(nil); t != nil {
		return t.Functions()
	}
	return 0
}

// Derived returns how many functions without a symbol get a name from the code of a stripped server (named), and how
// many other functions and parts of functions get a note (noted). Both are 0 if the image has a symbol table or a debug
// file.
func (m *Image) Derived(debug ...*elfimage.Image) (named, noted int) {
	if len(debug) > 0 || m.SymbolCount(".symtab") > 0 {
		return 0, 0
	}
	m.module.stripped = true
	names, _ := m.module.derivedNames(nil)
	return names.Derived()
}

// Coverage returns the number of functions in the call frame information (total), and how many of these have a name.
// Names come from the image's symbols, its debug files, and Go's table. For a Go program without call frame
// information, Coverage counts the functions in Go's table.
func (m *Image) Coverage(debug ...*elfimage.Image) (named, total int, err error) {
	table, _ := m.module.Table(nil)
	golang, _ := m.module.GoTable(nil)
	if table == nil && golang != nil {
		return golang.Functions(), golang.Functions(), nil
	}
	if table == nil {
		return 0, 0, fmt.Errorf("%s: no call frame information", m.Name())
	}
	// If a table is damaged, NewTable returns the readable symbols and an error.
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
