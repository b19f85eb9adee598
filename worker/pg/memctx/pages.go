package memctx

import (
	"bytes"
	"encoding/binary"
)

const (
	pageSize  = 4096
	lineSize  = 64 // bytes, in whose units page.used records what was read
	pageLines = pageSize / lineSize
)

// pages keep what was read of the process's memory, and which parts of it were used. changed compares these parts with
// a second reading.
type pages struct {
	memory Memory
	limit  int
	byAddr map[uint64]*page
	full   bool // the limit was reached
}

type page struct {
	data [pageSize]byte
	ok   bool
	used uint64 // a bit for each line (of lineSize bytes) that was used
}

// at returns the page of an address; nil if it cannot be read, or if there are too many pages: then full is set.
func (p *pages) at(addr uint64) *page {
	start := addr &^ (pageSize - 1)
	pg := p.byAddr[start]
	if pg == nil {
		if len(p.byAddr) >= p.limit {
			p.full = true
			return nil
		}
		pg = &page{}
		pg.ok = p.memory(start, pg.data[:]) == pageSize
		p.byAddr[start] = pg
	}
	if !pg.ok {
		return nil
	}
	return pg
}

// read copies memory into b; false if not all of it can be read.
func (p *pages) read(addr uint64, b []byte) bool {
	for len(b) > 0 {
		pg := p.at(addr)
		if pg == nil {
			return false
		}
		from := int(addr & (pageSize - 1))
		n := copy(b, pg.data[from:])
		for line := from / lineSize; line <= (from+n-1)/lineSize; line++ {
			pg.used |= 1 << line
		}
		b, addr = b[n:], addr+uint64(n)
	}
	return true
}

// forget removes the page of an address, so that the next read of the address reads the process again.
func (p *pages) forget(addr uint64) {
	delete(p.byAddr, addr&^(pageSize-1))
}

// word reads a pointer or a size.
func (p *pages) word(addr uint64) (uint64, bool) {
	var b [8]byte
	ok := p.read(addr, b[:])
	return binary.NativeEndian.Uint64(b[:]), ok
}

// text reads a string of at most limit bytes; whole means that its end was seen.
func (p *pages) text(addr uint64, limit int) (text []byte, whole, ok bool) {
	for len(text) < limit {
		n := min(lineSize-int(addr%lineSize), limit-len(text))
		piece := make([]byte, n)
		if !p.read(addr, piece) {
			return nil, false, false
		}
		if end := bytes.IndexByte(piece, 0); end >= 0 {
			return append(text, piece[:end]...), true, true
		}
		text, addr = append(text, piece...), addr+uint64(n)
	}
	return text, false, true
}

// changed reads all pages again, and counts the pages on which a part that was used differs.
func (p *pages) changed() int {
	count := 0
	var again [pageSize]byte
	for addr, pg := range p.byAddr {
		ok := p.memory(addr, again[:]) == pageSize
		if ok != pg.ok {
			count++
			continue
		}
		for line := 0; ok && line < pageLines; line++ {
			from, to := line*lineSize, (line+1)*lineSize
			if pg.used&(1<<line) != 0 && !bytes.Equal(pg.data[from:to], again[from:to]) {
				count++
				break
			}
		}
	}
	return count
}
