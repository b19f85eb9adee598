// Package elfimage reads ELF images: the executable, shared library, vDSO or debug file that contains a code address.
//
// It provides data for unwinding and symbolization: segments and their addresses, the build-id, call frame information,
// symbols, and any section by name. Reading is lazy. An Image keeps only headers and, after the first use, the call
// frame sections and the names of imported functions. Files may be damaged or hostile: the package checks sizes against
// the file before it allocates memory. A broken file gives an error, never a panic. The format is the ELF format of the
// System V ABI (gABI, chapters 4 and 5), 32 and 64 bit, either byte order.
//
// FindDebugFile finds the separate debug file of an image, in the order of GDB ("Separate Debug Files" in its manual):
// by build-id, by .gnu_debuglink, and in .gnu_debugdata. It uses a file only if the build-id or the checksum proves
// that the file belongs to the image. The caller gives the folders.
//
// The package must not know of processes, unwinding or the meaning of a symbol's name.
package elfimage

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"unsafe"
)

// Errors that callers branch on. Each is wrapped with the image's name.
var (
	// ErrNotELF means that the bytes do not begin with an ELF header that this package reads.
	ErrNotELF = errors.New("not an ELF image")
	// ErrMalformed means that a header, table or compressed section is inconsistent, or contradicts the file's size.
	ErrMalformed = errors.New("malformed ELF image")
	// ErrNoSection means that the image has no section with this name, or only a section without content (SHT_NOBITS).
	ErrNoSection = errors.New("no such section")
	// ErrTooLarge means that a section exceeds the memory limit of this package.
	ErrTooLarge = errors.New("section too large")
)

// Image is one ELF image. It is safe for concurrent use if its reader is.
type Image struct {
	name     string
	src      source
	layout   layout
	header   header
	segments []Segment
	sections []section
	names    uint64 // bytes of the section name table, which the names of sections keep
	memory   bool
	lo, hi   uint64
	buildID  string

	cfiOnce sync.Once
	cfi     CFI
	cfiErr  error

	imports imports
}

// Segment is a program header of type PT_LOAD (gABI, chapter 5): which part of the file is mapped at which address.
type Segment struct {
	// Vaddr is the link-time address, Memsz the size in memory in bytes.
	Vaddr, Memsz uint64
	// Offset is the position in the file, Filesz the size in the file in bytes.
	Offset, Filesz uint64
	// Flags are PF_R, PF_W and PF_X.
	Flags elf.ProgFlag
}

// Open reads the headers of an ELF file. The Image keeps the reader, which must stay usable as long as the Image is
// used. The caller closes the reader. The name appears only in errors. If the reader has a Size or a Stat method
// (bytes.Reader, io.SectionReader, os.File), Open refuses headers that exceed the file's size. For a file without
// section headers, Open derives sections like FromMemory.
func Open(r io.ReaderAt, name string) (*Image, error) {
	m := &Image{name: name, src: newSource(r)}
	if err := m.readHeaders(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	m.setRange()
	if len(m.sections) == 0 {
		m.synthesizeSections(0)
	}
	m.buildID = m.findBuildID()
	return m, nil
}

// Name returns the name that was given to Open or FromMemory.
func (m *Image) Name() string { return m.name }

// BuildID returns the GNU build-id in lower-case hexadecimal, or "" if the image has none.
func (m *Image) BuildID() string { return m.buildID }

// Kept returns the number of bytes that the headers take in memory as long as the image is used.
func (m *Image) Kept() int64 {
	return int64(len(m.segments))*int64(unsafe.Sizeof(Segment{})) + int64(len(m.sections))*int64(unsafe.Sizeof(section{})) + int64(m.names)
}

// Machine returns the architecture that the image is for.
func (m *Image) Machine() elf.Machine { return m.header.machine }

// Type returns whether the image is an executable, a shared object (also a PIE), a relocatable or a core file.
func (m *Image) Type() elf.Type { return m.header.typ }

// Order returns the byte order of the image.
func (m *Image) Order() binary.ByteOrder { return m.layout.order }

// AddrSize returns the size of an address in bytes: 4 or 8.
func (m *Image) AddrSize() int { return m.layout.addrSize() }

// Segments returns the loadable segments in the file's order. The slice must not be changed.
func (m *Image) Segments() []Segment { return m.segments }

// Content returns a reader for the bytes of a segment, in the file or in memory. It is nil for a segment without
// content.
func (m *Image) Content(s Segment) *io.SectionReader {
	off, ok := m.position(s.Vaddr)
	n := m.room(s.Vaddr)
	if !ok || n == 0 || m.src.check(off, n) != nil {
		return nil
	}
	return io.NewSectionReader(m.src.r, int64(off), int64(n))
}

// AddrRange returns the link-time addresses [lo, hi) from the lowest loadable segment to the end of the highest. Both
// are 0 if there is no loadable segment.
func (m *Image) AddrRange() (lo, hi uint64) { return m.lo, m.hi }

// Executable reports whether addr, a link-time address, lies in an executable segment. An image without loadable
// segments has no such address.
func (m *Image) Executable(addr uint64) bool {
	for _, s := range m.segments {
		if s.Flags&elf.PF_X != 0 && addr >= s.Vaddr && addr-s.Vaddr < s.Memsz {
			return true
		}
	}
	return false
}

// setRange computes the address range from the segments.
func (m *Image) setRange() {
	lo, hi := uint64(math.MaxUint64), uint64(0)
	for _, s := range m.segments {
		end := s.Vaddr + s.Memsz
		if s.Memsz == 0 || end < s.Vaddr {
			continue
		}
		lo, hi = min(lo, s.Vaddr), max(hi, end)
	}
	if lo < hi {
		m.lo, m.hi = lo, hi
	}
}

// File returns a reader for all bytes of the image's file. It is nil for an image in memory, or if the size is unknown.
func (m *Image) File() *io.SectionReader {
	if m.memory || m.src.size == 0 {
		return nil
	}
	return io.NewSectionReader(m.src.r, 0, m.src.size)
}

// Size returns the size of the image's file in bytes, or 0 if it is unknown.
func (m *Image) Size() int64 { return m.src.size }
