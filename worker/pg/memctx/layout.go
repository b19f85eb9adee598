package memctx

import "pg_stat_backtrace/worker/pg/layout"

// offsets has the offsets of one major version: those in package layout, and values that are derived from them.
type offsets struct {
	*layout.Layout

	// Free chunks of an AllocSet (aset.c): the offset of the link to the next chunk, the size of the header, whether
	// each chunk has its size in its header, and the number of free lists.
	chunkLink    uint64
	chunkHeader  uint64
	chunkHasSize bool
	freeLists    uint64

	slabs slabOffsets
}

// slabOffsets is SlabContext (slab.c).
type slabOffsets struct {
	fullChunkSize, blockSize, chunksPerBlock uint64
	wide                                     bool   // sizes are of 64 bits
	headerSize                               uint64 // the offset of the size of the context's header; 0: that size is constant
	header                                   uint64 // the size of the context's header, if it is constant
	empty                                    uint64 // the offset of the number of empty blocks; 0: empty blocks are in a list
	lists, count                             uint64 // lists: offset of the dlist_heads; count: their number, 0: chunksPerBlock + 1
	free                                     int64  // the offset of SlabBlock.nfree from SlabBlock.node
	owner                                    int64  // the offset of SlabBlock.slab from SlabBlock.node; 0: there is none
}

// smallest is the number of usable bytes of the chunks in the first free list of an AllocSet. Each further list has
// chunks of twice the size of the previous list.
const smallest = 8

// pointer is the size of a pointer.
const pointer = 8

// offsetsOf returns the offsets of a major version; false if they are not known.
func offsetsOf(major int) (*offsets, bool) {
	l, ok := layout.Of(major)
	if !ok || !l.AllocSetContext.InitBlockSize.Known() || !l.SlabContext.Blocklist.Known() {
		return nil, false
	}
	o := &offsets{Layout: l, slabs: slabsOf(l)}
	set := &l.AllocSetContext
	o.freeLists = (set.InitBlockSize.Uint64() - set.Freelist.Uint64()) / pointer
	if l.AllocChunkData.Size.Known() {
		o.chunkLink, o.chunkHeader, o.chunkHasSize = l.AllocChunkData.Aset.Uint64(), l.AllocChunkData.Size.Uint64(), true
	} else {
		o.chunkLink, o.chunkHeader = l.MemoryChunk.Size.Uint64(), l.MemoryChunk.Size.Uint64()
	}
	return o, true
}

func slabsOf(l *layout.Layout) slabOffsets {
	s, b := &l.SlabContext, &l.SlabBlock
	o := slabOffsets{
		fullChunkSize: s.FullChunkSize.Uint64(), blockSize: s.BlockSize.Uint64(), chunksPerBlock: s.ChunksPerBlock.Uint64(),
		wide:  s.BlockSize.Uint64()-s.FullChunkSize.Uint64() == pointer,
		empty: uint64(s.Emptyblocks.Or(0)), lists: s.Blocklist.Uint64(),
		free: int64(b.Nfree.Int() - b.Node.Int()),
	}
	if b.Slab.Known() {
		o.owner = int64(b.Slab.Int() - b.Node.Int())
	}
	if s.HeaderSize.Known() {
		o.headerSize = s.HeaderSize.Uint64() // the array of lists has no constant length
	} else {
		o.header, o.count = s.Size.Uint64(), (s.Size.Uint64()-o.lists)/l.DlistNode.Size.Uint64()
	}
	return o
}
