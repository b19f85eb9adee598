package hostile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/budget"
)

// note encodes a note of a core file.
func note(typ uint32, desc []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 5)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(desc)))
	b = binary.LittleEndian.AppendUint32(b, typ)
	b = append(b, "CORE\x00\x00\x00\x00"...)
	b = append(b, desc...)
	return append(b, make([]byte, -len(desc)&3)...)
}

// Addresses of the process in a core.
const (
	codeAddr  = 0x400000
	stackAddr = 0x7f0000000000
	frames    = 256
)

// core makes a core file with so many threads, which share one stack of the deepest kind.
func core(threads int) []byte {
	code := bytes.Repeat([]byte{0x90}, 4096)
	copy(code[0x100:], []byte{0xe8, 0xfb, 0xfe, 0xff, 0xff}) // a call
	stack := make([]byte, 16*(frames+2))
	for i := range frames {
		binary.LittleEndian.PutUint64(stack[16*i:], uint64(stackAddr+16*(i+1))) // frame pointer of the caller
		binary.LittleEndian.PutUint64(stack[16*i+8:], codeAddr+0x105)           // return address
	}
	const size, registers, rbp, rip, rsp = 336, 112, 4, 16, 19
	status := make([]byte, size)
	for reg, value := range map[int]uint64{rbp: stackAddr, rip: codeAddr + 0x105, rsp: stackAddr} {
		binary.LittleEndian.PutUint64(status[registers+8*reg:], value)
	}
	var notes []byte
	for i := range threads {
		binary.LittleEndian.PutUint32(status[32:], uint32(i+1))
		notes = append(notes, note(1, status)...)
	}
	f := imagetest.File{Type: elf.ET_CORE, Machine: elf.EM_X86_64, Programs: []imagetest.Program{
		{Type: elf.PT_NOTE, Data: notes},
		{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_X, Vaddr: codeAddr, Memsz: uint64(len(code)), Data: code},
		{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_W, Vaddr: stackAddr, Memsz: uint64(len(stack)), Data: stack},
	}}
	return f.Bytes()
}

// zst compresses by Zstandard.
func zst(t *testing.T, fill func(io.Writer), o ...zstd.EOption) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, append(o, zstd.WithEncoderConcurrency(1))...)
	if err != nil {
		t.Fatal(err)
	}
	fill(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestCores: threads that share a stack, and compressed repetition.
func TestCores(t *testing.T) {
	t.Parallel()
	one := core(1)
	many := core(cases(1000, 20_000))
	for name, c := range map[string]struct {
		core []byte
		want string
	}{
		"one thread":     {one, ""},
		"shared stack":   {many, "threads are left out"},
		"in gzip":        {zip(t, func(w io.Writer) { _, _ = w.Write(many) }), "threads are left out"},
		"zeros":          {zip(t, func(w io.Writer) { _, _ = w.Write(one); repeat(make([]byte, 1<<16), 1<<11)(w) }), ""},
		"zst repetition": {zst(t, repeat(bytes.Repeat([]byte{1}, 1<<16), 5<<10)), "more than"},
		"window":         {zst(t, repeat(make([]byte, 1<<16), 1<<12), zstd.WithWindowSize(128<<20)), "expand the file with"},
		"files":          {core(0), "core file without threads"},
	} {
		if !full() && name != "one thread" && name != "shared stack" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := write(t, "core", c.core)
			formats := []string{"text", "folded", "json"}
			for _, format := range formats[:cases(1, len(formats))] {
				r := measure(t, budget.Stacks, []string{file}, "capture", "--core", file, "--format", format)
				if said := r.err.head.String(); !strings.Contains(said, c.want) || (r.status != 0) != (c.want != "") {
					t.Errorf("status %d, %q, want %q", r.status, said, c.want)
				}
			}
			if name == "one thread" {
				r := execute(t, "capture", "--core", file)
				if n := strings.Count(r.out.head.String(), "\n"); n < 50 {
					t.Errorf("%d lines:\n%s", n, r.out.head.String())
				}
			}
		})
	}
}

// ntFile is the type of the note with the list of mapped files.
const ntFile = 0x46494c45

// TestManyImages: a core lists the same image very often.
func TestManyImages(t *testing.T) {
	t.Parallel()
	const base, page = 0x10000000, 4096
	count := cases(2000, 60_000)
	header := image()
	header = append(header, make([]byte, page-len(header)%page)...)[:page]
	status := make([]byte, 336)
	const word = 8
	var table, paths []byte
	table = binary.LittleEndian.AppendUint64(table, uint64(count))
	table = binary.LittleEndian.AppendUint64(table, page)
	programs := make([]imagetest.Program, 0, count+1)
	for i := range count {
		at := uint64(base + i*32*page)
		for _, v := range []uint64{at, at + 32*page, 0} {
			table = binary.LittleEndian.AppendUint64(table, v)
		}
		paths = append(paths, *program+"\x00"...)
		programs = append(programs, imagetest.Program{
			Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_X, Vaddr: at, Filesz: page, Memsz: 32 * page,
		})
	}
	notes := append(note(1, status), note(ntFile, append(table, paths...))...)
	f := imagetest.File{Type: elf.ET_CORE, Machine: elf.EM_X86_64, Programs: append(programs,
		imagetest.Program{Type: elf.PT_LOAD, Vaddr: 0x1000, Memsz: page, Data: header},
		imagetest.Program{Type: elf.PT_NOTE, Data: notes},
	)}
	data := f.Bytes()
	at := bytes.Index(data, header)
	for i := range count { // all ranges have the header of the one image
		binary.LittleEndian.PutUint64(data[64+56*i+word:], uint64(at))
	}
	file := write(t, "core", data)
	measure(t, budget.Stacks, []string{file}, "capture", "--core", file)
}

// TestLargeHeaders: a core lists many names of a file with a very long table of section headers.
func TestLargeHeaders(t *testing.T) {
	t.Parallel()
	const base, page, sections, links = 0x10000000, 4096, 1 << 18, 60
	f := imagetest.File{Type: elf.ET_DYN, Machine: elf.EM_X86_64, Programs: []imagetest.Program{
		{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_X, Memsz: page, Filesz: page},
	}}
	data := append(f.Bytes(), make([]byte, 2*page)...)[:2*page]
	binary.LittleEndian.PutUint64(data[0x28:], page)          // e_shoff
	binary.LittleEndian.PutUint16(data[0x3c:], 0)             // e_shnum: the number is in the first section header
	binary.LittleEndian.PutUint16(data[0x3a:], 64)            // e_shentsize
	binary.LittleEndian.PutUint64(data[page+0x20:], sections) // sh_size
	image := write(t, "image", data)
	if err := os.Truncate(image, page+64*sections); err != nil {
		t.Fatal(err)
	}
	table := binary.LittleEndian.AppendUint64(nil, links)
	table = binary.LittleEndian.AppendUint64(table, page)
	var paths []byte
	programs := make([]imagetest.Program, 0, links+1)
	for i := range links {
		link := filepath.Join(filepath.Dir(image), strconv.Itoa(i))
		if err := os.Link(image, link); err != nil {
			t.Fatal(err)
		}
		at := uint64(base + i*32*page)
		for _, v := range []uint64{at, at + page, 0} {
			table = binary.LittleEndian.AppendUint64(table, v)
		}
		paths = append(paths, link+"\x00"...)
		programs = append(programs, imagetest.Program{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_X, Vaddr: at, Memsz: page})
	}
	notes := append(note(1, make([]byte, 336)), note(ntFile, append(table, paths...))...)
	core := imagetest.File{Type: elf.ET_CORE, Machine: elf.EM_X86_64, Programs: append(programs, imagetest.Program{Type: elf.PT_NOTE, Data: notes})}
	file := write(t, "core", core.Bytes())
	r := measure(t, budget.Stacks, []string{file, image}, "capture", "--core", file)
	if said := r.err.head.String(); !strings.Contains(said, "the headers of images") {
		t.Errorf("not refused: %s", said)
	}
}
