package plan

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"sync"

	"pg_stat_backtrace/worker/pg/layout"
)

const (
	pageSize    = 4096
	clusterSize = 4 * pageSize
	wordSize    = 8
	// maxClusters bounds the memory that one Read keeps: 64 MB.
	maxClusters = (64 << 20) / clusterSize
	// maxBatch bounds the clusters of one read: 512 kB.
	maxBatch = 32
	// maxName is PostgreSQL's NAMEDATALEN, the zero byte included.
	maxName = 64
)

// Memory reads the memory of a process, with a timeout for each read.
type Memory interface {
	Read(addr uint64, p []byte) (int, error)
}

// Batch is a Memory that reads several pieces at once.
type Batch interface {
	Memory
	// ReadPieces copies pieces of memory, one after the other, into p. It fails if a piece cannot be read whole.
	ReadPieces(p []byte, pieces []Piece) error
}

// cluster is a group of pages that are read at once, because a system call costs more than a page. Structures of a plan
// lie close to each other.
type cluster struct {
	start uint64
	// whole is set if all pages were read. Otherwise valid is set for each page that was read, and tried for each page for
	// which a read of this page alone was tried.
	whole        bool
	valid, tried [clusterSize / pageSize]bool
	data         []byte
}

// slab is memory for the clusters of one read.
type slab [maxBatch * clusterSize]byte

// slabs keep memory for the next Read, because it takes longer to zero and free memory than to read the process's.
//
//nolint:gochecknoglobals // a pool
var slabs = sync.Pool{New: func() any { return new(slab) }}

// pages keep the memory that one Read has read, so that Read sees each page as it was at one time. If a Read needs too many
// pages, full is set, and its results must not be used.
type pages struct {
	memory   Memory
	clusters map[uint64]*cluster
	// recent are the clusters that were used last, by the low bits of their number.
	recent [64]*cluster
	slabs  []*slab
	used   int // bytes of the last slab
	full   bool
}

func newPages(m Memory) *pages { return &pages{memory: m, clusters: map[uint64]*cluster{}} }

// release returns the memory to slabs. After this, the pages cannot be read.
func (p *pages) release() {
	for _, s := range p.slabs {
		slabs.Put(s)
	}
	*p = pages{memory: unreadable{}, clusters: map[uint64]*cluster{}}
}

// unreadable is memory without a readable page.
type unreadable struct{}

func (unreadable) Read(uint64, []byte) (int, error) { return 0, nil }

// page returns the page of an address, or nil if it cannot be read.
func (p *pages) page(addr uint64) []byte {
	start := addr &^ (clusterSize - 1)
	recent := &p.recent[addr/clusterSize%uint64(len(p.recent))]
	c := *recent
	if c == nil || c.start != start {
		if c = p.clusters[start]; c == nil {
			if c = p.add(start); c == nil {
				return nil
			}
			p.load(c)
		}
		*recent = c
	}
	i := addr % clusterSize / pageSize
	if !c.whole && !p.valid(c, i) {
		return nil
	}
	return c.data[i*pageSize : (i+1)*pageSize]
}

// valid reports whether a page of a cluster was read. A page that was not read with its cluster is read alone, but only
// once.
func (p *pages) valid(c *cluster, i uint64) bool {
	if !c.valid[i] && !c.tried[i] {
		c.tried[i] = true
		n, err := p.memory.Read(c.start+i*pageSize, c.data[i*pageSize:(i+1)*pageSize])
		c.valid[i] = err == nil && n == pageSize
	}
	return c.valid[i]
}

// add returns a new cluster without content. If there are too many clusters, it sets full and returns nil.
func (p *pages) add(start uint64) *cluster {
	if len(p.clusters) >= maxClusters {
		p.full = true
		return nil
	}
	c := &cluster{start: start, data: p.space(1)}
	p.clusters[start] = c
	return c
}

// space returns memory for a number of clusters, at most for maxBatch.
func (p *pages) space(clusters int) []byte {
	size := clusters * clusterSize
	if len(p.slabs) == 0 || p.used+size > len(slab{}) {
		p.slabs, p.used = append(p.slabs, slabs.Get().(*slab)), 0 //nolint:forcetypeassert // the pool has no other
	}
	out := p.slabs[len(p.slabs)-1][p.used : p.used+size]
	p.used += size
	return out
}

// load reads the pages of a cluster up to the first that cannot be read.
func (p *pages) load(c *cluster) {
	n, _ := p.memory.Read(c.start, c.data)
	for i := range n / pageSize {
		c.valid[i] = true
	}
	c.whole = n == clusterSize
}

// fetch reads those clusters of the addresses that were not read yet, many of them by one call. An address that cannot
// be read is no error: its next use reads its cluster alone.
func (p *pages) fetch(addrs []uint64) {
	missing := map[uint64]bool{}
	for _, a := range addrs {
		if start := a &^ (clusterSize - 1); a != 0 && p.clusters[start] == nil {
			missing[start] = true
		}
	}
	starts := slices.Sorted(maps.Keys(missing))
	for some := range slices.Chunk(starts, maxBatch) {
		if len(some) > 1 && len(p.clusters)+len(some) <= maxClusters {
			p.together(some)
		}
	}
}

// together reads clusters by one call. If one of them cannot be read whole, as at the end of a mapping, it splits
// the list of clusters in two, and reads each half by its own call.
func (p *pages) together(starts []uint64) {
	memory, ok := p.memory.(Batch)
	if !ok {
		return
	}
	pieces := make([]Piece, len(starts))
	for i, start := range starts {
		pieces[i] = Piece{Address: start, Length: clusterSize}
	}
	data := p.space(len(starts))
	if memory.ReadPieces(data, pieces) != nil {
		p.used -= len(data)
		if half := len(starts) / 2; half > 0 {
			p.together(starts[:half])
			p.together(starts[half:])
		}
		return
	}
	for i, start := range starts {
		p.clusters[start] = &cluster{start: start, data: data[i*clusterSize : (i+1)*clusterSize], whole: true}
	}
}

// read copies memory into b. It returns false if some of it cannot be read.
func (p *pages) read(addr uint64, b []byte) bool {
	for len(b) > 0 {
		page := p.page(addr)
		if page == nil {
			return false
		}
		n := copy(b, page[addr%pageSize:])
		b, addr = b[n:], addr+uint64(n) // n is not negative
	}
	return true
}

// word, half and octet read 8, 4 and 1 bytes. They return 0 for memory that cannot be read. No check accepts 0 where a
// pointer or a tag is needed.
func (p *pages) word(addr uint64) uint64 {
	if at := addr % pageSize; at <= pageSize-8 {
		if page := p.page(addr); page != nil {
			return binary.NativeEndian.Uint64(page[at:])
		}
		return 0
	}
	var b [8]byte
	if !p.read(addr, b[:]) {
		return 0
	}
	return binary.NativeEndian.Uint64(b[:])
}

func (p *pages) half(addr uint64) uint32 {
	if at := addr % pageSize; at <= pageSize-4 {
		if page := p.page(addr); page != nil {
			return binary.NativeEndian.Uint32(page[at:])
		}
		return 0
	}
	var b [4]byte
	if !p.read(addr, b[:]) {
		return 0
	}
	return binary.NativeEndian.Uint32(b[:])
}

func (p *pages) octet(addr uint64) byte {
	if page := p.page(addr); page != nil {
		return page[addr%pageSize]
	}
	return 0
}

// text returns the string at an address, without its zero byte. It returns false if there is no zero byte within limit
// bytes, or if the string cannot be read.
func (p *pages) text(addr uint64, limit int) (string, bool) {
	var out []byte
	for len(out) < limit {
		page := p.page(addr)
		if page == nil {
			return "", false
		}
		piece := page[addr%pageSize:]
		piece = piece[:min(len(piece), limit-len(out))]
		if end := bytes.IndexByte(piece, 0); end >= 0 {
			return string(append(out, piece[:end]...)), true
		}
		out, addr = append(out, piece...), addr+uint64(len(piece))
	}
	return "", false
}

func (r *reader) pointer(a uint64, o layout.Offset) uint64 { return r.word(a + o.Uint64()) }
func (r *reader) number(a uint64, o layout.Offset) int     { return int(int32(r.half(a + o.Uint64()))) }
func (r *reader) unsigned(a uint64, o layout.Offset) uint32 {
	return r.half(a + o.Uint64())
}
func (r *reader) float(a uint64, o layout.Offset) float64 {
	return math.Float64frombits(r.pointer(a, o))
}
func (r *reader) kind(a uint64) string { return r.byTag[r.half(a)] }

// list returns the pointers of a List. The null pointer is the empty list. It returns false if there is no valid List
// of pointers at the address.
func (r *reader) list(a uint64) ([]uint64, bool) {
	if a == 0 {
		return nil, true
	}
	if !r.data(a) || r.kind(a) != "List" {
		return nil, false
	}
	n, elements := r.number(a, r.List.Length), r.pointer(a, r.List.Elements)
	if n <= 0 || n > maxNodes || !r.data(elements) {
		return nil, false
	}
	out := make([]uint64, n)
	for i := range out {
		if out[i] = r.word(elements + uint64(i)*wordSize); out[i] == 0 { // i is not negative
			return nil, false
		}
	}
	return out, true
}

// bitmapset returns the members of a Bitmapset.
func (r *reader) bitmapset(a uint64) []int {
	if !r.data(a) {
		return nil
	}
	const bits = 64
	words := r.unsigned(a, r.Bitmapset.Nwords)
	var out []int
	for w := range min(words, maxNodes/bits) {
		v := r.pointer(a+uint64(w)*wordSize, r.Bitmapset.Words)
		for i := range bits {
			if v&(1<<i) != 0 {
				out = append(out, int(w)*bits+i)
			}
		}
	}
	return out
}
