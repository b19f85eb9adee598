package elfimage_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"slices"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
)

// counter counts the bytes and the calls of its reads. It refuses reads when it has read a gigabyte.
type counter struct {
	*bytes.Reader

	calls, read int
}

func (c *counter) ReadAt(p []byte, off int64) (int, error) {
	if c.read > 1<<30 {
		return 0, io.ErrUnexpectedEOF
	}
	c.calls, c.read = c.calls+1, c.read+len(p)
	return c.Reader.ReadAt(p, off)
}

// repeatSection returns a file that ends with new section headers: the existing ones, and n copies of the header at an
// index. The file must have 64 bits and be little-endian.
func repeatSection(p []byte, index, n int) []byte {
	const headerSize, shoff, shnum, size = 64, 40, 60, 32
	le := binary.LittleEndian
	headers := bytes.Clone(p[le.Uint64(p[shoff:]):][:headerSize*le.Uint16(p[shnum:])])
	repeated := headers[index*headerSize:][:headerSize]
	headers = append(headers, bytes.Repeat(repeated, n)...)
	le.PutUint64(headers[size:], uint64(len(headers)/headerSize)) // gABI: where the ELF header has no room
	out := bytes.Clone(p)
	le.PutUint64(out[shoff:], uint64(len(out)))
	le.PutUint16(out[shnum:], 0)
	return append(out, headers...)
}

const manyHeaders = 200_000

// TestRepeatedRelocations opens a file with many headers for one section of relocations. The bytes that Imported reads
// are limited.
func TestRepeatedRelocations(t *testing.T) {
	f := imagetest.File{Type: elf.ET_DYN, Machine: elf.EM_X86_64}
	entry := binary.LittleEndian.AppendUint64(nil, 0x1000)
	entry = binary.LittleEndian.AppendUint64(entry, 1<<32|7)
	data := slices.Concat(entry, make([]byte, 64<<10)) // the others are not for a symbol
	f.Sections = append(f.SymbolTable(".dynsym", ".dynstr", imagetest.Symbol{Name: "exit", Type: elf.STT_FUNC}),
		imagetest.Section{
			Name: ".relocations", Flags: elf.SHF_ALLOC, Data: data, Link: ".dynsym", Entsize: 24,
			Type: elf.SHT_RELA, //nolint:misspell // a name
		})
	c := &counter{Reader: bytes.NewReader(repeatSection(f.Bytes(), len(f.Sections), manyHeaders))}
	m, err := elfimage.Open(c, "repeated")
	if err != nil {
		t.Fatal(err)
	}
	c.calls, c.read = 0, 0
	if name := m.Imported(0x1000); name != "exit" {
		t.Errorf("imported %q", name)
	}
	if c.read > 64<<20+4096 || c.calls > 1100 {
		t.Errorf("%d bytes in %d reads", c.read, c.calls)
	}
}

// note is a note of another kind than a build-id, with a description of n bytes.
func note(n int) []byte {
	p := binary.LittleEndian.AppendUint32(nil, 4)
	p = binary.LittleEndian.AppendUint32(p, uint32(n))
	p = binary.LittleEndian.AppendUint32(p, 1)
	return append(append(p, "GNU\x00"...), make([]byte, n)...)
}

// TestRepeatedNotes opens files with many headers for one section or segment of notes. The bytes that Open reads are
// limited.
func TestRepeatedNotes(t *testing.T) {
	notes := note(16<<10 - 16)
	sections := imagetest.File{Sections: []imagetest.Section{{Name: ".note", Type: elf.SHT_NOTE, Data: notes}}}
	empty := imagetest.File{Sections: []imagetest.Section{{Name: ".note", Type: elf.SHT_NOTE}}}
	segments := imagetest.File{Programs: []imagetest.Program{{Type: elf.PT_NOTE, Data: notes}}}
	const programs, behindPrograms = 60_000, 64 + 56*60_000
	for len(segments.Programs) < programs {
		segments.Programs = append(segments.Programs,
			imagetest.Program{Type: elf.PT_NOTE, Offset: behindPrograms, Filesz: uint64(len(notes))})
	}
	for name, p := range map[string][]byte{
		"sections": repeatSection(sections.Bytes(), 1, manyHeaders),
		"empty":    repeatSection(empty.Bytes(), 1, manyHeaders),
		"segments": segments.Bytes(),
	} {
		c := &counter{Reader: bytes.NewReader(p)}
		m, err := elfimage.Open(c, name)
		if err != nil || m.BuildID() != "" {
			t.Fatalf("%s: %v", name, err)
		}
		// The headers of the file are read, too: those of segments several times.
		if headers := 4 * (len(p) - len(notes)); c.read > headers+1<<20 || c.calls > 100 {
			t.Errorf("%s: %d bytes in %d reads", name, c.read, c.calls)
		}
	}
}
