package symbol

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Addresses of a memory that tests make.
const (
	descriptorAt = 0x1000
	entriesAt    = 0x2000
	objectAt     = 0x10000
	textAt       = 0x7f0000001000
	framesAt     = 0x7f0000000000
)

// memory is bytes by address.
type memory map[uint64][]byte

func (m memory) read(addr uint64, p []byte) bool {
	for start, data := range m {
		if off := addr - start; addr >= start && off <= uint64(len(data)) && uint64(len(p)) <= uint64(len(data))-off {
			copy(p, data[off:])
			return true
		}
	}
	return false
}

func words(values ...uint64) (out []byte) {
	for _, v := range values {
		out = binary.LittleEndian.AppendUint64(out, v)
	}
	return out
}

// list is a memory with a descriptor and entries, each of which points at the next.
func list(entries ...JITEntry) memory {
	m := memory{descriptorAt: words(1|1<<32, 0, 0)}
	var all []byte
	for i, e := range entries {
		next := uint64(entriesAt + (i+1)*entrySize)
		if i == len(entries)-1 {
			next = 0
		}
		all = append(all, words(next, 0, e.File, e.Size)...)
	}
	if len(entries) > 0 {
		m[descriptorAt] = words(1|1<<32, entriesAt, entriesAt)
	}
	m[entriesAt] = all
	return m
}

func TestEntries(t *testing.T) {
	many := make([]JITEntry, maxEntries+1)
	for _, c := range []struct {
		name   string
		memory memory
		want   int
		fails  bool
	}{
		{"none", list(), 0, false},
		{"zero, before the first", memory{descriptorAt: words(0, 0, 0)}, 0, false},
		{"one", list(JITEntry{1, 2}), 1, false},
		{"three", list(JITEntry{1, 2}, JITEntry{3, 4}, JITEntry{5, 6}), 3, false},
		{"not there", memory{}, 0, true},
		{"half", memory{descriptorAt: words(1, 0)}, 0, true},
		{"other version", memory{descriptorAt: words(2, entriesAt, entriesAt)}, 0, true},
		{"unknown action", memory{descriptorAt: words(1|3<<32, entriesAt, entriesAt)}, 0, true},
		{"nowhere", memory{descriptorAt: words(1, 0, 0xdead)}, 0, true},
		{"second nowhere", memory{descriptorAt: words(1, 0, entriesAt), entriesAt: words(0xdead, 0, 1, 2)}, 1, true},
		{"cycle", memory{descriptorAt: words(1, 0, entriesAt), entriesAt: words(entriesAt, 0, 1, 2)}, maxEntries, true},
		{"too many", list(many...), maxEntries, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			entries, err := JITEntries(c.memory.read, binary.LittleEndian, descriptorAt)
			if len(entries) != c.want || c.fails != errors.Is(err, ErrMalformed) || !c.fails && err != nil {
				t.Errorf("%d entries, %v", len(entries), err)
			}
		})
	}
	if e, err := JITEntries(list(JITEntry{7, 8}).read, binary.LittleEndian, descriptorAt); err != nil || e[0] != (JITEntry{7, 8}) {
		t.Errorf("%v, %v", e, err)
	}
}

// compiled is an object file of the compiler. Its section headers contain load addresses as a loader would write
// them.
func compiled(t testing.TB) []byte {
	t.Helper()
	dir := t.TempDir()
	source, object := filepath.Join(dir, "a.c"), filepath.Join(dir, "a.o")
	text := "static __attribute__((noinline)) int inner(int x) { return x * 3 + 1; }\n" +
		"int outer(int x) { return inner(x) + inner(x + 1); }\nint data = 5;\n"
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	gcc := exec.CommandContext(t.Context(), "gcc", "-m64", "-O1", "-c", "-o", object, source)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Skipf("gcc: %v\n%s", err, out)
	}
	data, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	place(t, data, map[string]uint64{".text": textAt, ".eh_frame": framesAt})
	return data
}

// place enters addresses into section headers.
func place(t testing.TB, data []byte, at map[string]uint64) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	headers := binary.LittleEndian.Uint64(data[0x28:])
	for i, s := range f.Sections {
		if addr, ok := at[s.Name]; ok {
			binary.LittleEndian.PutUint64(data[headers+uint64(i)*64+16:], addr)
		}
	}
}

func open(data []byte) (*JITObject, error) {
	return OpenJIT(memory{objectAt: data}.read, JITEntry{objectAt, uint64(len(data))}, elf.EM_X86_64)
}

func TestObject(t *testing.T) {
	data := compiled(t)
	o, err := open(data)
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	text, frames := file.Section(".text"), file.Section(".eh_frame")
	if len(o.Code) != 1 || o.Code[0] != (JITSpan{textAt, textAt + text.Size}) ||
		o.Frames != (JITSpan{framesAt, framesAt + frames.Size}) {
		t.Errorf("code %x, frames %x", o.Code, o.Frames)
	}
	symbols, err := file.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC {
			continue
		}
		found++
		for off := range s.Size {
			if f, ok := o.Function(textAt + s.Value + off); !ok || f.Name != s.Name || f.Start != textAt+s.Value {
				t.Errorf("%s+%d is %q", s.Name, off, f.Name)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d functions", found)
	}
	for _, addr := range []uint64{0, textAt - 1, textAt + text.Size, framesAt, ^uint64(0)} {
		if f, ok := o.Function(addr); ok || o.Holds(addr) {
			t.Errorf("%#x is %q", addr, f.Name)
		}
	}
	if !o.Holds(textAt) {
		t.Error("its own code is not its")
	}
}

// TestInvalidObjects checks that invalid objects, and objects for another machine, give an error and no names.
func TestInvalidObjects(t *testing.T) {
	data := compiled(t)
	m := memory{objectAt: data}.read
	for _, c := range []struct {
		name    string
		entry   JITEntry
		machine elf.Machine
	}{
		{"no address", JITEntry{0, 100}, elf.EM_X86_64},
		{"no size", JITEntry{objectAt, 0}, elf.EM_X86_64},
		{"around the end", JITEntry{^uint64(0) - 5, 100}, elf.EM_X86_64},
		{"too large", JITEntry{objectAt, maxFile + 1}, elf.EM_X86_64},
		{"nowhere", JITEntry{1 << 40, 1000}, elf.EM_X86_64},
		{"no header", JITEntry{objectAt + 64, uint64(len(data) - 64)}, elf.EM_X86_64},
		{"other machine", JITEntry{objectAt, uint64(len(data))}, elf.EM_AARCH64},
	} {
		if o, err := OpenJIT(m, c.entry, c.machine); !errors.Is(err, ErrMalformed) || o != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	unplaced := bytes.Clone(data)
	place(t, unplaced, map[string]uint64{".text": 0, ".eh_frame": 0})
	if o, err := open(unplaced); err != nil || len(o.Code) != 0 || len(o.functions) != 0 || o.Frames != (JITSpan{}) {
		t.Errorf("an object that was not loaded: %+v, %v", o, err)
	}
	spaced := bytes.Replace(data, []byte("\x00outer\x00"), []byte("\x00ou er\x00"), 1)
	if o, err := open(spaced); err != nil || len(o.functions) != 1 {
		t.Errorf("a name with a space: %+v, %v", o, err)
	}
}

// Offsets in a section header.
const (
	shName, shType, shFlags, shAddr = 0, 4, 8, 16
	shOffset, shSize, shLink        = 24, 32, 40
)

// manySymbols makes an object of nearly 16 MB with as many sections and symbols as OpenJIT reads. The names of all of them
// are at an offset of one string table, which is also used for the names of the sections. All symbols are functions.
func manySymbols(names []byte, offset uint32) []byte {
	le := binary.LittleEndian
	const header, sectionSize = 64, 64
	symbolsAt, sectionsAt := header+len(names), header+len(names)+maxSymbols*elf.Sym64Size
	p := make([]byte, sectionsAt+maxSections*sectionSize)
	copy(p, elf.ELFMAG+"\x02\x01\x01")
	le.PutUint16(p[16:], uint16(elf.ET_REL))
	le.PutUint16(p[18:], uint16(elf.EM_X86_64))
	p[20] = byte(elf.EV_CURRENT)
	le.PutUint64(p[40:], uint64(sectionsAt))
	for i, v := range []uint16{header, 56, 0, sectionSize, maxSections, 1} {
		le.PutUint16(p[52+2*i:], v)
	}
	copy(p[header:], names)
	for i := range maxSymbols {
		s := p[symbolsAt+i*elf.Sym64Size:]
		le.PutUint32(s, offset)
		s[4] = byte(elf.STT_FUNC)
		le.PutUint16(s[6:], 3)
		le.PutUint64(s[16:], 1)
	}
	for i := range maxSections {
		s := p[sectionsAt+i*sectionSize:]
		le.PutUint32(s[shName:], offset)
		le.PutUint32(s[shType:], uint32(elf.SHT_PROGBITS))
		le.PutUint64(s[shFlags:], uint64(elf.SHF_ALLOC))
		le.PutUint64(s[shAddr:], framesAt)
		le.PutUint64(s[shSize:], 1)
	}
	set := func(i int, typ elf.SectionType, flags elf.SectionFlag, offset, size int) {
		s := p[sectionsAt+i*sectionSize:]
		le.PutUint32(s[shType:], uint32(typ))
		le.PutUint64(s[shFlags:], uint64(flags))
		le.PutUint64(s[shOffset:], uint64(offset))
		le.PutUint64(s[shSize:], uint64(size))
		le.PutUint32(s[shLink:], 1)
	}
	set(1, elf.SHT_STRTAB, 0, header, len(names))
	set(2, elf.SHT_SYMTAB, 0, symbolsAt, maxSymbols*elf.Sym64Size)
	set(3, elf.SHT_PROGBITS, elf.SHF_ALLOC|elf.SHF_EXECINSTR, 0, 16)
	return p
}

// TestLongNames checks that the names of an object take little memory, also if all sections and symbols have the same
// name, and that name is long.
func TestLongNames(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 14<<20)
	begin, end := bytes.Clone(long), bytes.Clone(long)
	end[len(end)-1] = 0
	begin[0], begin[len(begin)-1] = 0, 0
	for _, c := range []struct {
		name      string
		names     []byte
		offset    uint32
		functions int
		fails     bool
	}{
		{"without an end", long, 0, 0, true},
		{"with an end", end, 0, 0, true},
		{"with an empty name", begin, 1, 0, false},
		{"too many of the greatest length", slices.Concat([]byte{0}, long[:maxName], []byte{0}), 1, 0, true},
		{"short", []byte("\x00name\x00"), 1, maxSymbols - 1, false},
	} {
		data := manySymbols(c.names, c.offset)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		o, err := open(data)
		runtime.ReadMemStats(&after)
		if c.fails != errors.Is(err, ErrMalformed) || !c.fails && err != nil || o == nil || len(o.functions) != c.functions {
			t.Errorf("%s: %v", c.name, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
			t.Errorf("%s: %d bytes allocated", c.name, n)
		}
	}
}

// FuzzOpen reads damaged objects. The results must lie in their code.
func FuzzOpen(f *testing.F) {
	f.Add(compiled(f))
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := open(data)
		if o == nil {
			if err == nil {
				t.Error("neither an object nor an error")
			}
			return
		}
		for _, fn := range o.functions {
			if !o.Holds(fn.Start) || !o.Holds(fn.End-1) || strings.ContainsAny(fn.Name, " \n\t") || fn.Name == "" {
				t.Errorf("%+v of code %+v", fn, o.Code)
			}
			if got, ok := o.Function(fn.Start); ok && (got.Start > fn.Start || got.End <= fn.Start) {
				t.Errorf("%#x is in %+v", fn.Start, got)
			}
		}
		if o.Frames.End < o.Frames.Start || o.Frames.End-o.Frames.Start > maxFrames {
			t.Errorf("frames %+v", o.Frames)
		}
	})
}

// FuzzEntries reads lists in arbitrary memory.
func FuzzEntries(f *testing.F) {
	f.Add(append(words(1, 24, 24), words(0, 0, 1, 2)...))
	f.Add(append(words(1, 24, 24), words(24, 0, 1, 2)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := JITEntries(memory{0: data}.read, binary.LittleEndian, 0)
		if len(entries) > maxEntries || err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("%d entries, %v", len(entries), err)
		}
	})
}
