// Package corefile reads ELF core files that were written by the kernel, gdb's gcore or qemu's user mode. It provides
// memory and threads that package unwind walks like a live snapshot. It reads core files of every architecture in
// package arch on any host, in either byte order (gABI, chapter 5; the kernel's fs/binfmt_elf.c; core(5)).
//
// A core file usually omits memory that files contain, such as code. The note NT_FILE lists the files that the process
// had mapped. Without NT_FILE, the package uses the auxiliary vector and the dynamic linker's list in memory. The
// package lists the images (Mapped, Linked) and verifies files for them (Check). It opens no files.
//
// Core files may be damaged or hostile. The package returns the readable part of a damaged or truncated file and an
// error, never a panic. It takes no more memory than the file's size allows. It must not know of live processes or of
// the names of frames.
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

// Errors that callers branch on. Each is wrapped with the file's name.
var (
	// ErrNotCore means that the file is an ELF image, but not a core.
	ErrNotCore = errors.New("not a core file")
	// ErrNoThreads means that no thread's registers could be read.
	ErrNoThreads = errors.New("core file without threads")
	// ErrMismatch means that a file is not the file that the process had mapped.
	ErrMismatch = errors.New("not the file of this core")
)

// Core is a core file. It is safe for concurrent use if its reader is.
type Core struct {
	// Arch is the process's architecture. If the core contains the process's code mask (NT_ARM_PAC_MASK), Arch has this
	// mask.
	Arch *arch.Arch
	// Threads are in the order of the file. The kernel writes the thread that received the signal first.
	Threads []Thread
	// Process is the content of NT_PRPSINFO; the zero value if the core has none.
	Process Process
	// Files are the mappings in NT_FILE, ordered by address; empty if the core has none.
	Files []File
	// Segments are the memory ranges of the process, ordered by address. The core may lack the content of a range.
	Segments []elfimage.Segment
	// Damage is the reason why the file could not be read completely: it is truncated, or a note is malformed. It is
	// nil for a complete file.
	Damage error

	name   string
	img    *elfimage.Image
	reader io.ReaderAt
	size   uint64 // of the file in bytes; 0: unknown
	auxv   map[uint64]uint64
}

// Thread is a thread of the process.
type Thread struct {
	// TID is the thread's id. Signal is the signal that the thread was handling or that ended the process, 0 if none.
	TID, Signal int
	// Registers are the general registers, and the floating point registers that unwinding may need.
	Registers arch.Registers

	pacMask uint64
}

// Process contains the properties of the process that are in the core.
type Process struct {
	PID int
	// State is the letter of ps(1), 0 if unknown.
	State byte
	// Name is the command's name (at most 15 bytes). Args is the beginning of its command line.
	Name, Args string
}

// File is a mapping of a file.
type File struct {
	// Start and End are the limits of the mapping's addresses, End exclusive.
	Start, End uint64
	// Offset is the position in the file of the byte at Start.
	Offset uint64
	Path   string
}

// maxThreads bounds the threads of a core.
const maxThreads = 1 << 17

// Open reads the headers and notes of a core file. The Core keeps the reader, see elfimage.Open. The errors are
// ErrNotCore, ErrNoThreads, arch.ErrUnsupported and the errors of package elfimage. If Open can read at least one
// thread, it returns other errors in the field Damage.
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

// Name returns the name that was given to Open.
func (c *Core) Name() string { return c.name }

// Aux returns an entry of the auxiliary vector (getauxval(3)). The result is false if there is no such entry.
func (c *Core) Aux(tag uint64) (uint64, bool) {
	v, ok := c.auxv[tag]
	return v, ok
}

// setSegments sorts the memory ranges. It ignores ranges that wrap around or begin inside another range.
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

// truncation returns an error if the file ends before the content of its segments.
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

// sizeOf returns the size of the file that r reads, or 0 if the type of r does not give it.
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
