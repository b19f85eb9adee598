package plan

import (
	"encoding/binary"
	"math"
	"slices"

	"pg_stat_backtrace/worker/pg/layout"
)

// maxWanted bounds the words of memory that are copied for figures while the process is stopped. Running nodes and the
// nodes above them come first. Nodes beyond the bound have no figures.
const maxWanted = 600

// Piece is memory of the process: Length bytes at Address.
type Piece struct {
	Address uint64
	Length  int
}

// Pieces returns the memory that holds the figures of the levels now. The caller stops the process, copies these pieces
// together with the stack, and gives the copies to Figures. The pieces are in address order and do not overlap.
func Pieces(stack *Stack, levels []*Level, memory Memory) []Piece {
	s, err := structuresOf(stack.Major)
	if err != nil {
		return nil
	}
	live := newPages(memory)
	defer live.release()
	f := &figures{reader: &reader{pages: live, structures: s, stack: stack}, read: live.read, records: true}
	f.all(levels)
	return merged(f.wanted)
}

// merged joins pieces that overlap or are close to each other, as long as they are on the same page.
func merged(pieces []Piece) []Piece {
	const near = 64
	slices.SortFunc(pieces, func(a, b Piece) int {
		if a.Address < b.Address {
			return -1
		}
		if a.Address > b.Address {
			return 1
		}
		return b.Length - a.Length
	})
	var out []Piece
	for _, p := range pieces {
		if len(out) > 0 {
			last := &out[len(out)-1]
			end, wanted := last.Address+uint64(last.Length), p.Address+uint64(p.Length) // lengths are not negative
			if p.Address <= end || p.Address-end <= near && last.Address/pageSize == (wanted-1)/pageSize {
				last.Length = int(max(end, wanted) - last.Address) // some words
				continue
			}
		}
		out = append(out, p)
	}
	return out
}

// Figures adds the progress of the nodes to the levels. copies are the Pieces, copied together with the stack, by
// ascending address. A figure that needs other memory is left out. whole is false if such a figure belongs to a running
// node or a node above it, or if the version is unknown.
func Figures(stack *Stack, levels []*Level, copies []Copy) (whole bool) {
	s, err := structuresOf(stack.Major)
	if err != nil {
		return false
	}
	c := copied(copies)
	f := &figures{reader: &reader{pages: newPages(unreadable{}), structures: s, stack: stack}, read: c.read}
	f.all(levels)
	return !f.lacks
}

// Copy is a copied piece of memory.
type Copy struct {
	Address uint64
	Data    []byte
}

type copied []Copy

func (c copied) read(addr uint64, b []byte) bool {
	i, found := slices.BinarySearchFunc(c, addr, func(p Copy, a uint64) int {
		switch {
		case p.Address+uint64(len(p.Data)) <= a:
			return -1
		case p.Address > a:
			return 1
		}
		return 0
	})
	if !found {
		return false
	}
	from := c[i].Data[addr-c[i].Address:]
	return len(from) >= len(b) && copy(b, from) == len(b)
}

// figures reads the progress of nodes. If records is set, it adds each piece of memory that it reads to wanted, from which
// Pieces gets its result.
type figures struct {
	*reader

	read func(addr uint64, b []byte) bool
	// records is set when Pieces reads the figures only to learn which pieces of memory they need. These pieces are
	// collected in wanted, and the figures themselves are thrown away.
	records bool
	wanted  []Piece
	// active is set while running nodes and the nodes above them are read. lacks is set if memory for a figure of such
	// a node was not copied.
	active, lacks bool
	bad           bool // the current figure is left out: a word could not be read, or is implausible
}

func (f *figures) get(addr uint64, b []byte) {
	if f.records && len(f.wanted) >= maxWanted {
		f.bad = true
		return
	}
	f.wanted = append(f.wanted, Piece{Address: addr, Length: len(b)})
	if !f.read(addr, b) {
		f.bad, f.lacks = true, f.lacks || f.active
	}
}

// word, half and octet read a member of the structure at a: 8, 4 or 1 bytes at the offset o. If the offset is not known
// or the read fails, they set bad.
func (f *figures) word(a uint64, o layout.Offset) uint64 {
	var b [8]byte
	if !o.Known() || a == 0 {
		f.bad = true
		return 0
	}
	f.get(a+o.Uint64(), b[:])
	return binary.NativeEndian.Uint64(b[:])
}

func (f *figures) half(a uint64, o layout.Offset) uint32 {
	var b [4]byte
	if !o.Known() || a == 0 {
		f.bad = true
		return 0
	}
	f.get(a+o.Uint64(), b[:])
	return binary.NativeEndian.Uint32(b[:])
}

func (f *figures) octet(a uint64, o layout.Offset) byte {
	var b [1]byte
	if !o.Known() || a == 0 {
		f.bad = true
		return 0
	}
	f.get(a+o.Uint64(), b[:])
	return b[0]
}

func (f *figures) number(a uint64, o layout.Offset) int64 { return int64(int32(f.half(a, o))) }
func (f *figures) long(a uint64, o layout.Offset) int64   { return int64(f.word(a, o)) }

// count returns a float8 that counts rows.
func (f *figures) count(a uint64, o layout.Offset) int64 {
	const most = 1 << 53
	v := math.Float64frombits(f.word(a, o))
	if math.IsNaN(v) || v < 0 || v > most || v != math.Trunc(v) {
		f.bad = true
		return 0
	}
	return int64(v)
}

// pointer returns a pointer to private memory, or 0 for the null pointer. Another value sets bad.
func (f *figures) pointer(a uint64, o layout.Offset) uint64 {
	v := f.word(a, o)
	if v != 0 && !f.data(v) {
		f.bad = true
	}
	return v
}

// must sets bad unless holds is true: a condition that the current figure must meet.
func (f *figures) must(holds bool) {
	f.bad = f.bad || !holds
}

// all reads the figures of all nodes, first of running nodes and the nodes above them.
func (f *figures) all(levels []*Level) {
	for _, active := range []bool{true, false} {
		f.active = active
		for _, l := range levels {
			if l.Top == nil {
				continue
			}
			if active {
				f.level(l)
			}
			f.nodes(l, nil, l.Top, active)
		}
	}
}

func (f *figures) nodes(l *Level, parent, n *Node, active bool) {
	if n.Active == active {
		if !f.records {
			n.Actual, n.Progress = nil, nil
		}
		f.actual(n)
		f.node(l, parent, n)
	}
	for _, c := range n.Children {
		f.nodes(l, n, c, active)
	}
}

// level reads how many rows a SELECT has returned in its run of the executor, which counts from 0. It reads nothing for other
// statements.
func (f *figures) level(l *Level) {
	const commandSelect = 1
	f.bad = false
	if l.finishes || l.command != commandSelect {
		return
	}
	if n := f.long(l.estate, f.EState.EsProcessed); !f.bad && n >= 0 && !f.records {
		l.Returned = &n
	}
}

// actual reads how many rows a node has returned so far, and its loops, if the statement is instrumented.
func (f *figures) actual(n *Node) {
	f.bad = false
	at := f.pointer(n.addr, f.PlanState.Instrument)
	if at == 0 || f.bad {
		return
	}
	running := f.octet(at, f.Instrumentation.Running)
	a := &Actual{
		Rows:  f.count(at, f.Instrumentation.Ntuples) + f.count(at, f.Instrumentation.Tuplecount),
		Loops: f.count(at, f.Instrumentation.Nloops) + int64(running),
	}
	f.must(running <= 1)
	if !f.bad && !f.records {
		n.Actual = a
	}
}

// node reads the progress of one node.
func (f *figures) node(l *Level, parent, n *Node) {
	read := map[string]func(*Level, *Node, *Node) []Figure{
		"SeqScan": f.seqScan, "TidRangeScan": f.seqScan, "BitmapHeapScan": f.bitmapHeap, "Hash": f.hash, "Sort": f.sort,
		"Agg": f.agg, "Append": f.append, "Gather": f.gather, "GatherMerge": f.gather, "ModifyTable": f.modify,
	}[n.Kind]
	if read == nil {
		return
	}
	f.bad = false
	figures := read(l, parent, n)
	if !f.bad && !f.records {
		n.Progress = figures
	}
}

// seqScan reads the position of a scan of a heap, in blocks.
func (f *figures) seqScan(l *Level, _, n *Node) []Figure {
	const heap, forward, whole = 2, 1, math.MaxUint32
	relation, scan := f.pointer(n.addr, f.ScanState.SsCurrentRelation), f.pointer(n.addr, f.ScanState.SsCurrentScanDesc)
	if f.bad || scan == 0 || relation == 0 {
		return nil
	}
	f.must(f.word(scan, f.TableScanDescData.RsRd) == relation)
	class := f.pointer(relation, f.RelationData.RdRel)
	if f.bad {
		return nil
	}
	if f.half(class, f.FormDataPgClass.Relam) != heap || f.number(l.estate, f.EState.EsDirection) != forward {
		return nil
	}
	s := &f.HeapScanDescData
	inited, blocks := f.octet(scan, s.RsInited), f.half(scan, s.RsNblocks)
	start, block := f.half(scan, s.RsStartblock), f.half(scan, s.RsCblock)
	limit := f.half(scan, s.RsNumblocks)
	f.must(inited <= 1)
	if f.bad || inited == 0 {
		return nil // the scan has not begun, or has ended
	}
	f.must(block < blocks)
	shared := f.word(scan, f.TableScanDescData.RsParallel)
	f.must(shared != 0 == f.parallelAware(n))
	if f.bad {
		return nil
	}
	if shared != 0 {
		n.shared = true
		f.must(within(f.stack.Shared, shared))
		p := &f.ParallelBlockTableScanDescData
		if f.bad {
			return nil
		}
		given := f.word(shared, p.PhsNallocated)
		f.must(f.half(shared, p.PhsNblocks) == blocks)
		return []Figure{
			{Name: "Scan Block", Value: int64(block) + 1},
			{Name: "Scan Blocks Given", Value: int64(min(given, uint64(blocks)))},
			{Name: "Scan Blocks Total", Value: int64(blocks)},
		}
	}
	f.must(start < blocks && (limit == whole || limit <= blocks))
	if f.bad {
		return nil
	}
	if n.Kind == "TidRangeScan" {
		return f.tidRange(start, block)
	}
	f.must(limit == whole)
	n.shared = false
	done := (int64(block)+int64(blocks)-int64(start))%int64(blocks) + 1
	return []Figure{{Name: "Scan Block", Value: done}, {Name: "Scan Blocks Total", Value: int64(blocks)}}
}

// parallelAware reports whether several processes share the work of a node.
func (f *figures) parallelAware(n *Node) bool {
	v, _ := n.Properties[ParallelAware].(bool)
	return v
}

// tidRange returns the block of a scan of a range. The number of all blocks is not returned: the scan's limit counts down
// in some minor versions, and stays the same in others, such as 15.20.
func (f *figures) tidRange(start, block uint32) []Figure {
	f.must(block >= start)
	return []Figure{{Name: "Scan Block", Value: int64(block-start) + 1}}
}

// bitmapHeap reads how many blocks a bitmap scan has read, in all its loops.
func (f *figures) bitmapHeap(_ *Level, _, n *Node) []Figure {
	s := &f.BitmapHeapScanState
	if !s.ExactPages.Known() || !s.LossyPages.Known() {
		return nil
	}
	exact, lossy := f.long(n.addr, s.ExactPages), f.long(n.addr, s.LossyPages)
	f.must(exact >= 0 && lossy >= 0)
	return []Figure{{Name: "Exact Heap Blocks", Value: exact}, {Name: "Lossy Heap Blocks", Value: lossy}}
}

// hash reads the size of a hash join's table, and which batch is processed.
func (f *figures) hash(_ *Level, parent, n *Node) []Figure {
	if parent == nil || parent.Kind != "HashJoin" {
		return nil
	}
	table := f.pointer(n.addr, f.HashState.Hashtable)
	f.must(f.pointer(parent.addr, f.HashJoinState.HjHashTable) == table)
	if f.bad || table == 0 {
		return nil
	}
	h := &f.HashJoinTableData
	shared := f.word(table, h.ParallelState)
	f.must(shared != 0 == f.parallelAware(n))
	if f.bad {
		return nil
	}
	if shared != 0 {
		return f.sharedHash(table, shared)
	}
	buckets, log2 := f.number(table, h.Nbuckets), f.number(table, h.Log2Nbuckets)
	batches, batch := f.number(table, h.Nbatch), f.number(table, h.Curbatch)
	const largest = 1 << 30
	f.must(log2 >= 0 && log2 <= 30 && buckets == 1<<max(log2, 0))
	f.must(batches > 0 && batches <= largest && batches&(batches-1) == 0 && batch >= 0 && batch < batches)
	rows, used, peak := f.count(table, h.TotalTuples), f.long(table, h.SpaceUsed), f.long(table, h.SpacePeak)
	f.must(used >= 0 && peak >= used)
	return []Figure{
		{Name: "Hash Batch", Value: batch + 1}, {Name: "Hash Batches", Value: batches}, {Name: "Hash Buckets", Value: buckets},
		{Name: "Hash Rows", Value: rows}, {Name: "Hash Memory Usage", Value: kilobytes(used)},
		{Name: "Peak Memory Usage", Value: kilobytes(peak)},
	}
}

// sharedHash reads a hash table that several processes share, once it is built: then each process has its own copy of the
// numbers. Each process works on its own batch.
func (f *figures) sharedHash(table, shared uint64) []Figure {
	const largest = 1 << 30
	f.must(within(f.stack.Shared, shared))
	if f.bad {
		return nil
	}
	h, p := &f.HashJoinTableData, &f.ParallelHashJoinState
	rows, buckets := f.count(table, h.TotalTuples), f.number(table, h.Nbuckets)
	batches, batch := f.number(table, h.Nbatch), f.number(table, h.Curbatch)
	if f.long(shared, p.TotalTuples) != rows || rows == 0 {
		return nil // the processes still build the table
	}
	f.must(f.number(shared, p.Nbatch) == batches && f.number(shared, p.Nbuckets) == buckets)
	f.must(batches > 0 && batches <= largest && batches&(batches-1) == 0 && batch >= -1 && batch < batches)
	f.must(buckets > 0 && buckets <= largest && buckets&(buckets-1) == 0)
	var out []Figure
	if batch >= 0 {
		out = append(out, Figure{Name: "Hash Batch", Value: batch + 1})
	}
	return append(out, Figure{Name: "Shared Hash Batches", Value: batches}, Figure{Name: "Shared Hash Buckets", Value: buckets},
		Figure{Name: "Shared Hash Rows", Value: rows})
}

// kilobytes converts bytes to kilobytes, rounded up as in EXPLAIN.
func kilobytes(bytes int64) int64 {
	const kilobyte = 1024
	return (bytes + kilobyte - 1) / kilobyte
}

// The states of a sort (TupSortStatus).
const (
	sortInitial    = 0
	sortBounded    = 1
	sortBuildsRuns = 2
	sortedInMemory = 3
	sortFinalMerge = 5
)

// sort reads the phase of a sort, its rows in memory, and its memory or disk space.
func (f *figures) sort(_ *Level, _, n *Node) []Figure {
	t := &f.Tuplesortstate
	at := f.pointer(n.addr, f.SortState.Tuplesortstate)
	if f.bad || at == 0 || !t.Status.Known() {
		return nil
	}
	status, done := f.half(at, t.Status), f.octet(n.addr, f.SortState.SortDone)
	free, allowed := f.long(at, t.AvailMem), f.long(at, t.AllowedMem)
	rows, room := f.number(at, t.Memtupcount), f.number(at, t.Memtupsize)
	f.must(status <= sortFinalMerge && done <= 1 && (done == 0 || status >= sortedInMemory))
	f.must(allowed > 0 && free <= allowed && rows >= 0 && room > 0 && rows <= room)
	if f.bad {
		return nil
	}
	phase := map[uint32]string{
		sortInitial: "collects rows in memory", sortBounded: "keeps the first rows in memory",
		sortBuildsRuns: "writes sorted runs to disk", sortedInMemory: "sorted in memory",
	}[status]
	if phase == "" {
		phase = "sorted on disk"
	}
	out := []Figure{{Name: "Sort Phase", Value: phase}}
	switch status {
	case sortInitial, sortBounded, sortedInMemory:
		f.must(f.word(at, t.Tapeset) == 0)
		return append(out, Figure{Name: "Sort Rows", Value: rows}, Figure{Name: "Sort Memory", Value: kilobytes(allowed - free)})
	}
	tapes := f.pointer(at, t.Tapeset)
	if f.bad || tapes == 0 {
		return nil
	}
	const blockSize = 8
	s := &f.LogicalTapeSet
	written, allocated, holes := f.long(tapes, s.NBlocksWritten), f.long(tapes, s.NBlocksAllocated), f.long(tapes, s.NHoleBlocks)
	f.must(written >= 0 && written <= allocated && holes >= 0 && holes <= written)
	return append(out, Figure{Name: "Sort Disk", Value: (written - holes) * blockSize})
}

// agg reads the number of groups of a hashed aggregate. If the aggregate has spilled to disk, it reads only this fact.
func (f *figures) agg(_ *Level, _, n *Node) []Figure {
	const hashed = 2
	a := &f.AggState
	if f.unsigned(n.plan, f.Agg.Aggstrategy) != hashed && f.half(n.addr, a.Aggstrategy) != hashed {
		return nil
	}
	f.must(f.half(n.addr, a.Aggstrategy) == hashed && f.number(n.addr, a.NumHashes) == 1)
	spilled, groups := f.octet(n.addr, a.HashEverSpilled), f.long(n.addr, a.HashNgroupsCurrent)
	f.must(spilled <= 1 && groups >= 0)
	if spilled != 0 {
		return []Figure{{Name: "HashAgg Spilled", Value: true}}
	}
	return []Figure{{Name: "HashAgg Groups", Value: groups}}
}

// append reads the number of the input that an Append reads now.
func (f *figures) append(_ *Level, _, n *Node) []Figure {
	which, all := f.number(n.addr, f.AppendState.AsWhichplan), f.number(n.addr, f.AppendState.AsNplans)
	f.must(int(all) == len(n.members) && which < all)
	if f.bad || which < 0 {
		return nil
	}
	return []Figure{{Name: "Subplan", Value: which + 1}, {Name: "Subplans", Value: all}}
}

// gather reads how many workers a Gather or GatherMerge has planned and launched.
func (f *figures) gather(_ *Level, _, n *Node) []Figure {
	planned, initialized, launched := f.Gather.NumWorkers, f.GatherState.Initialized, f.GatherState.NworkersLaunched
	if n.Kind == "GatherMerge" {
		planned, initialized, launched = f.GatherMerge.NumWorkers, f.GatherMergeState.Initialized, f.GatherMergeState.NworkersLaunched
	}
	begun, most, count := f.octet(n.addr, initialized), f.number(n.plan, planned), f.number(n.addr, launched)
	const limit = 1024
	f.must(begun <= 1 && most >= 0 && most <= limit)
	if f.bad || begun == 0 {
		return nil
	}
	f.must(count >= 0 && count <= most)
	return []Figure{{Name: "Workers Planned", Value: most}, {Name: "Workers Launched", Value: count}}
}

// modify reads how many rows a statement has changed.
func (f *figures) modify(l *Level, parent, _ *Node) []Figure {
	if parent != nil {
		return nil // in a WITH: es_processed does not include its rows
	}
	rows := f.long(l.estate, f.EState.EsProcessed)
	f.must(rows >= 0)
	return []Figure{{Name: "Rows Processed", Value: rows}}
}
