package elfimage_test

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/elfimage"
)

func deflated(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstandard(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	return w.EncodeAll(data, nil)
}

// chdr is the compression header of a 64-bit little-endian file.
func chdr(typ elf.CompressionType, size uint64) []byte {
	p := binary.LittleEndian.AppendUint64(nil, uint64(typ))
	p = binary.LittleEndian.AppendUint64(p, size)
	return binary.LittleEndian.AppendUint64(p, 1)
}

func TestCompressed(t *testing.T) {
	plain := bytes.Repeat([]byte("call frame information "), 10_000)
	size := uint64(len(plain))
	zl, zs := deflated(t, plain), zstandard(t, plain)
	old := append(binary.BigEndian.AppendUint64([]byte("ZLIB"), size), zl...)
	for name, c := range map[string]struct {
		section imagetest.Section
		err     error
	}{
		"zlib":      {imagetest.Section{Flags: elf.SHF_COMPRESSED, Data: append(chdr(elf.COMPRESS_ZLIB, size), zl...)}, nil},
		"zstd":      {imagetest.Section{Flags: elf.SHF_COMPRESSED, Data: append(chdr(elf.COMPRESS_ZSTD, size), zs...)}, nil},
		"old":       {imagetest.Section{Name: ".zdebug_frame", Data: old}, nil},
		"old plain": {imagetest.Section{Name: ".zdebug_frame", Data: plain}, nil},
		"too long": {
			imagetest.Section{Flags: elf.SHF_COMPRESSED, Data: append(chdr(elf.COMPRESS_ZLIB, size-1), zl...)},
			elfimage.ErrMalformed,
		},
		"too short": {
			imagetest.Section{Flags: elf.SHF_COMPRESSED, Data: append(chdr(elf.COMPRESS_ZSTD, size+1), zs...)},
			elfimage.ErrMalformed,
		},
		"enormous": {
			imagetest.Section{Flags: elf.SHF_COMPRESSED, Data: append(chdr(elf.COMPRESS_ZSTD, 1<<40), zs...)},
			elfimage.ErrTooLarge,
		},
		"not zlib": {
			imagetest.Section{Flags: elf.SHF_COMPRESSED, Data: append(chdr(elf.COMPRESS_ZLIB, size), zs...)},
			elfimage.ErrMalformed,
		},
		"unknown": {imagetest.Section{Flags: elf.SHF_COMPRESSED, Data: chdr(77, size)}, elfimage.ErrMalformed},
		"cut":     {imagetest.Section{Flags: elf.SHF_COMPRESSED, Data: []byte{1, 0}}, elfimage.ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			c.section.Type = elf.SHT_PROGBITS
			if c.section.Name == "" {
				c.section.Name = ".debug_frame"
			}
			m := build(t, &imagetest.File{Sections: []imagetest.Section{c.section}})
			data, _, err := m.Section(".debug_frame")
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v", err)
			}
			if err == nil && !bytes.Equal(data, plain) {
				t.Errorf("content differs: %d bytes", len(data))
			}
			size, r, err := m.SectionReader(".debug_frame")
			if name == "old plain" {
				if r == nil || size != uint64(len(plain)) || err != nil {
					t.Errorf("%d bytes, %v, %v", size, r, err)
				}
				return
			}
			if data, err = pieces(m, ".debug_frame"); !errors.Is(err, c.err) {
				t.Fatalf("in pieces: error %v", err)
			}
			if err == nil && (!bytes.Equal(data, plain) || size != uint64(len(plain)) || r != nil) {
				t.Errorf("content in pieces differs: %d bytes, %d promised", len(data), size)
			}
		})
	}
}

// pieces expands a section piece by piece.
func pieces(m *elfimage.Image, name string) ([]byte, error) {
	p, err := m.Expand(name)
	if err != nil {
		return nil, err
	}
	var all []byte
	for {
		next, err := p.Next()
		all = append(all, next...)
		if err != nil {
			if _, again := p.Next(); !errors.Is(again, err) {
				return nil, again
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return all, err
		}
	}
}

// TestCompressedDamaged checks that each damaged byte of a zlib stream is an error, unless the standard library
// accepts it too. Each truncated stream must be an error.
func TestCompressedDamaged(t *testing.T) {
	plain := bytes.Repeat([]byte("registers and memory in, frames out. "), 40)
	stream := deflated(t, plain)
	expand := func(stream []byte) ([]byte, error) {
		return pieces(build(t, &imagetest.File{Sections: []imagetest.Section{{
			Name: ".debug_frame", Type: elf.SHT_PROGBITS, Flags: elf.SHF_COMPRESSED,
			Data: append(chdr(elf.COMPRESS_ZLIB, uint64(len(plain))), stream...),
		}}}), ".debug_frame")
	}
	for i := range stream {
		if _, err := expand(stream[:i]); !errors.Is(err, elfimage.ErrMalformed) {
			t.Errorf("cut after %d of %d bytes: error %v", i, len(stream), err)
		}
		damaged := bytes.Clone(stream)
		damaged[i] ^= 0x55
		var want []byte
		r, bad := zlib.NewReader(bytes.NewReader(damaged))
		if bad == nil {
			want, bad = io.ReadAll(r)
		}
		got, err := expand(damaged)
		switch good := bad == nil && len(want) == len(plain); {
		case good && (err != nil || !bytes.Equal(got, want)):
			t.Errorf("byte %d: %d bytes, error %v", i, len(got), err)
		case !good && !errors.Is(err, elfimage.ErrMalformed):
			t.Errorf("byte %d: error %v", i, err)
		}
	}
	if got, err := expand(stream); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("undamaged: %d bytes, error %v", len(got), err)
	}
}

// TestCompressedBomb checks a stream that expands to much more than its declared size: it must use no more memory
// than declared. A declared size that is implausible for the stream's length must not be allocated.
func TestCompressedBomb(t *testing.T) {
	const small, large = 1 << 20, 200 << 20
	short := deflated(t, make([]byte, 1000))
	long := deflated(t, make([]byte, large))
	for name, c := range map[string]struct {
		size uint64
		data []byte
		want error
	}{
		"more than promised": {1000, long, elfimage.ErrMalformed}, "less than promised": {small, short, elfimage.ErrMalformed},
		"out of proportion": {large, short, elfimage.ErrTooLarge},
	} {
		m := build(t, &imagetest.File{Sections: []imagetest.Section{{
			Name: ".debug_frame", Type: elf.SHT_PROGBITS, Flags: elf.SHF_COMPRESSED,
			Data: append(chdr(elf.COMPRESS_ZLIB, c.size), c.data...),
		}}})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, _, err := m.Section(".debug_frame"); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v", name, err)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20 {
			t.Errorf("%s: %d bytes allocated", name, n)
		}
	}
}

// failing is a file whose reads fail once fails is set.
type failing struct {
	io.ReaderAt

	fails bool
}

var errFailing = errors.New("no such sector")

func (f *failing) ReadAt(p []byte, at int64) (int, error) {
	if f.fails {
		return 0, errFailing
	}
	return f.ReaderAt.ReadAt(p, at)
}

// TestCompressedReadError checks that a read error is returned as it is, and does not count as damage.
func TestCompressedReadError(t *testing.T) {
	plain := make([]byte, 300_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(plain) // it has no error
	for kind, stream := range map[elf.CompressionType][]byte{
		elf.COMPRESS_ZLIB: deflated(t, plain), elf.COMPRESS_ZSTD: zstandard(t, plain),
	} {
		data := append(chdr(kind, uint64(len(plain))), stream...)
		p := (&imagetest.File{Sections: []imagetest.Section{
			{Name: ".debug_frame", Type: elf.SHT_PROGBITS, Flags: elf.SHF_COMPRESSED, Data: data},
		}}).Bytes()
		file := &failing{ReaderAt: bytes.NewReader(p)}
		m, err := elfimage.Open(file, "failing")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := pieces(m, ".debug_frame"); err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%v: %d bytes, error %v", kind, len(got), err)
		}
		expanding, err := m.Expand(".debug_frame")
		if err == nil {
			_, err = expanding.Next()
		}
		if err != nil {
			t.Fatal(err)
		}
		for file.fails = true; err == nil; {
			_, err = expanding.Next()
		}
		if !errors.Is(err, errFailing) || errors.Is(err, elfimage.ErrMalformed) {
			t.Errorf("%v: error %v", kind, err)
		}
	}
}

// small is a valid file that the tests below damage.
func small(t testing.TB) []byte {
	t.Helper()
	f := imagetest.File{Type: elf.ET_DYN, Machine: elf.EM_X86_64}
	f.Programs = []imagetest.Program{
		{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_X, Memsz: 0x2000, Filesz: 0x400},
		{Type: elf.PT_NOTE, Data: []byte("\x04\x00\x00\x00\x04\x00\x00\x00\x03\x00\x00\x00GNU\x00abcd")},
	}
	f.Sections = append(f.SymbolTable(".symtab", ".strtab",
		imagetest.Symbol{Name: "main@@V1", Addr: 0x100, Size: 16, Type: elf.STT_FUNC, Bind: elf.STB_GLOBAL, Section: 3}),
		imagetest.Section{
			Name: ".text", Type: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, Data: []byte("code"),
		},
		imagetest.Section{Name: ".eh_frame", Type: elf.SHT_PROGBITS, Addr: 0x300, Data: make([]byte, 16)},
		imagetest.Section{
			Name: ".debug_frame", Type: elf.SHT_PROGBITS, Flags: elf.SHF_COMPRESSED,
			Data: append(chdr(elf.COMPRESS_ZLIB, 5), deflated(t, []byte("hello"))...),
		},
		imagetest.Section{Name: ".gnu_debuglink", Type: elf.SHT_PROGBITS, Data: []byte("x.debug\x00abcd")})
	return f.Bytes()
}

// TestRefused gives Open and the readers false headers.
func TestRefused(t *testing.T) {
	le := binary.LittleEndian
	shoff := le.Uint64(small(t)[40:])
	for name, c := range map[string]struct {
		damage func(p []byte)
		err    error
	}{
		"magic":          {func(p []byte) { p[1] = 'X' }, elfimage.ErrNotELF},
		"class":          {func(p []byte) { p[elf.EI_CLASS] = 9 }, elfimage.ErrNotELF},
		"byte order":     {func(p []byte) { p[elf.EI_DATA] = 0 }, elfimage.ErrNotELF},
		"version":        {func(p []byte) { p[elf.EI_VERSION] = 2 }, elfimage.ErrNotELF},
		"section offset": {func(p []byte) { le.PutUint64(p[40:], 1<<63) }, elfimage.ErrMalformed},
		"program offset": {func(p []byte) { le.PutUint64(p[32:], 1<<40) }, elfimage.ErrMalformed},
		"program size":   {func(p []byte) { le.PutUint16(p[54:], 8) }, elfimage.ErrMalformed},
		"section count":  {func(p []byte) { le.PutUint16(p[60:], 60000) }, elfimage.ErrMalformed},
		"extended count": {
			func(p []byte) { le.PutUint16(p[60:], 0); le.PutUint64(p[shoff+32:], 1<<60) }, elfimage.ErrMalformed,
		},
		"program count": {
			func(p []byte) { le.PutUint16(p[56:], 0xffff); le.PutUint32(p[shoff+44:], 1<<31) }, elfimage.ErrMalformed,
		},
		"name table's type":  {func(p []byte) { le.PutUint16(p[62:], 1) }, elfimage.ErrMalformed},
		"name table's index": {func(p []byte) { le.PutUint16(p[62:], 500) }, nil},
	} {
		p := small(t)
		c.damage(p)
		m, err := elfimage.Open(bytes.NewReader(p), name)
		if !errors.Is(err, c.err) || (m == nil) != (err != nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCut opens every prefix of a file.
func TestCut(t *testing.T) {
	p := small(t)
	for n := range p {
		if _, err := elfimage.Open(bytes.NewReader(p[:n]), "cut"); err == nil {
			t.Errorf("%d of %d bytes opened", n, len(p))
		}
	}
	if _, err := elfimage.Open(bytes.NewReader(p), "whole"); err != nil {
		t.Error(err)
	}
}

// TestNoGiantAllocation reads a section that claims 200 MB in a file of unknown size.
func TestNoGiantAllocation(t *testing.T) {
	p := small(t)
	shoff := binary.LittleEndian.Uint64(p[40:])
	binary.LittleEndian.PutUint64(p[shoff+3*64+32:], 200<<20) // .text
	m, err := elfimage.Open(unsized{bytes.NewReader(p)}, "claims")
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err = m.Section(".text"); !errors.Is(err, elfimage.ErrMalformed) {
		t.Errorf("error %v", err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("%d bytes allocated", n)
	}
}

// FuzzOpen reads all data of a foreign file. The result is an image or an error. The image returns no more data than
// the file contains.
func FuzzOpen(f *testing.F) {
	f.Add(small(f))
	f.Add(small(f)[:64])
	f.Add((&imagetest.File{Is32: true, Order: binary.BigEndian}).Bytes())
	vdso := ownVDSO(f).bytes
	withoutTable(vdso)
	f.Add(vdso)
	f.Fuzz(func(t *testing.T, p []byte) {
		m, err := elfimage.Open(bytes.NewReader(p), "fuzz")
		if (m == nil) != (err != nil) {
			t.Fatalf("image %v and error %v", m, err)
		}
		if m != nil {
			exercise(t, m, len(p))
		}
		read := func(addr uint64, to []byte) (int, error) { return bytes.NewReader(p).ReadAt(to, int64(addr-0x7000)) }
		m, err = elfimage.FromMemory(read, 0x7000, "fuzz")
		if (m == nil) != (err != nil) {
			t.Fatalf("image %v and error %v", m, err)
		}
		if m != nil {
			exercise(t, m, len(p))
		}
	})
}

// exercise calls every method and checks conditions that hold for any input.
func exercise(t *testing.T, m *elfimage.Image, size int) {
	t.Helper()
	if lo, hi := m.AddrRange(); lo > hi {
		t.Fatalf("range %#x to %#x", lo, hi)
	}
	if found, err := m.Defined("main", "__vdso_time", ""); err == nil && len(found) > 3 {
		t.Fatalf("found %v", found)
	}
	if name := m.Imported(0); len(name) > min(size, 128) {
		t.Fatalf("imported %q", name)
	}
	if cfi, err := m.CFISections(); err == nil && len(cfi.EHFrameHdr.Data) > size {
		t.Fatalf("%d bytes of a file of %d", len(cfi.EHFrameHdr.Data), size)
	}
	for _, name := range []string{".text", ".debug_frame", ".note", ".dynamic"} {
		data, _, err := m.Section(name)
		if err != nil && data != nil {
			t.Fatalf("%s: data and error %v", name, err)
		}
		if other, e := pieces(m, name); e == nil && !bytes.Equal(data, other) {
			t.Fatalf("%s: %d bytes, in pieces %d", name, len(data), len(other))
		}
	}
	if name, _, ok := m.DebugLink(); ok && (name == "" || len(name) > size) {
		t.Fatalf("debug link %q", name)
	}
	for _, table := range []string{".symtab", ".dynsym"} {
		symbols, err := m.Symbols(table)
		if err != nil {
			continue
		}
		for s := range symbols {
			if len(s.Name) > size {
				t.Fatalf("name of %d bytes", len(s.Name))
			}
			_ = m.InCode(s)
		}
	}
	for _, s := range m.Segments() {
		if bias, ok := m.Bias(s.Vaddr, s.Offset); ok && bias&0xfff != 0 {
			t.Fatalf("bias %#x", bias)
		}
	}
}
