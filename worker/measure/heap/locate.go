package heap

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/measure/allocs"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/host/rootfs"
	"pg_stat_backtrace/worker/report/render"
)

// ErrNoAllocator means that a process has no malloc that can be probed.
var ErrNoAllocator = errors.New("no malloc that can be probed")

// functions are the functions of an allocator. An image need not have all of them.
//
//nolint:gochecknoglobals // read only
var functions = []struct {
	name string
	kind allocs.Kind
}{
	{"malloc", allocs.Malloc},
	{"free", allocs.Free},
	{"calloc", allocs.Calloc},
	{"realloc", allocs.Realloc},
	{"posix_memalign", allocs.PosixMemalign},
	{"aligned_alloc", allocs.Memalign},
	{"memalign", allocs.Memalign},
	{"valloc", allocs.Malloc},
	{"mmap", allocs.Mmap},
	{"mmap64", allocs.Mmap},
	{"mremap", allocs.Mremap},
	{"munmap", allocs.Munmap},
}

// glibcMark is a symbol that only glibc exports.
const glibcMark = "gnu_get_libc_version"

// Allocator is the allocator of a process.
type Allocator struct {
	// Name is the base name of the image that has malloc, for texts.
	Name string
	// BuildID is the build-id of this image; empty: it has none.
	BuildID string

	target allocs.Target
}

// Close closes the allocator's file.
func (a *Allocator) Close() { _ = a.target.File.Close() }

// Mappings reports whether calls of mmap are traced too. They are not traced if the image with malloc has no mmap.
func (a *Allocator) Mappings() bool {
	return slices.ContainsFunc(a.target.Functions, func(f allocs.Function) bool { return f.Kind == allocs.Mmap })
}

// Stepped returns the names of the functions whose probes are slow, because the kernel must single-step the probed instruction.
func (a *Allocator) Stepped() (names []string) {
	for i := range a.target.Functions {
		if f := &a.target.Functions[i]; f.Stepped {
			names = append(names, f.Name)
		}
	}
	return names
}

// image is a mapped ELF file with code.
type image struct {
	path    string // in the mount namespace of the process
	code    process.Mapping
	program bool // the image is the program of the process, not a library
	file    *os.File
	elf     *elfimage.Image
	symbols map[string]uint64
}

// Locate finds the allocator of a process: the functions that its calls of malloc lead to. The caller must close the Allocator. The
// error wraps ErrNoAllocator, fs.ErrPermission or fs.ErrNotExist.
func Locate(pid int) (*Allocator, error) {
	maps, err := process.Maps(pid)
	if err != nil {
		return nil, err
	}
	if len(maps) == 0 {
		return nil, fmt.Errorf("process %d has no memory of its own: it has ended, or is the kernel's: %w", pid,
			fs.ErrNotExist)
	}
	images, err := openImages(pid, maps)
	if err != nil {
		return nil, err
	}
	var chosen *image
	for _, m := range images {
		if m.symbols["malloc"] != 0 && m.symbols["free"] != 0 && (chosen == nil || m.rank() < chosen.rank()) {
			chosen = m
		}
	}
	for _, m := range images {
		if m != chosen {
			_ = m.file.Close()
		}
	}
	if chosen == nil {
		return nil, fmt.Errorf("process %d has %w: it is linked statically and has no symbols, or it is a Go program",
			pid, ErrNoAllocator)
	}
	a, err := chosen.allocator()
	if err != nil {
		_ = chosen.file.Close()
		return nil, err
	}
	return a, nil
}

// rank returns the order in which the dynamic linker searches images for malloc; the least comes first. The program and preloaded
// libraries come before the C library. The dynamic linker's own malloc comes last: it is only used until the C library is loaded.
func (m *image) rank() int {
	name := path.Base(m.path)
	switch {
	case m.program:
		return 0
	case strings.HasPrefix(name, "ld-"):
		return 3
	case strings.HasPrefix(name, "libc.") || strings.HasPrefix(name, "libc-"):
		return 2
	}
	return 1
}

// openImages opens the files with code that a process has mapped, and reads the symbols of allocators. It omits files that it
// cannot read. If it can read none, it returns fs.ErrPermission if access was denied.
func openImages(pid int, maps []process.Mapping) (images []*image, err error) {
	exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	exe = strings.TrimSuffix(exe, " (deleted)")
	var refused error
	for i := range maps {
		m := &maps[i]
		if m.Perms&process.Exec == 0 || m.Inode == 0 ||
			slices.ContainsFunc(images, func(other *image) bool { return other.code.Inode == m.Inode }) {
			continue
		}
		one := &image{path: m.Path, code: *m, program: m.Path == exe}
		if err := one.open(pid); err != nil {
			if errors.Is(err, fs.ErrPermission) {
				refused = err
			}
			continue // the file cannot be read, or is not an ELF image
		}
		images = append(images, one)
	}
	if len(images) == 0 && refused != nil {
		return nil, refused
	}
	return images, nil
}

// open opens the file of a mapping. It tries several paths, the path with the least privileges first.
func (m *image) open(pid int) (err error) {
	proc := fmt.Sprintf("/proc/%d", pid)
	candidates := []string{proc + "/root" + m.path}
	if m.program {
		candidates = []string{proc + "/exe"}
	}
	candidates = append(candidates, fmt.Sprintf("%s/map_files/%x-%x", proc, m.code.Start, m.code.End))
	for _, name := range candidates {
		if m.file, err = rootfs.Open(name); err != nil {
			continue
		}
		var st unix.Stat_t
		if err = unix.Fstat(int(m.file.Fd()), &st); err == nil && st.Ino != m.code.Inode {
			err = fmt.Errorf("%s is another file by now: %w", m.path, fs.ErrNotExist)
		}
		if err == nil {
			m.elf, err = elfimage.Open(m.file, m.path)
		}
		if err == nil {
			err = m.readSymbols()
		}
		if err == nil {
			return nil
		}
		_ = m.file.Close()
	}
	return err
}

// readSymbols finds the allocator's functions: among the exported symbols, or among all symbols of a program that is linked
// statically.
func (m *image) readSymbols() error {
	names := []string{glibcMark}
	for _, f := range functions {
		names = append(names, f.name)
	}
	var err error
	if m.symbols, err = m.elf.Defined(names...); err != nil && !errors.Is(err, elfimage.ErrNoSection) {
		return err
	}
	if _, interpreted := m.elf.Program(elf.PT_INTERP); interpreted || !m.program {
		return m.refuseIndirect(".dynsym")
	}
	all, err := m.elf.Symbols(".symtab")
	if err != nil {
		return nil //nolint:nilerr // in a program without symbols, no allocator can be found
	}
	m.symbols = make(map[string]uint64)
	for s := range all {
		if s.Type == elf.STT_FUNC && slices.Contains(names, s.Name) {
			m.symbols[strings.Clone(s.Name)] = s.Addr
		}
	}
	return m.refuseIndirect(".symtab")
}

// refuseIndirect removes functions that the dynamic linker chooses at run time (STT_GNU_IFUNC): their symbol has the address of the
// function that makes the choice.
func (m *image) refuseIndirect(table string) error {
	if m.symbols["malloc"] == 0 {
		return nil
	}
	all, err := m.elf.Symbols(table)
	if err != nil {
		return nil //nolint:nilerr // without section headers the symbols were found by the hash table, and their types are not known
	}
	for s := range all {
		if s.Type == elf.STT_GNU_IFUNC && m.symbols[s.Name] == s.Addr {
			delete(m.symbols, s.Name)
		}
	}
	return nil
}

// allocator returns the Allocator of an image, with the instructions to probe.
func (m *image) allocator() (*Allocator, error) {
	name := render.VisibleLine(path.Base(m.path)) // the user of the process may have chosen it
	a := &Allocator{Name: name, BuildID: m.elf.BuildID(), target: allocs.Target{File: m.file}}
	_, isGlibc := m.symbols[glibcMark]
	a.target.HasHeaders = isGlibc
	if !m.program {
		a.target.Library = allocs.Range{Start: m.code.Start, End: m.code.End}
	}
	seen := make(map[uint64]bool)
	for _, f := range functions {
		addr := m.symbols[f.name]
		if addr == 0 || seen[addr] {
			continue
		}
		seen[addr] = true
		at, stepped, err := probePlace(m.elf, addr)
		if err != nil {
			return nil, fmt.Errorf("%s in %s: %w", f.name, m.path, err)
		}
		offset, ok := fileOffset(m.elf, at)
		if !ok {
			return nil, fmt.Errorf("%w: %s in %s is in no segment with code", ErrNoAllocator, f.name, m.path)
		}
		a.target.Functions = append(a.target.Functions,
			allocs.Function{Name: f.name, Kind: f.kind, Offset: offset, Stepped: stepped})
	}
	return a, nil
}

// fileOffset returns the offset in the file of a link-time address; false: no segment with code contains the address.
func fileOffset(m *elfimage.Image, addr uint64) (uint64, bool) {
	for _, s := range m.Segments() {
		if s.Flags&elf.PF_X != 0 && addr >= s.Vaddr && addr-s.Vaddr < s.Filesz {
			return addr - s.Vaddr + s.Offset, true
		}
	}
	return 0, false
}
