package inflate

import (
	"bytes"
	"compress/flate"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"hash/adler32"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

// thorough tells whether tests take the time to try all they can.
func thorough() bool { return !raceEnabled || os.Getenv("PGSB_ORACLE_SLOW") != "" }

// random makes the same numbers each time.
func random(seed uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // no secrets
}

// reference is what compress/zlib makes of a stream; false if that is an error, or not of that size.
func reference(stream []byte, size int) ([]byte, bool) {
	r, err := zlib.NewReader(bytes.NewReader(stream))
	if err != nil {
		return nil, false
	}
	p, err := io.ReadAll(io.LimitReader(r, int64(size)+1))
	return p, err == nil && len(p) == size
}

// pieces expands a stream by Next.
func pieces(src io.Reader, size int) ([]byte, error) {
	r := NewReader(src, uint64(size))
	var all []byte
	for {
		p, err := r.Next()
		all = append(all, p...)
		if err != nil {
			if _, again := r.Next(); again != err { //nolint:errorlint // it must be the very same
				return nil, errors.New("the error does not stay")
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return all, err
		}
	}
}

// agree expands a stream in every way and compares with compress/zlib. It reports whether the stream was good.
func agree(t *testing.T, what string, stream []byte, size int) bool {
	t.Helper()
	want, good := reference(stream, size)
	all, err := All(bytes.NewReader(stream), uint64(len(stream)), uint64(size))
	compare(t, what+", all", all, err, want, good)
	p, err := pieces(bytes.NewReader(stream), size)
	compare(t, what+", pieces", p, err, want, good)
	p, err = pieces(iotest.DataErrReader(iotest.HalfReader(bytes.NewReader(stream))), size)
	compare(t, what+", halves", p, err, want, good)
	return good
}

func compare(t *testing.T, what string, got []byte, err error, want []byte, good bool) {
	t.Helper()
	switch {
	case err != nil && !errors.Is(err, ErrCorrupt):
		t.Fatalf("%s: %v", what, err)
	case (err == nil) != good:
		t.Fatalf("%s: error %v; compress/zlib finds it good: %t", what, err, good)
	case good && !bytes.Equal(got, want):
		t.Fatalf("%s: %d bytes differ from compress/zlib's %d", what, len(got), len(want))
	}
}

// compressed makes a stream of data.
func compressed(t testing.TB, data []byte, level int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zlib.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// framed adds what a zlib stream has besides the deflated data, which expand to content.
func framed(deflated, content []byte) []byte {
	return binary.BigEndian.AppendUint32(append([]byte{0x78, 0x9c}, deflated...), adler32.Checksum(content))
}

// kinds are bytes of different nature.
var kinds = map[string]func(r *rand.Rand, p []byte){
	"zeros": func(*rand.Rand, []byte) {},
	"noise": func(r *rand.Rand, p []byte) {
		for i := range p {
			p[i] = byte(r.Uint32())
		}
	},
	"few letters": func(r *rand.Rand, p []byte) {
		for i := range p {
			p[i] = "etaoin shrdlu"[r.IntN(13)]
		}
	},
	"repeats": func(r *rand.Rand, p []byte) { // near and far, also at distances below 8
		for i := 0; i < len(p); {
			if i > 0 && r.IntN(3) > 0 {
				from := i - 1 - r.IntN(min(i, 1<<r.IntN(16)))
				for n := r.IntN(300); n > 0 && i < len(p); n-- {
					p[i] = p[from]
					i, from = i+1, from+1
				}
				continue
			}
			p[i] = byte(r.Uint32())
			i++
		}
	},
	"skewed": func(r *rand.Rand, p []byte) { // codes of very different lengths
		for i := range p {
			p[i] = byte(r.ExpFloat64() * 8)
		}
	},
}

// TestLevels expands what the standard library's writer makes of data of every kind and size, at every level, and
// damages it.
func TestLevels(t *testing.T) {
	r := random(1)
	for kind, fill := range kinds {
		for _, size := range []int{0, 1, 2, 7, 300, history + 1, outLimit, 200_000} {
			data := make([]byte, size)
			fill(r, data)
			for _, level := range []int{flate.HuffmanOnly, 0, 1, 9} {
				if size > 300 && level != 9 && !thorough() {
					continue
				}
				stream := compressed(t, data, level)
				if !agree(t, kind, stream, size) {
					t.Fatalf("%s, %d bytes at level %d: not good", kind, size, level)
				}
				if size > 300 && !thorough() {
					continue
				}
				agree(t, kind+" too short", stream, size+1)
				if size > 0 {
					agree(t, kind+" too long", stream, size-1)
				}
				agree(t, kind+" and more behind", append(stream, "more"...), size)
				agree(t, kind+" cut", stream[:r.IntN(len(stream))], size)
				agree(t, kind+" without checksum", stream[:len(stream)-1], size)
				damaged := bytes.Clone(stream)
				damaged[r.IntN(len(damaged))] ^= 1 << r.IntN(8)
				agree(t, kind+" damaged", damaged, size)
			}
		}
	}
}

// TestEveryByte damages and cuts a small stream at every place.
func TestEveryByte(t *testing.T) {
	data := []byte(strings.Repeat("It is not what it was. ", 5) + "But it will be.")
	stream := compressed(t, data, 9)
	for i := range stream {
		agree(t, "cut", stream[:i], len(data))
		for bit := range 8 {
			damaged := bytes.Clone(stream)
			damaged[i] ^= 1 << bit
			agree(t, "damaged", damaged, len(data))
		}
	}
}

// TestHeaders tries every pair of first bytes.
func TestHeaders(t *testing.T) {
	stream := compressed(t, []byte("x"), 6)
	good, step := 0, 1
	if !thorough() {
		step = 31 // those whose check is right, and a few others
	}
	for first := 0; first < 1<<16; first += step {
		binary.BigEndian.PutUint16(stream, uint16(first))
		want, ok := reference(stream, 1)
		got, err := All(bytes.NewReader(stream), uint64(len(stream)), 1)
		compare(t, "header", got, err, want, ok)
		if ok {
			good++
		}
	}
	if good != 8*4 { // windows and levels
		t.Errorf("%d headers are good", good)
	}
}

// TestReadError hands on what the source says.
func TestReadError(t *testing.T) {
	stream := compressed(t, make([]byte, 1000), 0)
	broken := errors.New("broken")
	for _, n := range []int{0, 1, 500} {
		src := io.MultiReader(bytes.NewReader(stream[:n]), iotest.ErrReader(broken))
		if _, err := pieces(src, 1000); !errors.Is(err, broken) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

// TestMemory promises 200 MB that a few bytes cannot hold.
func TestMemory(t *testing.T) {
	stream := compressed(t, make([]byte, 1000), 9)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := All(bytes.NewReader(stream), uint64(len(stream)), 200<<20); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes allocated", n)
	}
}

func TestAdler(t *testing.T) {
	r := random(3)
	for n := range 500 {
		p := make([]byte, n+r.IntN(1<<r.IntN(15)))
		for i := range p {
			if p[i] = 0xff; n%2 == 0 {
				p[i] = byte(r.Uint32())
			}
		}
		var a adler
		cut := r.IntN(len(p) + 1)
		a.add(p[:cut])
		a.add(p[cut:])
		if a.value() != adler32.Checksum(p) {
			t.Fatalf("%d bytes: %08x, not %08x", len(p), a.value(), adler32.Checksum(p))
		}
	}
}
