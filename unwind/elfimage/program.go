package elfimage

import (
	"debug/elf"
	"fmt"
)

// Program returns the first program header of a type (gABI, chapter 5). The result is false if there is none.
func (m *Image) Program(typ elf.ProgType) (Segment, bool) { return m.findProgram(typ) }

// Entry returns e_entry: the link-time address at which the program starts; 0 if the image has no entry.
func (m *Image) Entry() uint64 { return m.header.entry }

// Start returns the entry of a program. It returns 0 if the image may be a library, because some linkers set e_entry to
// an arbitrary address in libraries.
func (m *Image) Start() uint64 {
	if m.header.interpreted || m.header.typ == elf.ET_EXEC {
		return m.header.entry
	}
	return 0
}

// IsProgram reports whether the image was linked as a program, not as a library or a dynamic linker. Linkers give a
// program an entry DT_DEBUG for debuggers, even if it can be loaded at any address. A library has no such entry, even
// if it has an interpreter like libc.so.6.
func (m *Image) IsProgram() bool {
	if m.header.typ == elf.ET_EXEC {
		return true
	}
	s, ok := m.findProgram(elf.PT_DYNAMIC)
	if !ok {
		return false
	}
	_, ok = m.dynamicTags(s)[elf.DT_DEBUG]
	return ok
}

// Header returns the link-time address of the ELF header. ok is false if no loadable segment contains the header.
func (m *Image) Header() (addr uint64, ok bool) {
	for _, s := range m.segments {
		if s.Offset == 0 && s.Filesz > 0 {
			return s.Vaddr, true
		}
	}
	return 0, false
}

// DynamicLinker reports whether the image is a dynamic linker. Such an image defines _r_debug, which debuggers use to
// find the loaded libraries (link.h), and has no interpreter itself. A process with this interpreter begins at the
// interpreter's Entry. If the image cannot be read, the result is false.
func (m *Image) DynamicLinker() bool {
	if m.header.interpreted || m.header.typ != elf.ET_DYN || m.header.entry == 0 {
		return false
	}
	const rendezvous = "_r_debug"
	defined, err := m.Defined(rendezvous)
	return err == nil && defined[rendezvous] != 0
}

// ProgramTable returns the link-time address of the program headers, and their number. The kernel passes both to a
// process as AT_PHDR and AT_PHNUM. ok is false if no loadable segment contains the program headers.
func (m *Image) ProgramTable() (addr, count uint64, ok bool) {
	h := &m.header
	for _, s := range m.segments {
		if h.phnum > 0 && h.phoff >= s.Offset && h.phoff-s.Offset < s.Filesz {
			return s.Vaddr + h.phoff - s.Offset, h.phnum, true
		}
	}
	return 0, 0, false
}

// Bytes reads n bytes of the file at a link-time address. They must lie in one loadable segment, else the error is
// ErrMalformed.
func (m *Image) Bytes(addr, n uint64) ([]byte, error) { return m.at(addr, n) }

const (
	// maxNoteBytes bounds the size of an image's notes. In a core file a thread's registers take some kilobytes.
	maxNoteBytes = 64 << 20
	// maxNoteCount bounds the number of notes.
	maxNoteCount = 1 << 20
)

// Note is an entry of a note segment (gABI, chapter 5, "Note Section"). Name has no terminating NUL.
type Note struct {
	Name string
	Type uint32
	Desc []byte
}

// Notes returns the entries of the image's note segments (PT_NOTE) in their order. If the file is truncated or an entry
// is malformed, it returns the previous entries together with the error.
func (m *Image) Notes() ([]Note, error) {
	table, err := m.programHeaders()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	var notes []Note
	total := uint64(0)
	for i := range m.header.phnum {
		typ, s := m.layout.parseSegment(table[i*m.header.phentsize:])
		if typ != elf.PT_NOTE {
			continue
		}
		if total += s.Filesz; s.Filesz > maxNoteBytes || total > maxNoteBytes {
			return notes, fmt.Errorf("%s: %w: more than %d bytes of notes", m.name, ErrTooLarge, maxNoteBytes)
		}
		p, err := m.noteBytes(s)
		var malformed error
		notes, malformed = m.layout.appendNotes(notes, p)
		if err == nil {
			err = malformed
		}
		if err != nil {
			return notes, fmt.Errorf("%s: notes: %w", m.name, err)
		}
	}
	return notes, nil
}

// noteBytes reads a note segment. If the file is truncated, it returns the available bytes together with an error.
func (m *Image) noteBytes(s Segment) ([]byte, error) {
	p, err := m.src.bytes(s.Offset, s.Filesz)
	if err == nil || m.src.size <= 0 || s.Offset >= uint64(m.src.size) {
		return p, err
	}
	short, err2 := m.src.bytes(s.Offset, min(s.Filesz, uint64(m.src.size)-s.Offset))
	if err2 != nil {
		return nil, err2
	}
	return short, err
}

// appendNotes appends the entries in the bytes of a note segment. Names and descriptors are padded to four bytes, also
// in 64-bit files.
func (l layout) appendNotes(notes []Note, p []byte) ([]Note, error) {
	for len(p) >= 12 {
		namesz, descsz := uint64(l.order.Uint32(p)), uint64(l.order.Uint32(p[4:]))
		typ := l.order.Uint32(p[8:])
		p = p[12:]
		desc := (namesz + 3) &^ 3
		if desc+descsz > uint64(len(p)) || len(notes) == maxNoteCount {
			return notes, fmt.Errorf("%w: note of %d and %d bytes in %d", ErrMalformed, namesz, descsz, len(p))
		}
		name, _ := stringTable(p[:namesz]).at(0)
		notes = append(notes, Note{Name: name, Type: typ, Desc: p[desc : desc+descsz]})
		p = p[min(desc+(descsz+3)&^3, uint64(len(p))):]
	}
	return notes, nil
}
