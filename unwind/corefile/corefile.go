// Package corefile reads ELF core files: what the kernel, gdb's gcore or qemu's user mode leave of a process, as memory
// and threads that package unwind walks like a live snapshot. Every architecture that package arch describes is read on
// any host, either byte order (gABI, chapter 5; the kernel's fs/binfmt_elf.c; core(5)).
//
// A core file holds what is not in files: pages of code are most often left out. Which images the process had mapped
// is told by NT_FILE, or, where there is none, by the auxiliary vector and the dynamic linker's list in memory. The
// package says which they were and checks a file that is offered for one of them (Mapped, Check); it opens none.
//
// Core files are foreign input: a damaged or truncated one gives what it still holds and an error, never a panic, and
// takes no more memory than the file's size allows. The package must not know of live processes and of what a frame is
// called.
package corefile

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"slices"

	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/elfimage"
)

// Errors that callers branch on; each comes wrapped with the file's name.
var (
	// ErrNotCore means that the file is an ELF image, but no core.
	ErrNotCore = errors.New("not a core file")
	// ErrNoThreads means that no thread's registers could be read.
	ErrNoThreads = errors.New("core file without threads")
	// ErrMismatch means that a file is not the one that the process had mapped.
	ErrMismatch = errors.New("not the file of this core")
)

// Core is a core file. It is safe for concurrent use as long as its reader is.
type Core struct {
	// Arch is the process's architecture; its code mask is the process's own where the core tells it (NT_ARM_PAC_MASK).
	Arch *arch.Arch
	// Threads are in the file's order: the kernel puts the one that got the signal first.
	Threads []Thread
	// Process is what NT_PRPSINFO says; the zero value without one.
	Process Process
	// Files are the mappings that NT_FILE lists, by address; none without it.
	Files []File
	// Segments are the memory ranges that the process had, by address, whether the core holds their content or not.
	Segments []elfimage.Segment
	// Damage says why the file could not be read whole: it is truncated, or a note is malformed. Nil if it was.
	Damage error

	name   string
	img    *elfimage.Image
	reader io.ReaderAt
	size   uint64 // of the file; 0: not known
	auxv   map[uint64]uint64
}

// Thread is a thread of the process.
type Thread struct {
	// TID is the thread's id, Signal the one that it was handling or ended by, 0 if none.
	TID, Signal int
	// Registers are the general ones, and those of the floating point set that unwinding may need.
	Registers arch.Registers

	pacMask uint64
}

// Process is what the core says of the process.
type Process struct {
	PID int
	// State is the letter of ps(1), 0 if unknown.
	State byte
	// Name is the command's name (at most 15 bytes), Args the beginning of its command line.
	Name, Args string
}

// File is a mapping of a file.
type File struct {
	// Start and End are addresses.
	Start, End uint64
	// Offset is the position in the file, in bytes.
	Offset uint64
	Path   string
}

// maxThreads bounds the threads of a core.
const maxThreads = 1 << 17

// Open reads the headers and notes of a core file. The reader is kept, see elfimage.Open. Errors are ErrNotCore,
// ErrNoThreads, arch.ErrUnsupported and those of package elfimage; where at least one thread can be read, what is wrong
// with the rest is in Damage.
func Open(r io.ReaderAt, name string) (*Core, error) {
	img, err := elfimage.Open(r, name)
	if err != nil {
		return nil, err
	}
	if img.Type() != elf.ET_CORE {
		return nil, fmt.Errorf("%s: %w", name, ErrNotCore)
	}
	a, err := arch.ByMachine(img.Machine(), img.Order())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if img.AddrSize() != a.AddrSize {
		return nil, fmt.Errorf("%s: %w: %d-bit %s", name, arch.ErrUnsupported, 8*img.AddrSize(), a.Name)
	}
	c := &Core{Arch: a, name: name, img: img, reader: r, size: sizeOf(r)}
	c.setSegments()
	if err := c.readNotes(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if c.Damage == nil {
		c.Damage = c.truncation()
	}
	return c, nil
}

// Name returns the name that the core was opened under.
func (c *Core) Name() string { return c.name }

// Aux returns an entry of the auxiliary vector (getauxval(3)).
func (c *Core) Aux(tag uint64) (uint64, bool) {
	v, ok := c.auxv[tag]
	return v, ok
}

// setSegments sorts the memory ranges and drops those that wrap around or begin inside another.
func (c *Core) setSegments() {
	all := slices.Clone(c.img.Segments())
	slices.SortStableFunc(all, func(a, b elfimage.Segment) int {
		switch {
		case a.Vaddr < b.Vaddr:
			return -1
		case a.Vaddr > b.Vaddr:
			return 1
		}
		return 0
	})
	end := uint64(0)
	for _, s := range all {
		if s.Memsz == 0 || s.Vaddr+s.Memsz < s.Vaddr || s.Vaddr < end {
			continue
		}
		s.Filesz = min(s.Filesz, s.Memsz)
		end = s.Vaddr + s.Memsz
		c.Segments = append(c.Segments, s)
	}
}

// truncation says how much of the memory the file lacks at its end.
func (c *Core) truncation() error {
	if c.size == 0 {
		return nil
	}
	missing := uint64(0)
	for _, s := range c.Segments {
		if s.Offset > c.size {
			missing += s.Filesz
		} else if left := c.size - s.Offset; s.Filesz > left {
			missing += s.Filesz - left
		}
	}
	if missing == 0 {
		return nil
	}
	return fmt.Errorf("%s: truncated: %d bytes of memory are missing", c.name, missing)
}

// sizeOf returns the size of what r reads; 0 if it does not tell.
func sizeOf(r io.ReaderAt) uint64 {
	switch v := r.(type) {
	case interface{ Size() int64 }:
		return uint64(max(v.Size(), 0))
	case fileStat:
		if info, err := v.Stat(); err == nil && info.Mode().IsRegular() {
			return uint64(info.Size())
		}
	}
	return 0
}
