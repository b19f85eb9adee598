package corefile_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/corefile"
)

// Where makeCore has things.
const (
	testStack = 0x7000_0000_0000
	testCode  = 0x40_0000
	testTID   = 4711
)

// note makes an entry of a note segment.
func note(order binary.ByteOrder, name string, typ uint32, desc []byte) []byte {
	var b []byte
	word := make([]byte, 4)
	for _, v := range []uint32{uint32(len(name) + 1), uint32(len(desc)), typ} {
		order.PutUint32(word, v)
		b = append(b, word...)
	}
	b = append(b, name...)
	b = append(b, make([]byte, 4-len(name)%4)...)
	b = append(b, desc...)
	return append(b, make([]byte, -len(desc)&3)...)
}

// prstatus makes an NT_PRSTATUS. Each register word contains its number.
func prstatus(order binary.ByteOrder, tid, words int) []byte {
	p := make([]byte, 112+8*words+8)
	order.PutUint16(p[12:], 11)
	order.PutUint32(p[32:], uint32(tid))
	for i := range words {
		order.PutUint64(p[112+8*i:], uint64(i))
	}
	return p
}

// words makes numbers of eight bytes.
func words(order binary.ByteOrder, values ...uint64) []byte {
	p := make([]byte, 8*len(values))
	for i, v := range values {
		order.PutUint64(p[8*i:], v)
	}
	return p
}

// makeCore builds a core of two threads: a page of stack, and code that only a file contains.
func makeCore(order binary.ByteOrder, machine elf.Machine, registers int) []byte {
	info := make([]byte, 136)
	info[1] = 'S'
	order.PutUint32(info[24:], testTID)
	copy(info[40:], "postgres")
	copy(info[56:], "postgres: idle ")
	files := append(words(order, 2, 4096, testCode, testCode+0x1000, 0, testCode+0x1000, testCode+0x3000, 1),
		"/usr/bin/a\x00/usr/bin/a\x00"...)
	var notes []byte
	for _, n := range [][]byte{
		note(order, "CORE", 1, prstatus(order, testTID, registers)),
		note(order, "CORE", 3, info),
		note(order, "CORE", 6, words(order, 3, testCode+0x40, 9, testCode+0x1100, 0, 0)),
		note(order, "CORE", 0x46494c45, files),
		note(order, "CORE", 1, prstatus(order, testTID+1, registers)),
		note(order, "LINUX", 0x406, words(order, 1, 0x7f_0000_0000_0000)),
	} {
		notes = append(notes, n...)
	}
	stack := make([]byte, 4096)
	order.PutUint64(stack[8:], 0x1122334455667788)
	file := imagetest.File{
		Order: order, Type: elf.ET_CORE, Machine: machine,
		Programs: []imagetest.Program{
			{Type: elf.PT_NOTE, Data: notes, Filesz: uint64(len(notes))},
			{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_W, Vaddr: testStack, Data: stack, Memsz: 4096},
			{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_X, Vaddr: testCode + 0x1000, Memsz: 0x2000},
		},
	}
	return file.Bytes()
}

func TestOpen(t *testing.T) {
	for _, test := range []struct {
		order   binary.ByteOrder
		machine elf.Machine
		words   int
		pc      uint64 // number of the word that is the program counter
	}{
		{binary.LittleEndian, elf.EM_X86_64, 27, 16},
		{binary.LittleEndian, elf.EM_AARCH64, 34, 32},
		{binary.LittleEndian, elf.EM_PPC64, 48, 32},
		{binary.LittleEndian, elf.EM_RISCV, 32, 0},
		{binary.BigEndian, elf.EM_S390, 27, 1},
	} {
		t.Run(test.machine.String(), func(t *testing.T) {
			c, err := corefile.Open(bytes.NewReader(makeCore(test.order, test.machine, test.words)), "core")
			if err != nil || c.Damage != nil {
				t.Fatal(err, c.Damage)
			}
			if len(c.Threads) != 2 || c.Threads[0].TID != testTID || c.Threads[1].TID != testTID+1 ||
				c.Threads[0].Signal != 11 {
				t.Errorf("threads %+v", c.Threads)
			}
			if pc, ok := c.Threads[1].Registers.Get(c.Arch.PC); !ok || pc != test.pc {
				t.Errorf("pc %d, %v", pc, ok)
			}
			want := corefile.Process{PID: testTID, State: 'S', Name: "postgres", Args: "postgres: idle"}
			if c.Process != want {
				t.Errorf("process %+v", c.Process)
			}
			mem := corefile.NewMemory(c, nil)
			if v, ok := mem.Word(testStack + 8); !ok || v != 0x1122334455667788 {
				t.Errorf("word %#x, %v", v, ok)
			}
			for _, addr := range []uint64{testStack - 1, testStack + 4089, testCode, testCode + 0x1000, ^uint64(0)} {
				if v, ok := mem.Word(addr); ok {
					t.Errorf("%#x holds %#x", addr, v)
				}
			}
		})
	}
}

// TestBacking has memory that a file holds behind the core's.
func TestBacking(t *testing.T) {
	c, err := corefile.Open(bytes.NewReader(makeCore(binary.BigEndian, elf.EM_S390, 27)), "core")
	if err != nil {
		t.Fatal(err)
	}
	file := make([]byte, 0x3000)
	binary.BigEndian.PutUint32(file[0x1ffe:], 0xa1b2c3d4) // over the edge of a page
	mem := corefile.NewMemory(c, []corefile.Backing{
		{Start: testCode, End: testCode + 0x3000, File: bytes.NewReader(file)},
	})
	if v, ok := mem.Read(testCode+0x1ffe, 4); !ok || v != 0xa1b2c3d4 {
		t.Errorf("%#x, %v", v, ok)
	}
	if v, ok := mem.Read(testCode+0x2ffd, 4); ok {
		t.Errorf("%#x beyond the end", v)
	}
}

func TestMapped(t *testing.T) {
	c, err := corefile.Open(bytes.NewReader(makeCore(binary.LittleEndian, elf.EM_X86_64, 27)), "core")
	if err != nil {
		t.Fatal(err)
	}
	list := c.Mapped()
	if len(list) != 1 || !list[0].Exe || list[0].Path != "/usr/bin/a" || len(list[0].Files) != 2 ||
		list[0].Files[1].Offset != 4096 {
		t.Errorf("%+v", list)
	}
	if v, ok := c.Aux(9); !ok || v != testCode+0x1100 {
		t.Errorf("entry %#x, %v", v, ok)
	}
}

// TestMappedTwice: a mapping belongs to the last image of its path, also if other images lie between them.
func TestMappedTwice(t *testing.T) {
	c := &corefile.Core{Files: []corefile.File{
		{Start: 0x1000, Path: "a"}, {Start: 0x2000, Path: "b"}, {Start: 0x3000, Path: "a", Offset: 0x1000},
		{Start: 0x4000, Path: "a"}, {Start: 0x5000, Path: "b", Offset: 0x1000}, {Start: 0x6000, Path: "a", Offset: 0x1000},
		{Start: 0x7000, Path: "c", Offset: 0x1000},
	}}
	var got strings.Builder
	for _, m := range c.Mapped()[1:] { // the first is the program, which is unknown
		fmt.Fprintf(&got, " %s", m.Path)
		for _, f := range m.Files {
			fmt.Fprintf(&got, " %x", f.Start)
		}
	}
	if want := " a 1000 3000 b 2000 5000 a 4000 6000"; got.String() != want {
		t.Errorf("%s, want%s", got.String(), want)
	}
}

// BenchmarkMapped lists many files. Half of the mappings belong to no image.
func BenchmarkMapped(b *testing.B) {
	c := &corefile.Core{}
	for i := range uint64(1 << 17) {
		f := corefile.File{Start: i << 12, End: (i + 1) << 12, Path: fmt.Sprintf("/usr/lib/%06d", i)}
		if i >= 1<<16 {
			f.Path, f.Offset = "/usr/lib/others", 0x1000
		}
		c.Files = append(c.Files, f)
	}
	for b.Loop() {
		c.Mapped()
	}
}

// TestPACMask has the mask of the first thread, which is the process's.
func TestPACMask(t *testing.T) {
	order := binary.LittleEndian
	notes := note(order, "CORE", 1, prstatus(order, 1, 34))
	notes = append(notes, note(order, "LINUX", 0x406, words(order, 0, 0x7f_ff00_0000_0000))...)
	file := imagetest.File{Type: elf.ET_CORE, Machine: elf.EM_AARCH64, Programs: []imagetest.Program{
		{Type: elf.PT_NOTE, Data: notes, Filesz: uint64(len(notes))},
	}}
	c, err := corefile.Open(bytes.NewReader(file.Bytes()), "core")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Arch.StripCode(0x007f_ffaa_1234_5678); got != 0xaa_1234_5678 || c.Arch == arch.ARM64 {
		t.Errorf("%#x", got)
	}
}

func TestRefused(t *testing.T) {
	whole := makeCore(binary.LittleEndian, elf.EM_X86_64, 27)
	other := imagetest.File{Type: elf.ET_DYN, Machine: elf.EM_X86_64}
	sparc := imagetest.File{Type: elf.ET_CORE, Machine: elf.EM_SPARCV9}
	empty := imagetest.File{Type: elf.ET_CORE, Machine: elf.EM_X86_64}
	for _, test := range []struct {
		name string
		data []byte
		want error
	}{
		{"a library", other.Bytes(), corefile.ErrNotCore},
		{"another machine", sparc.Bytes(), arch.ErrUnsupported},
		{"no notes", empty.Bytes(), corefile.ErrNoThreads},
		{"cut in the notes", whole[:300], corefile.ErrNoThreads},
	} {
		if _, err := corefile.Open(bytes.NewReader(test.data), "core"); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	c, err := corefile.Open(bytes.NewReader(whole[:len(whole)-100]), "core")
	if err != nil || c.Damage == nil || !strings.Contains(c.Damage.Error(), "truncated") {
		t.Errorf("%v, %v", err, c)
	}
}
