package plan

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"pg_stat_backtrace/worker/pg/layout"
)

// sortMemory is the memory of a Sort node and of its Tuplesortstate.
type sortMemory struct {
	garbage

	layout *layout.Layout
	state  uint64 // of the Tuplesortstate
}

const sortNode = 1 << 20

func newSortMemory(t *testing.T, major int) *sortMemory {
	t.Helper()
	l, ok := layout.Of(major)
	if !ok {
		t.Fatalf("version %d", major)
	}
	const size, state = 4096, sortNode + 2048
	m := &sortMemory{garbage: garbage{start: sortNode, data: make([]byte, size)}, layout: l, state: state}
	m.put(sortNode, l.SortState.Tuplesortstate, 8, state)
	for _, v := range []struct {
		at          layout.Offset
		size, value int
	}{
		{l.Tuplesortstate.Status, 4, sortInitial}, {l.Tuplesortstate.AvailMem, 8, 1 << 20}, {l.Tuplesortstate.AllowedMem, 8, 4 << 20},
		{l.Tuplesortstate.Memtupcount, 4, 700}, {l.Tuplesortstate.Memtupsize, 4, 1024},
	} {
		m.put(state, v.at, v.size, int64(v.value))
	}
	return m
}

// put writes a member of a structure.
func (m *sortMemory) put(structure uint64, at layout.Offset, size int, value int64) {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(value))
	copy(m.data[structure+at.Uint64()-m.start:], b[:size]) // of little-endian machines
}

func (m *sortMemory) stack() *Stack {
	return &Stack{Major: m.layout.Major, Data: []Range{{m.start, m.start + uint64(len(m.data))}}}
}

// TestSortFigures: the state of a sort is printed only if its numbers agree with each other.
func TestSortFigures(t *testing.T) {
	t.Parallel()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the memory of this test is that of a little-endian machine")
	}
	for major := oldestMajor; major <= newestMajor; major++ {
		l, _ := layout.Of(major)
		s := &l.Tuplesortstate
		if !s.Status.Known() {
			t.Logf("version %d: the structure is not known", major)
			continue
		}
		for name, c := range map[string]struct {
			change func(m *sortMemory)
			want   []Figure
		}{
			"rows in memory": {func(*sortMemory) {}, []Figure{
				{"Sort Phase", "collects rows in memory"}, {"Sort Rows", int64(700)}, {"Sort Memory", int64(3 << 10)},
			}},
			"all rows": {func(m *sortMemory) {
				m.put(m.state, s.Status, 4, sortedInMemory)
				m.put(sortNode, l.SortState.SortDone, 1, 1)
				m.put(m.state, s.Memtupcount, 4, 1024)
				m.put(m.state, s.AvailMem, 8, 4<<20)
			}, []Figure{{"Sort Phase", "sorted in memory"}, {"Sort Rows", int64(1024)}, {"Sort Memory", int64(0)}}},
			"overdrawn memory": {func(m *sortMemory) { m.put(m.state, s.AvailMem, 8, -1<<10) }, []Figure{
				{"Sort Phase", "collects rows in memory"}, {"Sort Rows", int64(700)}, {"Sort Memory", int64(4<<10 + 1)},
			}},
			"no rows": {func(m *sortMemory) { m.put(m.state, s.Memtupcount, 4, 0) }, []Figure{
				{"Sort Phase", "collects rows in memory"}, {"Sort Rows", int64(0)}, {"Sort Memory", int64(3 << 10)},
			}},
			"a merge of tapes": {func(m *sortMemory) {
				const tapes = sortNode + 3072
				m.put(m.state, s.Status, 4, sortFinalMerge)
				m.put(m.state, s.Tapeset, 8, tapes)
				m.put(tapes, l.LogicalTapeSet.NBlocksWritten, 8, 12)
				m.put(tapes, l.LogicalTapeSet.NBlocksAllocated, 8, 12)
				m.put(tapes, l.LogicalTapeSet.NHoleBlocks, 8, 2)
			}, []Figure{{"Sort Phase", "sorted on disk"}, {"Sort Disk", int64(80)}}},
			"an unknown state, with tapes": {func(m *sortMemory) {
				m.put(m.state, s.Status, 4, sortFinalMerge+1)
				m.put(m.state, s.Tapeset, 8, sortNode+3072)
			}, nil},
			"an unknown state": {func(m *sortMemory) { m.put(m.state, s.Status, 4, sortFinalMerge+1) }, nil},
			"a mark that is no bool": {func(m *sortMemory) {
				m.put(m.state, s.Status, 4, sortedInMemory)
				m.put(sortNode, l.SortState.SortDone, 1, 2)
			}, nil},
			"done while it collects":  {func(m *sortMemory) { m.put(sortNode, l.SortState.SortDone, 1, 1) }, nil},
			"no memory allowed":       {func(m *sortMemory) { m.put(m.state, s.AllowedMem, 8, 0); m.put(m.state, s.AvailMem, 8, 0) }, nil},
			"more free than allowed":  {func(m *sortMemory) { m.put(m.state, s.AvailMem, 8, 4<<20+1) }, nil},
			"fewer than no rows":      {func(m *sortMemory) { m.put(m.state, s.Memtupcount, 4, -1) }, nil},
			"no room for rows":        {func(m *sortMemory) { m.put(m.state, s.Memtupsize, 4, 0); m.put(m.state, s.Memtupcount, 4, 0) }, nil},
			"more rows than room":     {func(m *sortMemory) { m.put(m.state, s.Memtupcount, 4, 1025) }, nil},
			"tapes of rows in memory": {func(m *sortMemory) { m.put(m.state, s.Tapeset, 8, sortNode) }, nil},
		} {
			m := newSortMemory(t, major)
			c.change(m)
			n := &Node{Kind: "Sort", addr: sortNode, Active: true}
			whole := Figures(m.stack(), []*Level{{Top: n}}, []Copy{{m.start, m.data}})
			if !slices.Equal(n.Progress, c.want) || !whole {
				t.Errorf("version %d, %s: %v, %t", major, name, n.Progress, whole)
			}
		}
	}
}

// TestBlocksOfLargeRelation: the position of a scan is right in relations of more than 2^31 blocks, also if the scan begins in the
// middle.
func TestBlocksOfLargeRelation(t *testing.T) {
	t.Parallel()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the memory of this test is that of a little-endian machine")
	}
	const scan, relation, class, estate, blocks = sortNode + 1024, sortNode + 1536, sortNode + 2048, sortNode + 2560, 3_000_000_000
	for major := oldestMajor; major <= newestMajor; major++ {
		for _, c := range []struct{ start, block, want int64 }{
			{0, 0, 1}, {0, 2_000_000_000, 2_000_000_001}, {2_000_000_000, 2_500_000_000, 500_000_001}, {2_000_000_000, 1, 1_000_000_002},
		} {
			m := newSortMemory(t, major)
			clear(m.data)
			l := m.layout
			for _, v := range []struct {
				structure   uint64
				at          layout.Offset
				size, value int64
			}{
				{sortNode, l.ScanState.SsCurrentRelation, 8, relation}, {sortNode, l.ScanState.SsCurrentScanDesc, 8, scan},
				{scan, l.TableScanDescData.RsRd, 8, relation}, {relation, l.RelationData.RdRel, 8, class},
				{class, l.FormDataPgClass.Relam, 4, 2}, {estate, l.EState.EsDirection, 4, 1},
				{scan, l.HeapScanDescData.RsInited, 1, 1}, {scan, l.HeapScanDescData.RsNblocks, 4, blocks},
				{scan, l.HeapScanDescData.RsStartblock, 4, c.start}, {scan, l.HeapScanDescData.RsCblock, 4, c.block},
				{scan, l.HeapScanDescData.RsNumblocks, 4, math.MaxUint32},
			} {
				m.put(v.structure, v.at, int(v.size), v.value)
			}
			n := &Node{Kind: "SeqScan", addr: sortNode, Active: true}
			want := []Figure{{"Scan Block", c.want}, {"Scan Blocks Total", int64(blocks)}}
			if whole := Figures(m.stack(), []*Level{{Top: n, estate: estate}}, []Copy{{m.start, m.data}}); !whole || !slices.Equal(n.Progress, want) {
				t.Errorf("version %d, from %d at %d: %v, %t", major, c.start, c.block, n.Progress, whole)
			}
		}
	}
}

// TestFiguresOfOneMoment: Figures removes figures of an earlier moment, and Pieces does not change any figure.
func TestFiguresOfOneMoment(t *testing.T) {
	t.Parallel()
	m := newSortMemory(t, newestMajor)
	earlier := []Figure{{"Sort Rows", int64(1)}}
	n := &Node{Kind: "Sort", addr: sortNode, Active: true, Progress: earlier, Actual: &Actual{Rows: 1}}
	levels := []*Level{{Top: n}}
	if pieces := Pieces(m.stack(), levels, m); len(pieces) == 0 {
		t.Error("nothing to copy")
	}
	if !slices.Equal(n.Progress, earlier) || n.Actual == nil {
		t.Errorf("the search for what to copy has changed the figures: %v, %v", n.Progress, n.Actual)
	}
	// Each node has its turn once.
	live := newPages(m)
	defer live.release()
	f := &figures{reader: &reader{pages: live, structures: mustStructures(t), stack: m.stack()}, read: live.read, records: true}
	f.all(levels)
	if repeated(f.wanted) {
		t.Errorf("a node is read twice: %v", f.wanted)
	}
	if Figures(m.stack(), levels, nil) || n.Progress != nil || n.Actual != nil {
		t.Errorf("without copies the figures of an earlier moment stay: %v, %v", n.Progress, n.Actual)
	}
}

func mustStructures(t *testing.T) *structures {
	t.Helper()
	s, err := structuresOf(newestMajor)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// repeated reports whether a piece of memory was wanted twice.
func repeated(pieces []Piece) bool {
	seen := map[Piece]bool{}
	for _, p := range pieces {
		if seen[p] {
			return true
		}
		seen[p] = true
	}
	return false
}
