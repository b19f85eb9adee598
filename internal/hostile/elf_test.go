package hostile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zlib"
	"github.com/ulikunitz/xz"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/budget"
)

const (
	textAddr = 0x1000
	textSize = 0x10000
)

// image makes an ELF file with code, and with further sections.
func image(sections ...imagetest.Section) []byte {
	f := imagetest.File{Type: elf.ET_DYN, Machine: elf.EM_X86_64, Programs: []imagetest.Program{
		{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_X, Offset: 0, Vaddr: 0, Filesz: 0x1000, Memsz: textAddr + textSize},
	}}
	f.Sections = append([]imagetest.Section{{
		Name: ".text", Type: elf.SHT_NOBITS, Flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, Addr: textAddr, Size: textSize,
	}}, sections...)
	return f.Bytes()
}

// packed makes a compressed section (gABI, chapter 4, "Section Compression").
func packed(name string, kind elf.CompressionType, size int, stream []byte) imagetest.Section {
	head := binary.LittleEndian.AppendUint32(nil, uint32(kind))
	head = binary.LittleEndian.AppendUint32(head, 0)
	head = binary.LittleEndian.AppendUint64(head, uint64(size))
	head = binary.LittleEndian.AppendUint64(head, 1)
	s := imagetest.Section{Name: name, Type: elf.SHT_PROGBITS, Flags: elf.SHF_COMPRESSED, Data: append(head, stream...)}
	switch name {
	case ".symtab":
		s.Type, s.Link, s.Entsize = elf.SHT_SYMTAB, ".strtab", 24
	case ".strtab":
		s.Type = elf.SHT_STRTAB
	}
	return s
}

func deflate(t *testing.T, fill func(io.Writer)) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zlib.NewWriter(&out)
	fill(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// nameless makes symbols that share one long name.
func nameless(count, size int) []imagetest.Section {
	var f imagetest.File
	symbols := make([]imagetest.Symbol, count)
	for i := range symbols {
		symbols[i] = imagetest.Symbol{
			Name: "x", Addr: textAddr + uint64(i%textSize), Size: 1, Type: elf.STT_FUNC, Bind: elf.STB_GLOBAL, Section: 1,
		}
	}
	sections := f.SymbolTable(".symtab", ".strtab", symbols...)
	long := []byte("\x00" + strings.Repeat("N", size) + "\x00")
	for i := range sections {
		switch s := &sections[i]; s.Type {
		case elf.SHT_STRTAB:
			s.Data = long
		case elf.SHT_SYMTAB:
			for at := 24; at < len(s.Data); at += 24 {
				binary.LittleEndian.PutUint32(s.Data[at:], 1)
			}
		}
	}
	return sections
}

// units makes DWARF 4 for compilation units that share one line program of so many rows.
func units(t *testing.T, count, rows int) []imagetest.Section {
	t.Helper()
	const (
		unitTag, stmtList, lowPC, highPC = 0x11, 0x10, 0x11, 0x12
		secOffset, addr, data8           = 0x17, 0x01, 0x07
	)
	abbrev := []byte{1, unitTag, 0, stmtList, secOffset, lowPC, addr, highPC, data8, 0, 0, 0}
	var info bytes.Buffer
	for i := range count {
		unit := binary.LittleEndian.AppendUint16(nil, 4)               // version
		unit = append(binary.LittleEndian.AppendUint32(unit, 0), 8, 1) // abbreviations, size of addresses, entry
		unit = binary.LittleEndian.AppendUint32(unit, 0)
		unit = binary.LittleEndian.AppendUint64(unit, uint64(textAddr+i*16))
		unit = binary.LittleEndian.AppendUint64(unit, 16)
		info.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(unit))))
		info.Write(unit)
	}
	header := []byte{1, 1, 1, 0xff, 1, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0} // operation size to operands, no folders
	header = append(header, "a.c\x00\x00\x00\x00\x00"...)
	program := append([]byte{0, 9, 2}, binary.LittleEndian.AppendUint64(nil, textAddr)...)
	program = append(program, bytes.Repeat([]byte{14}, rows)...)
	program = append(program, 0, 1, 1)
	line := binary.LittleEndian.AppendUint16(nil, 4)
	line = binary.LittleEndian.AppendUint32(line, uint32(len(header)))
	line = append(append(line, header...), program...)
	line = append(binary.LittleEndian.AppendUint32(nil, uint32(len(line))), line...)
	zipped := func(name string, data []byte) imagetest.Section {
		return packed(name, elf.COMPRESS_ZLIB, len(data), deflate(t, func(w io.Writer) { _, _ = w.Write(data) }))
	}
	return []imagetest.Section{
		{Name: ".debug_abbrev", Type: elf.SHT_PROGBITS, Data: abbrev}, zipped(".debug_info", info.Bytes()),
		zipped(".debug_line", line),
	}
}

// TestImages: compressed sections, names that many symbols share, and lines that many units share.
func TestImages(t *testing.T) {
	t.Parallel()
	const size = 16 << 20
	zeros := deflate(t, repeat(make([]byte, 1<<16), size>>16))
	zstZeros := zst(t, repeat(make([]byte, 1<<16), size>>16))
	names := []string{
		".debug_info", ".debug_abbrev", ".debug_line", ".debug_str", ".debug_ranges", ".debug_aranges", ".debug_loc",
		".eh_frame", ".eh_frame_hdr", ".debug_frame", ".symtab", ".strtab", ".gopclntab", ".gnu_debugdata",
		".gnu_debuglink", ".gnu_debugaltlink", ".debug_line_str", ".debug_rnglists", ".debug_addr", ".debug_str_offsets",
	}
	var zlibs, zsts []imagetest.Section
	for _, name := range names {
		zlibs = append(zlibs, packed(name, elf.COMPRESS_ZLIB, size, zeros))
		zsts = append(zsts, packed(name, elf.COMPRESS_ZSTD, size, zstZeros))
	}
	var inner bytes.Buffer
	w, err := xz.NewWriter(&inner)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(image(imagetest.Section{Name: ".padding", Type: elf.SHT_PROGBITS, Data: make([]byte, 4<<20)}))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	many := make([]imagetest.Section, 60_000)
	for i := range many {
		many[i] = imagetest.Section{Name: "s", Type: elf.SHT_PROGBITS}
	}
	log := write(t, "log", backtraces(t, textAddr, cases(3, 50)))
	images := map[string][]byte{
		"zlib": image(zlibs...), "one name": image(nameless(50_000, 16_000)...), "rows": image(units(t, 500, 4<<20)...),
	}
	if full() {
		images["zstd"] = image(zsts...)
		images["debugdata"] = image(
			imagetest.Section{Name: ".gnu_debugdata", Type: elf.SHT_PROGBITS, Data: inner.Bytes()})
		images["sections"] = image(many...)
		images["units"] = image(units(t, 200_000, 100)...)
	}
	for name, data := range images {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := write(t, "image", data)
			measure(t, budget.Image, []string{file}, "symbols", file)
			measure(t, budget.Image, []string{file, log}, "decode", "--exe", file, log)
		})
	}
}
