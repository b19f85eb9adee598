package elfimage_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
)

// loaded is a file as the kernel would map it.
type loaded struct {
	base  uint64
	bytes []byte
}

// load maps the segments of a file, with its first page at base.
func load(t testing.TB, path string, base uint64) loaded {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	l := loaded{base: base}
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD {
			continue
		}
		end := p.Vaddr + p.Memsz
		l.bytes = append(l.bytes, make([]byte, max(end, uint64(len(l.bytes)))-uint64(len(l.bytes)))...)
		if n, err := p.ReadAt(l.bytes[p.Vaddr:p.Vaddr+p.Filesz], 0); err != nil {
			t.Fatal(n, err)
		}
	}
	return l
}

func (l loaded) read(addr uint64, p []byte) (int, error) {
	if addr < l.base || addr-l.base >= uint64(len(l.bytes)) {
		return 0, fmt.Errorf("nothing at %#x", addr)
	}
	return copy(p, l.bytes[addr-l.base:]), nil
}

// relocate adds the base to the pointers of the dynamic segment, like the dynamic linker.
func (l loaded) relocate(t testing.TB, m *elfimage.Image, path string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type != elf.PT_DYNAMIC {
			continue
		}
		d := l.bytes[p.Vaddr : p.Vaddr+p.Filesz]
		for ; len(d) >= 16; d = d[16:] {
			switch elf.DynTag(m.Order().Uint64(d)) {
			case elf.DT_HASH, elf.DT_GNU_HASH, elf.DT_STRTAB, elf.DT_SYMTAB:
				m.Order().PutUint64(d[8:], m.Order().Uint64(d[8:])+l.base)
			}
		}
	}
}

// TestFromMemory reads shared objects as they are mapped and compares with the files.
func TestFromMemory(t *testing.T) {
	for _, path := range realFiles(t) {
		file := open(t, path)
		lo, hi := file.AddrRange()
		if lo != 0 || file.AddrSize() != 8 || hi > 64<<20 || !mapped(file) {
			t.Logf("%s: not a shared object that is mapped, or too large: left out", path)
			continue
		}
		t.Run(path, func(t *testing.T) {
			l := load(t, path, 0x7f1234560000)
			compareMemory(t, file, l)
			l.relocate(t, file, path)
			compareMemory(t, file, l)
		})
	}
}

func compareMemory(t *testing.T, file *elfimage.Image, l loaded) {
	t.Helper()
	m, err := elfimage.FromMemory(l.read, l.base, "memory")
	if err != nil {
		t.Fatal(err)
	}
	if m.BuildID() != file.BuildID() || m.Type() != file.Type() || m.Machine() != file.Machine() {
		t.Errorf("header: %q %v %v", m.BuildID(), m.Type(), m.Machine())
	}
	want, err := file.CFISections()
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.CFISections()
	if err != nil {
		t.Fatal(err)
	}
	if got.EHFrameHdr.Addr != want.EHFrameHdr.Addr || !bytes.Equal(got.EHFrameHdr.Data, want.EHFrameHdr.Data) {
		t.Error(".eh_frame_hdr differs")
	}
	if got.EHFrame.Addr != want.EHFrame.Addr || !bytes.HasPrefix(got.EHFrame.Data, want.EHFrame.Data) {
		t.Error(".eh_frame differs")
	}
	if a, b := dynamicSymbols(t, m), dynamicSymbols(t, file); !maps.Equal(a, b) {
		t.Errorf("%d dynamic symbols, not %d", len(a), len(b))
	}
	if bias, ok := m.Bias(l.base, 0); !ok || bias != l.base {
		t.Errorf("bias %#x, %v", bias, ok)
	}
}

// dynamicSymbols counts the defined symbols of .dynsym: DT_GNU_HASH says nothing of the others' number.
func dynamicSymbols(t *testing.T, m *elfimage.Image) map[elfimage.Symbol]int {
	t.Helper()
	all := make(map[elfimage.Symbol]int)
	symbols, err := m.Symbols(".dynsym")
	if err != nil {
		if !errors.Is(err, elfimage.ErrNoSection) {
			t.Fatal(err)
		}
		return all
	}
	for s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			s.Name = strings.Clone(s.Name)
			all[s]++
		}
	}
	return all
}

// TestNoSectionHeaders opens files without section headers.
func TestNoSectionHeaders(t *testing.T) {
	for _, path := range realFiles(t) {
		file := open(t, path)
		p, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if file.AddrSize() != 8 || !mapped(file) {
			t.Logf("%s: not a 64-bit file that is mapped: left out", path)
			continue
		}
		copy(p[40:48], make([]byte, 8)) // e_shoff
		m, err := elfimage.Open(bytes.NewReader(p), "sstripped")
		if err != nil {
			t.Fatal(err)
		}
		want, _ := file.CFISections()
		got, err := m.CFISections()
		// Go's linker leaves its .note.gnu.build-id outside of PT_NOTE.
		sameID := m.BuildID() == file.BuildID() || m.BuildID() == "" && len(want.EHFrame.Data) == 0
		if err != nil || !bytes.HasPrefix(got.EHFrame.Data, want.EHFrame.Data) || !sameID {
			t.Errorf("%s: %v, .eh_frame of %d bytes, build-id %q", path, err, len(got.EHFrame.Data), m.BuildID())
		}
	}
}

// TestManySegments: a core file can have the same headers at many addresses, and each Image keeps its segments.
func TestManySegments(t *testing.T) {
	for name, c := range map[string]struct {
		count  int
		damage func(p []byte)
		err    error
	}{
		"many":         {100, func([]byte) {}, nil},
		"too many":     {65534, func([]byte) {}, elfimage.ErrMalformed},
		"long entries": {100, func(p []byte) { binary.LittleEndian.PutUint16(p[54:], 1<<15) }, elfimage.ErrMalformed},
		"extended":     {0xffff, func([]byte) {}, elfimage.ErrMalformed},
		"no segment":   {0, func([]byte) {}, elfimage.ErrMalformed},
	} {
		f := imagetest.File{Type: elf.ET_DYN, Programs: make([]imagetest.Program, c.count)}
		for i := range f.Programs {
			f.Programs[i] = imagetest.Program{Type: elf.PT_LOAD, Flags: elf.PF_R, Memsz: 0x1000}
		}
		p := append(f.Bytes(), make([]byte, 4<<20)...)
		c.damage(p)
		if _, err := elfimage.FromMemory(loaded{bytes: p}.read, 0, name); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestVDSO reads the vDSO of this process.
func TestVDSO(t *testing.T) {
	base := vdsoBase(t)
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Skipf("no view of the own memory: %v", err)
	}
	defer func() { _ = mem.Close() }()
	read := func(addr uint64, p []byte) (int, error) { return mem.ReadAt(p, int64(addr)) }
	m, err := elfimage.FromMemory(read, base, "[vdso]")
	if err != nil {
		t.Fatal(err)
	}
	cfi, err := m.CFISections()
	if err != nil || len(cfi.EHFrameHdr.Data) == 0 || len(cfi.EHFrame.Data) == 0 {
		t.Errorf("call frame information: %v", err)
	}
	found := false
	for s := range dynamicSymbols(t, m) {
		found = found || strings.Contains(s.Name, "vdso_clock_gettime") || strings.Contains(s.Name, "kernel_clock_gettime")
	}
	if !found || m.BuildID() == "" {
		t.Errorf("clock_gettime found: %v, build-id %q", found, m.BuildID())
	}
}

// TestVDSOWithoutTable reads a vDSO like the vDSO of s390x. Its PT_GNU_EH_FRAME is empty, and only its section
// headers in its last page give the address of .eh_frame. If the section headers are missing or overwritten, there is
// no .eh_frame.
func TestVDSOWithoutTable(t *testing.T) {
	l := ownVDSO(t)
	file, err := elf.NewFile(bytes.NewReader(l.bytes))
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := file.Section(".eh_frame").Data()
	if err != nil {
		t.Fatal(err)
	}
	withoutTable(l.bytes)
	headers := l.bytes[file.ByteOrder.Uint64(l.bytes[40:]):]
	for _, c := range []struct {
		name   string
		change func()
		want   []byte
	}{
		{"whole", func() {}, wanted},
		{"no null section", func() { headers[4] = 1 }, nil},
		{"others' bytes", func() { copy(headers, bytes.Repeat([]byte{0x5a}, len(headers))) }, nil},
		{"zeros", func() { clear(headers) }, nil},
		{"not mapped", func() { l.bytes = l.bytes[:len(l.bytes)-len(headers)] }, nil},
	} {
		c.change()
		m, err := elfimage.FromMemory(l.read, l.base, "[vdso]")
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if cfi, err := m.CFISections(); err != nil || !bytes.Equal(cfi.EHFrame.Data, c.want) {
			t.Errorf("%s: .eh_frame of %d bytes, not %d: %v", c.name, len(cfi.EHFrame.Data), len(c.want), err)
		}
	}
}

// withoutTable empties PT_GNU_EH_FRAME of a 64-bit image of this machine's byte order.
func withoutTable(p []byte) {
	order := binary.NativeEndian
	for i := range int(order.Uint16(p[56:])) {
		if header := p[64+56*i:]; elf.ProgType(order.Uint32(header)) == elf.PT_GNU_EH_FRAME {
			clear(header[8:48])
		}
	}
}

// ownVDSO copies the vDSO of this process, section headers included.
func ownVDSO(t testing.TB) loaded {
	t.Helper()
	base := vdsoBase(t)
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Skipf("no view of the own memory: %v", err)
	}
	defer func() { _ = mem.Close() }()
	head := make([]byte, 64)
	if _, err := mem.ReadAt(head, int64(base)); err != nil {
		t.Fatal(err)
	}
	order := binary.NativeEndian
	end := order.Uint64(head[40:]) + uint64(order.Uint16(head[58:]))*uint64(order.Uint16(head[60:]))
	l := loaded{base: base, bytes: make([]byte, end)}
	if _, err := mem.ReadAt(l.bytes, int64(base)); err != nil {
		t.Fatal(err)
	}
	return l
}

func vdsoBase(t testing.TB) uint64 {
	t.Helper()
	p, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skipf("no maps of the own memory: %v", err)
	}
	for line := range strings.Lines(string(p)) {
		if strings.Contains(line, "[vdso]") {
			start, _, _ := strings.Cut(line, "-")
			base, err := strconv.ParseUint(start, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return base
		}
	}
	t.Skip("this process has no vDSO")
	return 0
}
