package cfi

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

const testHeader = uint64(0x4f_0000) // address of .eh_frame_hdr

// functions assembles n functions of testSize with gaps of testSize, in
// descending order, and the pairs of their search table.
func functions(b *builder, n uint64) (pairs [][2]uint64) {
	cie := absoluteCIE(b)
	for i := range n {
		start := testStart + 2*testSize*(n-1-i)
		off := b.fde(cie, start, testSize, uleb(0), cfaDefCFAOffset, uleb(i+1))
		pairs = append(pairs, [2]uint64{start, b.addr + off})
	}
	slices.Reverse(pairs)
	return pairs
}

// headerOf assembles .eh_frame_hdr with pairs of the encoding.
func headerOf(enc byte, write func(uint64) []byte, pairs [][2]uint64) []byte {
	base := uint64(0)
	if enc&peBase == peDataRel {
		base = testHeader
	}
	out := le(1, peUData4, peUData4, int(enc), uint32(testFrame), uint32(len(pairs)))
	for _, p := range pairs {
		if enc&peBase == pePCRel {
			out = append(out, write(p[0]-testHeader-uint64(len(out)))...)
			out = append(out, write(p[1]-testHeader-uint64(len(out)))...)
			continue
		}
		out = append(out, write(p[0]-base)...)
		out = append(out, write(p[1]-base)...)
	}
	return out
}

// checkFunctions looks up the functions and the gaps between them.
func checkFunctions(t *testing.T, table *Table, n uint64) {
	t.Helper()
	for i := range n {
		start := testStart + 2*testSize*i
		for _, pc := range []uint64{start, start + testSize - 1} {
			if f, err := table.Find(pc); err != nil || f.Start != start || f.End != start+testSize {
				t.Errorf("%#x: %#x..%#x, %v", pc, f.Start, f.End, err)
			}
		}
		for _, pc := range []uint64{start - 1, start + testSize} {
			if f, err := table.Find(pc); !errors.Is(err, ErrNoFDE) {
				t.Errorf("%#x: %#x..%#x, %v", pc, f.Start, f.End, err)
			}
		}
	}
	for _, pc := range []uint64{0, ^uint64(0)} {
		if _, err := table.Find(pc); !errors.Is(err, ErrNoFDE) {
			t.Errorf("%#x: %v", pc, err)
		}
	}
}

// TestHeader searches tables of every encoding, valid and unusable ones.
func TestHeader(t *testing.T) {
	const n = 37
	b := &builder{order: binary.LittleEndian, addr: testFrame}
	pairs := functions(b, n)
	all := formats(binary.LittleEndian)
	good := headerOf(peDataRel|peSData4, all[peSData4], pairs)
	with := func(change func(h []byte) []byte) []byte { return change(slices.Clone(good)) }
	shifted := slices.Clone(pairs)
	shifted[20][0]--
	first := le(uint32(pairs[0][0] - testHeader))
	for _, test := range []struct {
		name       string
		header     []byte
		searchable bool // also after the look-ups
	}{
		{"datarel sdata4", good, true},
		{"absptr", headerOf(peAbsPtr, all[peAbsPtr], pairs), true},
		{"udata4", headerOf(peUData4, all[peUData4], pairs), true},
		{"sdata8", headerOf(peSData8, all[peSData8], pairs), true},
		{"datarel udata8", headerOf(peDataRel|peUData8, all[peUData8], pairs), true},
		{"pcrel sdata4", headerOf(pePCRel|peSData4, all[peSData4], pairs), true},
		{"uleb", headerOf(peULEB, all[peULEB], pairs), false},
		{"sleb", headerOf(peDataRel|peSLEB, all[peSLEB], pairs), false},
		{"indirect", headerOf(peIndir|peUData4, all[peUData4], pairs), false},
		{"aligned", with(func(h []byte) []byte { h[3] = peAligned; return h }), false},
		{"no table", with(func(h []byte) []byte { h[3] = peOmit; return h }), false},
		{"no count", with(func(h []byte) []byte { h[2] = peOmit; return h }), false},
		{"empty table", with(func(h []byte) []byte { clear(h[8:12]); return h }), false},
		{"table of another section", with(func(h []byte) []byte { h[12+4] ^= 0x40; return h }), false},
		{"another start", headerOf(peUData4, all[peUData4], shifted), false},
		{"unsorted", with(func(h []byte) []byte { copy(h[12+8*20:], first); return h }), false},
		{"cut short", good[:len(good)-1], false},
		{"header cut short", good[:9], false},
		{"version", with(func(h []byte) []byte { h[0] = 2; return h }), false},
		{"absent", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			table := mustNew(t, Sections{
				EHFrameHdr: Section{testHeader, test.header}, EHFrame: b.section(), Arch: arch.AMD64,
			})
			checkFunctions(t, table, n)
			if table.Searchable() != test.searchable {
				t.Errorf("searchable: %v", table.Searchable())
			}
		})
	}
}

// TestDebugFrame finds FDEs of .debug_frame, 32 and 64 bits. FDEs of .eh_frame take precedence.
func TestDebugFrame(t *testing.T) {
	const n = 5
	for _, wide := range []bool{false, true} {
		for version := 1; version <= 4; version++ {
			b := &builder{order: binary.LittleEndian, debug: true, wide: wide}
			b.cie(9) // of an unknown version, passed over
			head := le(version, 0)
			if version == 4 {
				head = le(version, 0, 8, 0)
			}
			if version == 2 {
				continue // there is none
			}
			cie := b.cie(head, uleb(1), sleb(-8), 16, cfaDefCFA, uleb(7), uleb(8))
			b.fde(cie, uint64(0), testSize) // of a function that the linker dropped
			for i := range uint64(n) {
				b.fde(cie, testStart+2*testSize*i, testSize)
			}
			table := mustNew(t, Sections{DebugFrame: b.section(), Arch: arch.AMD64})
			checkFunctionsBut(t, table, n)
			if f, err := table.Find(testStart); err != nil || !f.InDebugFrame() {
				t.Errorf("version %d: %v", version, err)
			}
			eh := &builder{order: binary.LittleEndian, addr: testFrame}
			functions(eh, 1)
			both := mustNew(t, Sections{DebugFrame: b.section(), EHFrame: eh.section(), Arch: arch.AMD64})
			checkFunctionsBut(t, both, n)
			if f, err := both.Find(testStart); err != nil || f.InDebugFrame() {
				t.Errorf("version %d: %v", version, err)
			}
		}
	}
}

// checkFunctionsBut is checkFunctions for sections that also contain malformed entries. There, an uncovered address
// may belong to a malformed entry.
func checkFunctionsBut(t *testing.T, table *Table, n uint64) {
	t.Helper()
	for i := range n {
		start := testStart + 2*testSize*i
		if f, err := table.Find(start + 1); err != nil || f.Start != start {
			t.Errorf("%#x: %#x, %v", start, f.Start, err)
		}
	}
	if _, err := table.Find(testStart + testSize); !errors.Is(err, ErrNoFDE) {
		t.Errorf("gap: %v", err)
	}
}

// TestFDEs checks that FDEs yields the well-formed entries, and stops when the caller stops.
func TestFDEs(t *testing.T) {
	eh := &builder{order: binary.LittleEndian, addr: testFrame}
	functions(eh, 3)
	eh.data = append(eh.data, 0, 0, 0, 0) // a terminator between two object files' parts
	eh.fde(0, testStart+0x1_0000, uint64(0), uleb(0))
	eh.fde(1<<20, testStart+0x1_0000, testSize, uleb(0))
	eh.fde(absoluteCIE(eh), testStart+0x1_0000, testSize, uleb(0))
	eh.data = append(eh.data, 0xf0, 0xff, 0xff, 0xff, 1, 2, 3)
	debug := &builder{order: binary.LittleEndian, debug: true}
	debug.fde(debug.cie(1, 0, uleb(1), sleb(-8), 16), testStart+0x2_0000, testSize)
	table := mustNew(t, Sections{EHFrame: eh.section(), DebugFrame: debug.section(), Arch: arch.AMD64})
	var starts []uint64
	for f := range table.FDEs {
		starts = append(starts, f.Start-testStart)
	}
	if want := []uint64{0x400, 0x200, 0, 0x1_0000, 0x2_0000}; !slices.Equal(starts, want) {
		t.Errorf("%#x, want %#x", starts, want)
	}
	for stop := range starts {
		seen := 0
		for range table.FDEs {
			if seen++; seen > stop {
				break
			}
		}
		if seen != stop+1 {
			t.Errorf("%d FDEs after a stop at %d", seen, stop)
		}
	}
	if _, err := table.Find(testStart + 0x9_0000); !errors.Is(err, ErrBadCFI) {
		t.Errorf("what the malformed part may have covered: %v", err)
	}
}

// TestOverlap finds an address behind an FDE that lies within another FDE.
func TestOverlap(t *testing.T) {
	b := &builder{order: binary.LittleEndian, addr: testFrame}
	cie := absoluteCIE(b)
	b.fde(cie, testStart, testSize, uleb(0))
	b.fde(cie, testStart+0x20, uint64(0x10), uleb(0))
	table := mustNew(t, Sections{EHFrame: b.section(), Arch: arch.AMD64})
	for offset, want := range map[uint64]uint64{0x1f: 0, 0x20: 0x20, 0x2f: 0x20, 0x30: 0, 0xff: 0} {
		if f, err := table.Find(testStart + offset); err != nil || f.Start != testStart+want {
			t.Errorf("+%#x: %#x, %v", offset, f.Start, err)
		}
	}
}

// TestNew checks the errors and the defaults of New.
func TestNew(t *testing.T) {
	if _, err := New(Sections{Arch: arch.AMD64, AddrSize: 3}); !errors.Is(err, ErrBadCFI) {
		t.Error(err)
	}
	empty, err := New(Sections{Arch: arch.AMD64})
	if err != nil || !empty.Empty() {
		t.Error(err)
	}
	if _, err := empty.Row(1); !errors.Is(err, ErrNoFDE) {
		t.Error(err)
	}
	if arch.Host() != nil {
		if _, err := New(Sections{}); err != nil {
			t.Error(err)
		}
	}
}

// TestConcurrent looks up rows from many goroutines while index, CIE and row caches fill.
func TestConcurrent(t *testing.T) {
	const n = 500
	b := &builder{order: binary.LittleEndian, addr: testFrame}
	functions(b, n)
	table := mustNew(t, Sections{EHFrame: b.section(), Arch: arch.AMD64})
	var done sync.WaitGroup
	for g := range uint64(8) {
		done.Go(func() {
			for i := range uint64(4 * n) {
				k := (i*7 + g*131) % n
				row, err := table.Row(testStart + 2*testSize*k + g)
				if err != nil || row.CFA.Offset != int64(n-k) || len(row.Rules()) != 1 {
					t.Errorf("function %d: %s, %v", k, rowText(&row), err)
				}
			}
		})
	}
	done.Wait()
}
