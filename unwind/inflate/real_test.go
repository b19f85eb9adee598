package inflate

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"

	kzlib "github.com/klauspost/compress/zlib"

	"pg_stat_backtrace/internal/figure"
)

// stream is a compressed section of a file.
type stream struct {
	name string
	data []byte
	size uint64
}

// streamsOf returns the sections of a file that are compressed by zlib.
func streamsOf(t testing.TB, path string) []stream {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	whole, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = whole.Close() }()
	var all []stream
	for _, s := range f.Sections {
		const head = 24
		if s.Flags&elf.SHF_COMPRESSED == 0 || f.Class != elf.ELFCLASS64 || s.FileSize < head {
			continue
		}
		p := make([]byte, s.FileSize)
		if _, err := whole.ReadAt(p, int64(s.Offset)); err != nil {
			t.Fatal(err)
		}
		if elf.CompressionType(f.ByteOrder.Uint32(p)) == elf.COMPRESS_ZLIB {
			all = append(all, stream{s.Name, p[head:], f.ByteOrder.Uint64(p[8:])})
		}
	}
	return all
}

// installed are the debug files of this machine; those of Debian are compressed.
func installed(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("/usr/lib/debug/.build-id/*/*.debug")
	if err != nil {
		t.Fatal(err)
	}
	return append(files, filepath.SplitList(os.Getenv("PGSB_FIRST_FILES"))...)
}

// TestOracleInstalled expands every compressed section of the debug files of this machine, and damages each once; with
// the race detector, of every twentieth file.
func TestOracleInstalled(t *testing.T) {
	sections, size := 0, uint64(0)
	for n, file := range installed(t) {
		if n%20 != 0 && !thorough() {
			continue
		}
		for i, s := range streamsOf(t, file) {
			if !agree(t, file+" "+s.name, s.data, int(s.size)) {
				t.Fatalf("%s %s is not good", file, s.name)
			}
			sections, size = sections+1, size+s.size
			if s.size > 1<<20 {
				continue
			}
			at := binary.BigEndian.Uint32(s.data[len(s.data)-4:]) % uint32(len(s.data))
			s.data[at] ^= 1 << (i % 8)
			agree(t, file+" "+s.name+", damaged", s.data, int(s.size))
		}
	}
	if sections == 0 {
		t.Skip("no compressed debug file is installed (Debian: libc6-dbg)")
	}
	figure.Printf(t, "%d sections, %d MB: equal to compress/zlib's", sections, size>>20)
}

// BenchmarkExpand expands the largest section of the largest debug file of this machine, beside the other readers.
func BenchmarkExpand(b *testing.B) {
	var s stream
	for _, file := range installed(b) {
		for _, other := range streamsOf(b, file) {
			if other.size > s.size {
				s = other
			}
		}
	}
	if s.size == 0 {
		b.Skip("no compressed debug file is installed (Debian: libc6-dbg)")
	}
	readers := map[string]func() (io.Reader, error){
		"standard":  func() (io.Reader, error) { return zlib.NewReader(bytes.NewReader(s.data)) },
		"klauspost": func() (io.Reader, error) { return kzlib.NewReader(bytes.NewReader(s.data)) },
	}
	b.Run("own", func(b *testing.B) {
		b.SetBytes(int64(s.size))
		for b.Loop() {
			r := NewReader(bytes.NewReader(s.data), s.size)
			err := error(nil)
			for err == nil {
				_, err = r.Next()
			}
			if err != io.EOF { //nolint:errorlint // it is not wrapped
				b.Fatal(err)
			}
		}
	})
	for name, open := range readers {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(s.size))
			for b.Loop() {
				r, err := open()
				if err == nil {
					_, err = io.Copy(io.Discard, r)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
