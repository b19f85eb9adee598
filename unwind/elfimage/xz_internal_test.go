package elfimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"runtime"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"
)

// Compressed is for tests of both packages.
func Compressed(t testing.TB, p []byte, c xz.WriterConfig) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := c.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err = w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestUnxz(t *testing.T) {
	plain := bytes.Repeat([]byte("symbol table "), 10_000)
	for _, c := range []xz.WriterConfig{
		{CheckSum: xz.CRC32}, {CheckSum: xz.CRC64}, {CheckSum: xz.SHA256}, {NoCheckSum: true}, {BlockSize: 10_000},
		{DictCap: 1 << 16},
	} {
		p := Compressed(t, plain, c)
		got, err := unxz(p, len(plain))
		if err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%+v: %d bytes, %v", c, len(got), err)
		}
		if _, err := unxz(p, len(plain)-1); !errors.Is(err, errXZ) {
			t.Errorf("%+v: beyond the limit: %v", c, err)
		}
	}
	if got, err := unxz(blocks(0, nil), 0); err != nil || len(got) != 0 {
		t.Errorf("nothing: %q, %v", got, err)
	}
}

// TestUnxzRefuses damages one thing at a time.
func TestUnxzRefuses(t *testing.T) {
	good := Compressed(t, bytes.Repeat([]byte("symbol table "), 1000), xz.WriterConfig{CheckSum: xz.CRC32})
	size := int(good[xzHeader])*4 + 4 // of the block header
	header := good[xzHeader:][:size]
	at := bytes.IndexByte(header, filterLZMA2)
	for name, damage := range map[string]func(p []byte){
		"magic":       func(p []byte) { p[0] = 0 },
		"check type":  func(p []byte) { p[7] = 7; binary.LittleEndian.PutUint32(p[8:], crc32.ChecksumIEEE(p[6:8])) },
		"header":      func(p []byte) { p[xzHeader+2]++ },
		"filter":      func(p []byte) { p[xzHeader+at] = 3; sign(p[xzHeader:], size) },
		"dictionary":  func(p []byte) { p[xzHeader+at+2] = 40; sign(p[xzHeader:], size) },
		"content":     func(p []byte) { p[xzHeader+size+10]++ },
		"block flags": func(p []byte) { p[xzHeader+1] |= 1; sign(p[xzHeader:], size) },
	} {
		p := bytes.Clone(good)
		damage(p)
		if _, err := unxz(p, 1<<20); !errors.Is(err, errXZ) {
			t.Errorf("%s: %v", name, err)
		}
	}
	footer := good[len(good)-12:]
	index := len(good) - 12 - (int(binary.LittleEndian.Uint32(footer[4:]))+1)*4
	for n := range index {
		if _, err := unxz(good[:n], 1<<20); !errors.Is(err, errXZ) {
			t.Errorf("%d of %d bytes: %v", n, len(good), err)
		}
	}
}

// blocks makes a stream, without checks and up to its index, of n blocks. Each declares a dictionary of 64 MiB and has
// one uncompressed chunk of that content, or no chunk.
func blocks(n int, content []byte) []byte {
	p := []byte("\xfd7zXZ\x00\x00\x00")
	p = binary.LittleEndian.AppendUint32(p, crc32.ChecksumIEEE(p[6:]))
	block := []byte{2, 0, filterLZMA2, 1, 28, 0, 0, 0, 0, 0, 0, 0}
	sign(block, len(block))
	if len(content) > 0 {
		block = append(binary.BigEndian.AppendUint16(append(block, 1), uint16(len(content)-1)), content...)
	}
	for block = append(block, 0); len(block)%4 != 0; {
		block = append(block, 0)
	}
	return append(append(p, bytes.Repeat(block, n)...), 0)
}

// TestUnxzBlocks checks that unxz refuses blocks without content and too many blocks. The dictionaries take no more
// memory than the contents.
func TestUnxzBlocks(t *testing.T) {
	for _, c := range []struct {
		name    string
		blocks  int
		content string
		refused bool
	}{
		{"empty", 10_000, "", true},
		{"one empty", 1, "", true},
		{"many", maxBlocks, "many", false},
		{"too many", maxBlocks + 1, "many", true},
	} {
		p := blocks(c.blocks, []byte(c.content))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := unxz(p, 1<<20)
		runtime.ReadMemStats(&after)
		if c.refused != errors.Is(err, errXZ) || !c.refused && string(got) != strings.Repeat(c.content, c.blocks) {
			t.Errorf("%s: %d bytes, %v", c.name, len(got), err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 32<<20 {
			t.Errorf("%s: %d bytes allocated", c.name, n)
		}
	}
}

// sign puts the right checksum on a block header.
func sign(header []byte, size int) {
	binary.LittleEndian.PutUint32(header[size-4:], crc32.ChecksumIEEE(header[:size-4]))
}

// FuzzUnxz either refuses foreign bytes or stays inside the limit.
func FuzzUnxz(f *testing.F) {
	f.Add(Compressed(f, []byte("abcdabcdabcdabcd"), xz.WriterConfig{NoCheckSum: true}), uint16(100))
	f.Add(Compressed(f, []byte("abcdabcdabcdabcd"), xz.WriterConfig{BlockSize: 8}), uint16(100))
	f.Fuzz(func(t *testing.T, p []byte, limit uint16) {
		out, err := unxz(p, int(limit))
		if err != nil && (out != nil || !errors.Is(err, errXZ)) || len(out) > int(limit) {
			t.Fatalf("%d bytes, %v", len(out), err)
		}
	})
}
