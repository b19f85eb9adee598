package elfimage

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"strings"
)

// SectionData is the content of a section and the link-time address of its first byte (0 if it is not loaded).
type SectionData struct {
	Addr uint64
	Data []byte
}

// CFI is the call frame information of an image. A section is empty if the image does not have it.
type CFI struct {
	EHFrameHdr, EHFrame, DebugFrame SectionData
	// TextAddr and DataAddr are the bases of text-relative and data-relative pointers: .text and the GOT.
	TextAddr, DataAddr uint64
}

// Section returns the content of a section, decompressed, and its link-time address. Nothing is cached: each call reads
// the section again, and the caller owns the bytes. DWARF sections are also found by their old compressed name
// (.zdebug_…). The error is ErrNoSection, ErrTooLarge, ErrMalformed or an error of the image's reader.
func (m *Image) Section(name string) (data []byte, addr uint64, err error) {
	s := m.find(name)
	if s == nil {
		return nil, 0, fmt.Errorf("%s: %s: %w", m.name, name, ErrNoSection)
	}
	data, err = m.content(s)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %s: %w", m.name, name, err)
	}
	return data, s.addr, nil
}

// HasSection reports whether the image has a section with this name and with content (not SHT_NOBITS). It reads
// nothing.
func (m *Image) HasSection(name string) bool {
	s := m.find(name)
	return s != nil && s.size > 0
}

// SectionOffset returns the offset of an address in a section. ok is false if there is no section with this name, if it
// has no code, or if it does not contain the address.
func (m *Image) SectionOffset(name string, addr uint64) (offset uint64, ok bool) {
	s := m.named(name)
	if s == nil || s.flags&elf.SHF_EXECINSTR == 0 || addr-s.addr >= s.size {
		return 0, false
	}
	return addr - s.addr, true
}

// CFISections returns .eh_frame_hdr, .eh_frame and .debug_frame. The image reads them once and keeps them. Callers must
// not change the bytes. A missing section is empty. The error is about unreadable sections; the other sections are
// still returned.
func (m *Image) CFISections() (CFI, error) {
	m.cfiOnce.Do(m.loadCFI)
	return m.cfi, m.cfiErr
}

// loadCFI reads the sections for CFISections.
func (m *Image) loadCFI() {
	parts := []struct {
		name string
		to   *SectionData
	}{
		{".eh_frame_hdr", &m.cfi.EHFrameHdr}, {".eh_frame", &m.cfi.EHFrame}, {".debug_frame", &m.cfi.DebugFrame},
	}
	for _, p := range parts {
		data, addr, err := m.Section(p.name)
		switch {
		case err == nil:
			*p.to = SectionData{Addr: addr, Data: data}
		case !errors.Is(err, ErrNoSection):
			m.cfiErr = errors.Join(m.cfiErr, err)
		}
	}
	if s := m.named(".text"); s != nil {
		m.cfi.TextAddr = s.addr
	}
	for _, name := range []string{".got", ".got.plt"} {
		if s := m.named(name); s != nil {
			m.cfi.DataAddr = s.addr
			break
		}
	}
}

// named returns the first section header with a name, even if the section has no content.
func (m *Image) named(name string) *section {
	for i := range m.sections {
		if m.sections[i].name == name {
			return &m.sections[i]
		}
	}
	return nil
}

// find returns the first section with a name that has content, also under the section's old compressed name.
func (m *Image) find(name string) *section {
	old := ""
	if rest, ok := strings.CutPrefix(name, ".debug_"); ok {
		old = ".zdebug_" + rest
	}
	for i := range m.sections {
		s := &m.sections[i]
		if s.typ != elf.SHT_NOBITS && s.typ != elf.SHT_NULL && (s.name == name || old != "" && s.name == old) {
			return s
		}
	}
	return nil
}

// content reads a section, and decompresses it if it is compressed.
func (m *Image) content(s *section) ([]byte, error) {
	c, err := m.compression(s)
	switch {
	case err != nil:
		return nil, err
	case c.kind == stored && s.flags&elf.SHF_COMPRESSED == 0:
		return m.src.bytes(s.offset, s.size)
	}
	return c.all()
}

// SectionReader returns the size of a section's content, and a reader for it. For a compressed section the reader is
// nil; use Section or Expand instead. The error is ErrNoSection, ErrTooLarge, ErrMalformed or an error of the image's
// reader.
func (m *Image) SectionReader(name string) (size uint64, r io.ReaderAt, err error) {
	s := m.find(name)
	if s == nil {
		return 0, nil, fmt.Errorf("%s: %s: %w", m.name, name, ErrNoSection)
	}
	c, err := m.compression(s)
	stored := c.kind == stored && s.flags&elf.SHF_COMPRESSED == 0
	if err == nil && stored {
		err = m.src.check(s.offset, s.size)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %s: %w", m.name, name, err)
	}
	if stored {
		return s.size, io.NewSectionReader(m.src.r, int64(s.offset), int64(s.size)), nil
	}
	return c.size, nil, nil
}
