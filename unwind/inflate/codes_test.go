package inflate

import (
	"bytes"
	"compress/flate"
	"io"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// writer writes deflated data bit by bit.
type writer struct {
	out []byte
	n   int
}

// put writes the low n bits of v, the lowest first.
func (w *writer) put(v uint64, n int) {
	for i := range n {
		if w.n%8 == 0 {
			w.out = append(w.out, 0)
		}
		w.out[w.n/8] |= byte(v>>i&1) << (w.n % 8)
		w.n++
	}
}

// codesOf assigns codes by their lengths as RFC 1951 §3.2.2 says, the first bit lowest.
func codesOf(lens []uint8) []uint64 {
	codes := make([]uint64, len(lens))
	code := uint64(0)
	for n := 1; n <= maxCode; n++ {
		code <<= 1
		for symbol, l := range lens {
			if int(l) == n {
				codes[symbol] = bits.Reverse64(code << (64 - n))
				code++
			}
		}
	}
	return codes
}

// dynamic begins a dynamic block. The lengths of codes are written one by one, each in four bits.
func (w *writer) dynamic(last bool, lits, dists []uint8) {
	final := uint64(0)
	if last {
		final = 1
	}
	w.put(final|2<<1, 3)
	w.put(uint64(len(lits)-257), 5)
	w.put(uint64(len(dists)-1), 5)
	w.put(19-4, 4)
	var lens [19]uint8
	for i := range 16 {
		lens[i] = 4
	}
	for _, symbol := range lengthOrder {
		w.put(uint64(lens[symbol]), 3)
	}
	codes := codesOf(lens[:])
	for _, n := range append(append([]uint8{}, lits...), dists...) {
		w.put(codes[n], 4)
	}
}

// stored writes a stored block of n times 'x'.
func (w *writer) stored(last bool, n int) {
	final := uint64(0)
	if last {
		final = 1
	}
	w.put(final, 3)
	w.put(0, (8-w.n%8)%8)
	w.put(uint64(n), 16)
	w.put(uint64(^uint16(n)), 16)
	w.out = append(w.out, bytes.Repeat([]byte("x"), n)...)
	w.n += 8 * n
}

// fixed writes a fixed block of n times 'y'.
func (w *writer) fixed(last bool, n int) {
	final := uint64(0)
	if last {
		final = 1
	}
	w.put(final|1<<1, 3)
	for range n {
		w.put(bits.Reverse64(uint64('y'+0b110000)<<56), 8)
	}
	w.put(0, 7)
}

// randomLengths makes a complete code for some of count symbols, by splitting leaves of a tree at random; the symbol
// must is among them. deep prefers to split deep ones.
func randomLengths(r *rand.Rand, count, must int, deep bool) []uint8 {
	leaves := []uint8{1, 1}
	for want := 2 + r.IntN(count-1); len(leaves) < min(want, count); {
		i := r.IntN(len(leaves))
		if deep && r.IntN(8) > 0 {
			i = len(leaves) - 1
		}
		if leaves[i] == maxCode {
			if i = slices.IndexFunc(leaves, func(n uint8) bool { return n < maxCode }); i < 0 {
				break
			}
			deep = false
		}
		leaves[i]++
		leaves = append(leaves, leaves[i])
	}
	lens := make([]uint8, count)
	order := r.Perm(count)
	for i, n := range order {
		if n == must {
			order[0], order[i] = order[i], order[0]
		}
	}
	for i, n := range leaves {
		lens[order[i]] = n
	}
	return lens
}

// symbols writes random symbols that have codes, and the end of the block.
func (w *writer) symbols(r *rand.Rand, lits, dists []uint8, written int) int {
	litCodes, distCodes := codesOf(lits), codesOf(dists)
	for range r.IntN(400) {
		symbol := r.IntN(len(lits))
		if lits[symbol] == 0 || symbol == 256 {
			continue
		}
		if symbol < 256 {
			w.put(litCodes[symbol], int(lits[symbol]))
			written++
			continue
		}
		dist := r.IntN(len(dists))
		e, f := litEntries[symbol], distEntries[dist]
		if dists[dist] == 0 || int(f>>16) > written && r.IntN(500) > 0 { // seldom before the start
			continue
		}
		w.put(litCodes[symbol], int(lits[symbol]))
		extra := r.Uint64()
		w.put(extra, int(e&0xff))
		w.put(distCodes[dist], int(dists[dist]))
		w.put(0, int(f&0xff))
		written += int(e>>16) + int(extra&(1<<(e&0xff)-1))
	}
	w.put(litCodes[256], int(lits[256]))
	return written
}

// agreeDeflated frames deflated data and compares with the standard library.
func agreeDeflated(t *testing.T, what string, deflated []byte) bool {
	t.Helper()
	const most = 1 << 20
	content, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(deflated)), most+1))
	if len(content) > most {
		return false
	}
	if err != nil { // whatever is said of the size
		for _, size := range []int{len(content), len(content) + 1, most} {
			agree(t, what, framed(deflated, content), size)
		}
		return false
	}
	rest := bytes.NewReader(deflated)
	if _, err := io.Copy(io.Discard, flate.NewReader(rest)); err != nil {
		t.Fatal(err)
	}
	return agree(t, what, framed(deflated[:len(deflated)-rest.Len()], content), len(content))
}

// TestRandomCodes expands blocks of random codes, most of them such as no compressor would choose: with codes of all
// lengths up to 15 bits, so that the tables are split. Of every third one a length is changed: that gives codes with
// too many or too few members.
func TestRandomCodes(t *testing.T) {
	r := random(5)
	good, bad := 0, 0
	tries := 3000
	if !thorough() {
		tries = 300
	}
	for i := range tries {
		w := &writer{}
		written := i % 2 * history
		if written > 0 { // then matches of the largest distances can be written
			w.stored(false, written)
		}
		for blocks := 1 + r.IntN(3); blocks > 0; blocks-- {
			lits := randomLengths(r, 257+r.IntN(maxLit-256), 256, r.IntN(2) > 0)
			dists := []uint8{uint8(r.IntN(2))} // one code of one bit, or none
			if n := 1 + r.IntN(maxDist); n > 1 {
				dists = randomLengths(r, n, 0, r.IntN(2) > 0)
			}
			if i%3 == 0 {
				lits[r.IntN(len(lits))] = uint8(r.IntN(16))
				dists[r.IntN(len(dists))] = uint8(r.IntN(16))
			}
			w.dynamic(blocks == 1, lits, dists)
			written = w.symbols(r, lits, dists, written)
		}
		if agreeDeflated(t, "random codes", w.out) {
			good++
		} else {
			bad++
		}
	}
	t.Logf("%d good streams, %d bad ones", good, bad)
	if good < tries/3 || bad < tries/6 {
		t.Error("too few")
	}
}

// TestBlocks mixes blocks of all kinds, whose ends fall on all places of the buffers.
func TestBlocks(t *testing.T) {
	r := random(9)
	tries := 200
	if !thorough() {
		tries = 10
	}
	good := 0
	for range tries {
		w := &writer{}
		written := 0
		for written < 3*outSize {
			switch n := r.IntN(1 << 16); r.IntN(4) {
			case 0:
				w.fixed(false, n>>4)
				written += n >> 4
			case 1:
				lits, dists := randomLengths(r, maxLit, 256, true), randomLengths(r, maxDist, 0, false)
				w.dynamic(false, lits, dists)
				written = w.symbols(r, lits, dists, written)
			default:
				w.stored(false, n)
				written += n
			}
		}
		w.fixed(true, 1)
		if agreeDeflated(t, "blocks", w.out) {
			good++
		}
	}
	if good < tries/2 {
		t.Errorf("%d of %d are good", good, tries)
	}
	w := &writer{} // fixed codes after others
	w.fixed(false, 3)
	lits, dists := randomLengths(r, maxLit, 256, true), randomLengths(r, maxDist, 0, false)
	w.dynamic(false, lits, dists)
	w.put(codesOf(lits)[256], int(lits[256]))
	w.fixed(true, 3)
	if !agreeDeflated(t, "fixed, dynamic, fixed", w.out) {
		t.Error("not good")
	}
}

// TestBeforeStart: a match that reaches before the start is an error, even if what is there could be guessed.
func TestBeforeStart(t *testing.T) {
	lens := make([]uint8, maxLit)
	lens['a'], lens['b'], lens[256], lens[257] = 2, 2, 2, 2
	w := &writer{}
	w.dynamic(true, lens, []uint8{1})
	w.put(0b01_0_11, 5)
	if agree(t, "zeros", framed(w.out, make([]byte, 3)), 3) {
		t.Error("good")
	}
}

// TestLongCodes: two literals and a match may take more bits than there are at a time.
func TestLongCodes(t *testing.T) {
	lits, dists := make([]uint8, maxLit), make([]uint8, maxDist)
	for n := range 10 {
		lits['A'+n] = uint8(n + 1)
	}
	lits['a'], lits[256], lits[257] = litBits, litBits+1, litBits+1
	for n := range 14 {
		dists[n] = uint8(n + 1)
	}
	dists[28], dists[29] = maxCode, maxCode
	litCodes, distCodes := codesOf(lits), codesOf(dists)
	w := &writer{}
	w.stored(false, history)
	w.dynamic(true, lits, dists)
	for range 100 {
		w.put(litCodes['a'], int(lits['a']))
		w.put(litCodes['a'], int(lits['a']))
		w.put(litCodes[257], int(lits[257]))
		w.put(distCodes[29], maxCode)
		w.put(1234, 13)
	}
	w.put(litCodes[256], int(lits[256]))
	if !agreeDeflated(t, "long codes", w.out) {
		t.Error("not good")
	}
}

// TestCodes tries codes at the edge of what is allowed.
func TestCodes(t *testing.T) {
	lits := func(of map[int]uint8) []uint8 {
		lens := make([]uint8, maxLit)
		for symbol, n := range of {
			lens[symbol] = n
		}
		return lens
	}
	for name, c := range map[string]struct {
		lits, dists []uint8
		symbols     func(w *writer)
		good        bool
	}{
		"one literal": {
			lits(map[int]uint8{'a': 1, 256: 1}), []uint8{0}, func(w *writer) { w.put(0b1000, 4) }, true,
		},
		"only the end":                   {lits(map[int]uint8{256: 1}), []uint8{0}, func(w *writer) { w.put(0, 1) }, true},
		"only the end, by the other bit": {lits(map[int]uint8{256: 1}), []uint8{0}, func(w *writer) { w.put(1, 1) }, false},
		"no end":                         {lits(map[int]uint8{'a': 1}), []uint8{0}, func(w *writer) { w.put(0, 8) }, false},
		"no codes":                       {lits(nil), []uint8{0}, func(w *writer) { w.put(0, 8) }, false},
		"one code of two bits":           {lits(map[int]uint8{256: 2}), []uint8{0}, func(w *writer) { w.put(0, 2) }, false},
		"too many": {
			lits(map[int]uint8{'a': 1, 'b': 1, 256: 1}), []uint8{0}, func(w *writer) { w.put(0, 8) }, false,
		},
		"288 codes": {
			append(lits(map[int]uint8{'a': 1, 256: 1}), 0, 0), []uint8{0}, func(w *writer) { w.put(1, 1) }, false,
		},
		"32 distances": {
			lits(map[int]uint8{'a': 1, 256: 1}), make([]uint8, 32), func(w *writer) { w.put(1, 1) }, false,
		},
		"288 codes, 32 distances": {
			append(lits(map[int]uint8{'a': 1, 256: 1}), 0, 0), make([]uint8, 32), func(w *writer) { w.put(1, 1) }, false,
		},
		"30 distances, none used": {
			lits(map[int]uint8{'a': 1, 256: 1}), make([]uint8, 30), func(w *writer) { w.put(1, 1) }, true,
		},
		"a match without distances": {
			lits(map[int]uint8{'a': 2, 'b': 2, 256: 2, 257: 2}), []uint8{0}, func(w *writer) { w.put(0b01_11_00, 7) }, false,
		},
		"a match with the only distance": {
			lits(map[int]uint8{'a': 2, 'b': 2, 256: 2, 257: 2}), []uint8{1}, func(w *writer) { w.put(0b01_0_11_00, 7) }, true,
		},
		"a match with the other distance": {
			lits(map[int]uint8{'a': 2, 'b': 2, 256: 2, 257: 2}), []uint8{1}, func(w *writer) { w.put(0b01_1_11_00, 7) }, false,
		},
		"a match before the start": {
			lits(map[int]uint8{'a': 2, 'b': 2, 256: 2, 257: 2}), []uint8{1}, func(w *writer) { w.put(0b01_0_11, 5) }, false,
		},
	} {
		w := &writer{}
		w.dynamic(true, c.lits, c.dists)
		c.symbols(w)
		if good := agreeDeflated(t, name, w.out); good != c.good {
			t.Errorf("%s: good %t", name, good)
		}
	}
}

// TestBits tries what begins a block.
func TestBits(t *testing.T) {
	for name, c := range map[string][]uint64{ // value and bits
		"fixed, only the end": {0b011, 3, 0, 7},
		"fixed, distance 30":  {0b011, 3, 0b00001100, 8, 0b1000000, 7, 0b01111, 5, 0, 12},
		"fixed, length 286":   {0b011, 3, 0b01100011, 8, 0, 12}, "type 3": {0b111, 3, 0, 12},
		"stored, empty": {1, 8, 0, 16, 0xffff, 16}, "stored, lengths that differ": {1, 8, 1, 16, 0xffff, 16, 0, 8},
		"a repeated length before the first": {0b101, 3, 0, 5, 0, 5, 0, 4, 0b001_001, 6, 0, 6, 0, 64},
		"286 codes and more":                 {0b101, 3, 30, 5, 0, 5, 0, 4, 0, 64},
		"31 distances":                       {0b101, 3, 0, 5, 30, 5, 0, 4, 0, 64},
	} {
		w := &writer{}
		for i := 0; i < len(c); i += 2 {
			w.put(c[i], int(c[i+1]))
		}
		good := agreeDeflated(t, name, w.out)
		if want := name == "fixed, only the end" || name == "stored, empty"; good != want {
			t.Errorf("%s: good %t", name, good)
		}
	}
}

// FuzzDeflated compares what is made of any deflated data with what the standard library makes of it.
func FuzzDeflated(f *testing.F) {
	r := random(7)
	for range 8 {
		w := &writer{}
		lits, dists := randomLengths(r, maxLit, 256, true), randomLengths(r, maxDist, 0, true)
		w.dynamic(true, lits, dists)
		w.symbols(r, lits, dists, 0)
		f.Add(w.out)
	}
	for _, level := range []int{0, 1, 9} {
		stream := compressed(f, []byte("a stream, a stream, another stream"), level)
		f.Add(stream[2 : len(stream)-4])
	}
	f.Fuzz(func(t *testing.T, p []byte) { agreeDeflated(t, "fuzz", p) })
}

// FuzzStream does so with whole streams and sizes.
func FuzzStream(f *testing.F) {
	for _, level := range []int{0, 1, 9} {
		f.Add(compressed(f, []byte("a stream, a stream, another stream"), level), uint32(34))
	}
	f.Fuzz(func(t *testing.T, p []byte, size uint32) {
		if size <= 1<<20 {
			agree(t, "fuzz", p, int(size))
		}
	})
}
