package plan

import (
	"bytes"
	"encoding/binary"
	"math"

	"pg_stat_backtrace/worker/pg/layout"
)

const (
	pageSize    = 4096
	clusterSize = 16 * pageSize
	wordSize    = 8
	// maxPages bounds the memory of one look: 64 MB.
	maxPages = 1 << 14
	// maxName is PostgreSQL's NAMEDATALEN, the zero byte included.
	maxName = 64
)

// Memory reads the memory of a process. process.Memory implements it, with a timeout for each read.
type Memory interface {
	Read(addr uint64, p []byte) (int, error)
}

// pages keep what one look has read, so that each page is of one moment. After a read that failed, or with too many
// pages, failed is set, and what was read must not be printed.
type pages struct {
	memory Memory
	byAddr map[uint64]*[pageSize]byte
	// clusters are the groups of pages that were read, or tried, at once.
	clusters map[uint64]struct{}
	full     bool
}

func newPages(m Memory) *pages {
	return &pages{memory: m, byAddr: map[uint64]*[pageSize]byte{}, clusters: map[uint64]struct{}{}}
}

// page returns the page of an address, or nil if it cannot be read.
func (p *pages) page(addr uint64) *[pageSize]byte {
	start := addr &^ (pageSize - 1)
	known, ok := p.byAddr[start]
	if ok {
		return known
	}
	if len(p.byAddr) >= maxPages {
		p.full = true
		return nil
	}
	if p.cluster(start); p.byAddr[start] != nil {
		return p.byAddr[start]
	}
	page := new([pageSize]byte)
	if n, err := p.memory.Read(start, page[:]); err != nil || n != pageSize {
		page = nil
	}
	p.byAddr[start] = page
	return page
}

// cluster reads the pages around a page at once, because a system call costs more than a page. Structures of a plan lie
// close to each other.
func (p *pages) cluster(page uint64) {
	start := page &^ (clusterSize - 1)
	if _, tried := p.clusters[start]; tried {
		return
	}
	p.clusters[start] = struct{}{}
	buffer := make([]byte, clusterSize)
	n, _ := p.memory.Read(start, buffer)
	for at := 0; at+pageSize <= n; at += pageSize {
		if _, known := p.byAddr[start+uint64(at)]; !known { //nolint:gosec // not negative
			p.byAddr[start+uint64(at)] = (*[pageSize]byte)(buffer[at:]) //nolint:gosec // not negative
		}
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
		b, addr = b[n:], addr+uint64(n) //nolint:gosec // not negative
	}
	return true
}

// word, half and octet return 0 for memory that cannot be read. No check accepts 0 where a pointer or a tag is needed.
func (p *pages) word(addr uint64) uint64 {
	var b [8]byte
	if !p.read(addr, b[:]) {
		return 0
	}
	return binary.NativeEndian.Uint64(b[:])
}

func (p *pages) half(addr uint64) uint32 {
	var b [4]byte
	if !p.read(addr, b[:]) {
		return 0
	}
	return binary.NativeEndian.Uint32(b[:])
}

func (p *pages) octet(addr uint64) byte {
	var b [1]byte
	p.read(addr, b[:])
	return b[0]
}

// text returns a string with a zero byte within limit bytes, else false.
func (p *pages) text(addr uint64, limit int) (string, bool) {
	var out []byte
	for len(out) < limit {
		piece := make([]byte, min(limit-len(out), pageSize-int(addr%pageSize)))
		if !p.read(addr, piece) {
			return "", false
		}
		if end := bytes.IndexByte(piece, 0); end >= 0 {
			return string(append(out, piece[:end]...)), true
		}
		out, addr = append(out, piece...), addr+uint64(len(piece))
	}
	return "", false
}

func (r *reader) pointer(a uint64, o layout.Offset) uint64 { return r.word(a + o.Uint64()) }
func (r *reader) number(a uint64, o layout.Offset) int     { return int(int32(r.half(a + o.Uint64()))) } //nolint:gosec // signed in C
func (r *reader) unsigned(a uint64, o layout.Offset) uint32 {
	return r.half(a + o.Uint64())
}
func (r *reader) float(a uint64, o layout.Offset) float64 {
	return math.Float64frombits(r.pointer(a, o))
}
func (r *reader) kind(a uint64) string { return r.kinds[r.half(a)] }

// list returns the pointers of a List. The null pointer is the empty list.
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
		if out[i] = r.word(elements + uint64(i)*wordSize); out[i] == 0 { //nolint:gosec // an index
			return nil, false
		}
	}
	return out, true
}

// bitmapset returns the members of a Bitmapset. Since version 16 it is a node, whose tag precedes the number of words.
func (r *reader) bitmapset(a uint64) []int {
	if !r.data(a) {
		return nil
	}
	const node, bits = 16, 64
	words := r.half(a)
	if r.major >= node {
		words = r.half(a + 4)
	}
	var out []int
	for w := range min(words, maxNodes/bits) {
		v := r.word(a + wordSize + uint64(w)*wordSize)
		for i := range bits {
			if v&(1<<i) != 0 {
				out = append(out, int(w)*bits+i)
			}
		}
	}
	return out
}
