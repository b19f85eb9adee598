package golang

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// flatProgram is memory that begins at 4096.
type flatProgram []byte

func (m flatProgram) read(addr uint64, p []byte) bool {
	off := addr - 4096
	if addr < 4096 || off > uint64(len(m)) || uint64(len(m))-off < uint64(len(p)) {
		return false
	}
	copy(p, m[off:])
	return true
}

// sample is memory with a list of two goroutines, the second of them dead, and the reasons for which they wait.
func sample(l *Layout) flatProgram {
	m := make(flatProgram, 4096)
	put := func(addr, v uint64) { binary.LittleEndian.PutUint64(m[addr-4096:], v) }
	const list, array, first, second, table, text = 4096, 4160, 4224, 4800, 5600, 6000
	put(list, array)
	put(list+8, 2)
	put(list+16, 4)
	put(list+24, array) // runtime.allgptr
	put(array, first)
	put(array+8, second)
	put(first+offStackLow, 7000)
	put(first+offStackHigh, 8000)
	put(first+offSP, 7500)
	put(first+offPC, 0x401000)
	put(first+offSelf, first)
	put(first+uint64(l.Status), uint64(Waiting|scanned))
	put(first+uint64(l.ID), 7)
	put(first+uint64(l.Reason), 2)
	put(second+offSelf, second)
	put(second+uint64(l.Status), uint64(Dead))
	put(table+16, text)
	put(table+24, uint64(len(firstReason)))
	put(table+32, text+100)
	put(table+40, uint64(len(secondReason)))
	copy(m[text-4096:], firstReason)
	copy(m[text+100-4096:], secondReason)
	return m
}

// TestFind finds the list where there are no symbols.
func TestFind(t *testing.T) {
	for version := oldest; version <= newest; version++ {
		l, err := LayoutOf("go1." + string([]byte{byte('0' + version/10), byte('0' + version%10)}))
		if err != nil {
			t.Fatal(err)
		}
		m := sample(&l)
		p := Program{Order: binary.LittleEndian, Layout: l, Writable: []Segment{{Addr: 4096, Data: m}}}
		r, err := NewRuntime(&p, m.read)
		if err != nil {
			t.Fatal(err)
		}
		all, err := r.All(m.read)
		if err != nil || len(all) != 2 || r.List() != 4096 {
			t.Fatalf("%v at 0x%x: %v", all, r.List(), err)
		}
		b := make([]byte, r.Size())
		m.read(all[0], b)
		g, err := r.Decode(all[0], b)
		if err != nil || g.ID != 7 || g.State() != secondReason || g.SP != 7500 || g.PC != 0x401000 || !g.Status.Exists() {
			t.Errorf("%+v, %v", g, err)
		}
		b[offSelf]++
		if g, err := r.Decode(all[0], b); err == nil {
			t.Errorf("another one's structure is taken: %+v", g)
		}
		m.read(all[1], b)
		if g, err := r.Decode(all[1], b); err != nil || g.Status.Exists() {
			t.Errorf("%+v, %v", g, err)
		}
	}
}

// TestFindBounded checks that a program with many slices that look like the list is not examined without end.
func TestFindBounded(t *testing.T) {
	const slices, arrays = 10000, 1 << 20
	l := runtimeLayouts[newest]
	m := sample(&l)
	first := binary.LittleEndian.Uint64(m[64:])
	var heads []byte
	for i := range uint64(slices) {
		for _, word := range []uint64{arrays + 8*i, 1, 1} {
			heads = binary.LittleEndian.AppendUint64(heads, word)
		}
	}
	reads := 0
	read := func(addr uint64, p []byte) bool {
		reads++
		if addr >= arrays && addr < arrays+8*slices && len(p) == 8 {
			binary.LittleEndian.PutUint64(p, first)
			return true
		}
		return m.read(addr, p)
	}
	p := Program{Order: binary.LittleEndian, Layout: l, Writable: []Segment{{Addr: 1 << 30, Data: heads}}}
	if _, err := NewRuntime(&p, read); !errors.Is(err, ErrNotFound) || reads > slices {
		t.Errorf("%d reads, %v", reads, err)
	}
}

// TestFindBoundsReads checks that the reads of a search are bounded, not only the slices: each of these slices has many
// pointers to memory of zeros, which looks like ended goroutines, and then a wrong pointer.
func TestFindBoundsReads(t *testing.T) {
	const array, structures, length, most = 1 << 40, 1 << 41, 1 << 14, 1 << 16
	var heads []byte
	for range 100 {
		for _, word := range []uint64{array, length, length} {
			heads = binary.LittleEndian.AppendUint64(heads, word)
		}
	}
	reads := 0
	read := func(addr uint64, p []byte) bool {
		reads++
		clear(p)
		if addr >= structures {
			return true
		}
		for off := 0; off+8 <= len(p); off += 8 {
			binary.LittleEndian.PutUint64(p[off:], structures+addr-array+uint64(off))
		}
		if len(p) == 8*length {
			p[len(p)-8] = 1
		}
		return true
	}
	left := most
	p := Program{
		Order: binary.LittleEndian, Layout: runtimeLayouts[newest], Writable: []Segment{{Addr: 1 << 30, Data: heads}}, Left: &left,
	}
	for range 2 { // a process may have several programs
		if _, err := NewRuntime(&p, read); !errors.Is(err, ErrNotFound) || reads != most {
			t.Errorf("%d reads, %v", reads, err)
		}
	}
}

// TestVersions checks that an unknown version gives no layout.
func TestVersions(t *testing.T) {
	for version, want := range map[string]int{
		"go1.16": 16, "go1.16.15": 16, "go1.20rc1": 20, "go1.26.8": 26, "go1.24.1 X:nocoverageredesign": 24,
		"go1.15.15": 0, "go1.27": 0, "go2.1": 0, "": 0, "go1.": 0, "devel go1.26-0123456": 0, "go1.26-devel_0123456": 0,
		"go1.99999999999999999999": 0,
	} {
		_, err := LayoutOf(version)
		if (err == nil) != (want != 0) {
			t.Errorf("%q: %v", version, err)
		}
		if minor, ok := Minor(version); want != 0 && (!ok || minor != want) {
			t.Errorf("%q is 1.%d", version, minor)
		}
	}
}

// FuzzNew looks for goroutines in any memory.
func FuzzNew(f *testing.F) {
	for version := range runtimeLayouts {
		l := runtimeLayouts[version]
		f.Add([]byte(sample(&l)), uint8(version))
	}
	f.Fuzz(func(t *testing.T, data []byte, version uint8) {
		l, ok := runtimeLayouts[int(version)]
		if !ok || len(data) > 1<<16 {
			return
		}
		m := flatProgram(bytes.Clone(data))
		p := Program{Order: binary.LittleEndian, Layout: l, Writable: []Segment{{Addr: 4096, Data: m}}}
		r, err := NewRuntime(&p, m.read)
		if err != nil {
			return
		}
		all, err := r.All(m.read)
		if err != nil {
			t.Fatalf("the list was found and cannot be read: %v", err)
		}
		b := make([]byte, r.Size())
		for _, addr := range all {
			if m.read(addr, b) {
				g, err := r.Decode(addr, b)
				if err == nil && g.Status.Exists() && (g.ID == 0 || g.StackLow >= g.StackHigh) {
					t.Errorf("%+v", g)
				}
			}
			_, _ = r.Thread(b)
		}
	})
}

// FuzzVersion reads any section.
func FuzzVersion(f *testing.F) {
	inline := append([]byte(buildInfoMagic), 8, 2)
	inline = append(inline, make([]byte, 16)...)
	f.Add(append(append(inline, 8), "go1.26.8"...))
	f.Add(append([]byte(buildInfoMagic), make([]byte, 40)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		if v := Version(data, binary.LittleEndian, flatProgram(data).read); len(v) > maxVersion {
			t.Errorf("%q", v)
		}
	})
}
