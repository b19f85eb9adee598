package elfimage

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
)

const (
	noteGNUBuildID = 3
	// noteHeader is the size of a note's header in bytes.
	noteHeader = 12
	// maxNotes bounds the bytes of all notes that are searched for a build-id. A Java VM has some 56 kB of notes.
	maxNotes = 1 << 20
	// maxBuildID bounds the length of a build-id in bytes.
	maxBuildID = 64
)

// findBuildID searches the note sections, then the note segments: a separate debug file has only the sections, an image
// in memory only the segments. It reads at most maxNotes bytes and ignores notes that would exceed this. Notes that
// several headers describe are read, and counted, for each of them.
func (m *Image) findBuildID() string {
	left := uint64(maxNotes)
	for i := range m.sections {
		if s := &m.sections[i]; s.typ == elf.SHT_NOTE {
			if id := m.buildIDAt(s.offset, s.size, &left); id != "" {
				return id
			}
		}
	}
	table, err := m.programHeaders()
	if err != nil {
		return ""
	}
	for i := range m.header.phnum {
		typ, s := m.layout.parseSegment(table[i*m.header.phentsize:])
		if typ != elf.PT_NOTE {
			continue
		}
		off := s.Offset
		if m.memory {
			off, _ = m.position(s.Vaddr)
		}
		if id := m.buildIDAt(off, s.Filesz, &left); id != "" {
			return id
		}
	}
	return ""
}

// buildIDAt returns the build-id in the notes at a position. It subtracts the notes' size from *left. The result is ""
// if the size exceeds *left, or if the notes cannot be read or have no build-id.
func (m *Image) buildIDAt(off, size uint64, left *uint64) string {
	if size <= noteHeader || size > *left {
		return ""
	}
	*left -= size
	p, err := m.src.bytes(off, size)
	if err != nil {
		return ""
	}
	return hex.EncodeToString(m.layout.buildID(p))
}

// buildID returns the descriptor of the note of type NT_GNU_BUILD_ID, or nil. Names and descriptors are padded to
// four bytes, also in 64-bit files.
func (l layout) buildID(p []byte) []byte {
	for len(p) >= noteHeader {
		namesz, descsz := uint64(l.order.Uint32(p)), uint64(l.order.Uint32(p[4:]))
		typ := l.order.Uint32(p[8:])
		p = p[noteHeader:]
		desc := (namesz + 3) &^ 3
		end := desc + (descsz+3)&^3
		if desc+descsz > uint64(len(p)) {
			return nil
		}
		if typ == noteGNUBuildID && bytes.Equal(p[:namesz], []byte("GNU\x00")) && descsz > 0 && descsz <= maxBuildID {
			return p[desc : desc+descsz]
		}
		p = p[min(end, uint64(len(p))):]
	}
	return nil
}

// DebugLink returns the content of .gnu_debuglink (GDB manual, "Separate Debug Files"): the base name of the separate
// debug file and the CRC-32 of its content. ok is false if the section is missing or malformed.
func (m *Image) DebugLink() (name string, crc uint32, ok bool) {
	p, _, err := m.Section(".gnu_debuglink")
	if err != nil {
		return "", 0, false
	}
	n := bytes.IndexByte(p, 0)
	at := (n + 4) &^ 3 // the CRC follows the terminating NUL, aligned to four bytes
	if n <= 0 || len(p) < at+4 {
		return "", 0, false
	}
	return string(p[:n]), m.layout.order.Uint32(p[at:]), true
}
