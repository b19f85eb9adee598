package locks

import (
	"fmt"
	"path/filepath"

	"pg_stat_backtrace/worker/host/rootfs"
	"pg_stat_backtrace/worker/pg/layout"
)

// outcome says how a transaction ended.
type outcome int

const (
	unknownOutcome outcome = iota
	committed
	notCommitted // rolled back, or not ended yet
)

// maxOutcomes bounds the outcomes that a commitLog keeps.
const maxOutcomes = 10_000

// commitLog reads how transactions ended, from the server's buffers of pg_xact or its files.
type commitLog struct {
	r      *NameReader
	l      layout.CommitLog
	region uint64 // the address of the buffers; 0: not known
	ended  map[uint32]outcome
}

// of returns the outcome of a transaction.
func (c *commitLog) of(xid uint32) outcome {
	if xid == 0 {
		return unknownOutcome
	}
	if xid < c.l.FirstNormal {
		return committed
	}
	if o, ok := c.ended[xid]; ok {
		return o
	}
	bits, ok := c.bits(xid)
	if !ok {
		return unknownOutcome
	}
	switch bits {
	case c.l.Committed:
		return c.keep(xid, committed)
	case c.l.Aborted:
		return c.keep(xid, notCommitted)
	case c.l.SubCommitted: // it depends on the outcome of another transaction
		return unknownOutcome
	}
	return notCommitted
}

func (c *commitLog) keep(xid uint32, o outcome) outcome {
	if len(c.ended) >= maxOutcomes || c.ended == nil {
		c.ended = make(map[uint32]outcome)
	}
	c.ended[xid] = o
	return o
}

// bits returns the bits of a transaction in pg_xact; false: they were not found.
func (c *commitLog) bits(xid uint32) (byte, bool) {
	page, rest := xid/c.l.PageXacts, xid%c.l.PageXacts
	shift := rest % c.l.ByteXacts * c.l.Bits
	mask := byte(1<<c.l.Bits - 1)
	at := uint64(rest / c.l.ByteXacts)
	if b, ok := c.buffered(page, at); ok {
		return b >> shift & mask, true
	}
	file := fmt.Sprintf("%04X", page/c.l.FilePages)
	size := int64(layout.Pages.PageSize)
	all, err := rootfs.ReadIn(filepath.Join(c.r.dataDir, "pg_xact"), file, size*int64(c.l.FilePages))
	at += uint64(page%c.l.FilePages) * uint64(size)
	if err != nil || at >= uint64(len(all)) {
		return 0, false
	}
	return all[at] >> shift & mask, true
}

// buffered returns a byte of a page that is in the server's buffers of pg_xact; false: the page is not there.
func (c *commitLog) buffered(page uint32, at uint64) (byte, bool) {
	if c.region == 0 {
		return 0, false
	}
	header := make([]byte, c.l.Header)
	if c.r.read(c.region, header) != nil {
		return 0, false
	}
	slots := i32(header, c.l.Slots)
	if slots < 1 || slots > c.l.MaxSlots {
		return 0, false
	}
	numbersAt := u64(header, c.l.Numbers)
	numbers := make([]byte, slots*c.l.NumberSize)
	if c.r.read(numbersAt, numbers) != nil {
		return 0, false
	}
	for i := range slots {
		if u32(numbers, i*c.l.NumberSize) != page {
			continue
		}
		var status, again [4]byte
		var b [1]byte
		statusAt := u64(header, c.l.Status) + uint64(i*len(status))
		if c.r.read(statusAt, status[:]) != nil || u32(status[:], 0) != c.l.Valid && u32(status[:], 0) != c.l.Writing {
			continue // such as a slot that has had this page
		}
		start, err := c.r.pointer(u64(header, c.l.Buffers) + uint64(8*i))
		if err != nil || c.r.read(start+at, b[:]) != nil {
			return 0, false
		}
		if c.r.read(numbersAt+uint64(i*c.l.NumberSize), again[:]) != nil || u32(again[:], 0) != page {
			return 0, false
		}
		return b[0], true
	}
	return 0, false
}
