package memctx

import (
	"encoding/binary"

	"pg_stat_backtrace/worker/pg/layout"
)

// maxBlocks bounds the blocks of one context, because hostile memory may claim any number. It suffices for 8 TB in
// blocks of 8 MB.
const maxBlocks = 1 << 20

// blocks reads the blocks of a context. They give all figures except those of the free chunks of an AllocSet; see
// freeChunks.
func (w *walk) blocks(i int) {
	h, ok := w.header(w.at[i])
	if !ok {
		return
	}
	c, ok := w.tree.Contexts[i], false
	switch c.Type {
	case kindAllocSet:
		ok = w.setBlocks(w.at[i], &h, &c)
	case "Generation":
		ok = w.generationBlocks(w.at[i], &h, &c)
	case "Slab":
		ok = w.slabBlocks(w.at[i], &h, &c)
	case "Bump":
		ok = w.bumpBlocks(w.at[i], &h, &c)
	}
	switch {
	case ok:
		w.tree.Contexts[i] = c
	case !w.pages.full:
		w.broken()
	}
}

// setBlocks reads the blocks of an AllocSet. The sizes of the blocks and of the context structure must add up to
// mem_allocated: otherwise it returns false.
func (w *walk) setBlocks(set uint64, h *header, c *Context) bool {
	s, l := &w.layout.AllocSetContext, &w.layout.AllocBlockData
	block, ok := w.pages.word(set + s.Blocks.Uint64())
	c.Total, c.Blocks, c.Free = int64(h.allocated), 0, 0
	sum, prev := uint64(0), uint64(0)
	for ; ok && block != 0; c.Blocks++ {
		b := w.buffer[:l.Endptr.Int()+pointer]
		if c.Blocks >= maxBlocks || block%8 != 0 || !w.pages.read(block, b) || !w.tick() {
			return false
		}
		word := func(at layout.Offset) uint64 { return binary.NativeEndian.Uint64(b[at.Int():]) }
		free, end := word(l.Freeptr), word(l.Endptr)
		if word(l.Aset) != set || word(l.Prev) != prev || free <= block || free > end {
			return false
		}
		sum += end - block
		c.Free += int64(end - free)
		prev, block = block, word(l.Next)
	}
	// The bytes that are in no block are the context structure itself.
	beside := h.allocated - sum
	return ok && c.Blocks > 0 && sum <= h.allocated && beside >= s.InitBlockSize.Uint64() && beside <= maxHeader
}

// maxHeader bounds the size of a context structure itself, in bytes.
const maxHeader = 512

// freeChunks reads the free lists of an AllocSet, and adds their bytes and chunks to the figures of the context.
func (w *walk) freeChunks(i int) {
	c := &w.tree.Contexts[i]
	if w.server.checked {
		c.Free, c.FreeChunks = Unknown, Unknown
		return
	}
	if c.Type != kindAllocSet || c.Total == Unknown {
		return
	}
	chunks, bytes := int64(0), int64(0)
	for list := range w.layout.freeLists {
		size := uint64(smallest) << list
		n, ok := w.freeList(w.at[i]+w.layout.AllocSetContext.Freelist.Uint64()+pointer*list, size, c.Total-bytes)
		if !ok {
			c.Free, c.FreeChunks = Unknown, Unknown
			if !w.pages.full {
				w.broken()
			}
			return
		}
		chunks += n
		bytes += n * int64(size+w.layout.chunkHeader)
	}
	c.Free += bytes
	c.FreeChunks = chunks
}

// freeList counts the chunks of a list whose head is at an address. It returns false if the list has a circle, a chunk
// of another size, or more bytes than limit.
func (w *walk) freeList(head, size uint64, limit int64) (n int64, ok bool) {
	chunk, ok := w.pages.word(head)
	circle, next := uint64(0), int64(1) // an earlier chunk, to detect a circle, and the number of the chunk that replaces it
	for ; ok && chunk != 0; n++ {
		if chunk%8 != 0 || chunk == circle || n*int64(size) > limit || !w.tick() {
			return n, false
		}
		if n == next {
			circle, next = chunk, 2*next
		}
		if w.layout.chunkHasSize {
			if own, readable := w.pages.word(chunk); !readable || own != size {
				return n, false
			}
		}
		chunk, ok = w.pages.word(chunk + w.layout.chunkLink)
	}
	return n, ok
}

// list follows a dlist (ilist.h), whose head is at an address, and calls f with each node until that returns false. The
// links of an empty list may be zeros.
func (w *walk) list(head uint64, f func(node uint64) bool) bool {
	prev, next := head, w.layout.DlistNode.Next.Uint64()
	node, ok := w.pages.word(head + next)
	for n := 0; ok && node != 0 && node != head; n++ {
		back, readable := w.pages.word(node + w.layout.DlistNode.Prev.Uint64())
		if !readable || back != prev || n >= maxBlocks || !w.tick() || !f(node) {
			return false
		}
		prev = node
		node, ok = w.pages.word(node + next)
	}
	return ok && (node == head || prev == head)
}

// generationBlocks reads the blocks of a Generation.
func (w *walk) generationBlocks(set uint64, h *header, c *Context) bool {
	l, sizes := &w.layout.GenerationBlock, &w.layout.GenerationContext
	c.Blocks, c.Free, c.FreeChunks = 0, 0, 0
	sum := uint64(0)
	ok := w.list(set+sizes.Blocks.Uint64(), func(node uint64) bool {
		b := w.buffer[:l.Endptr.Int()+pointer]
		if !w.pages.read(node, b) {
			return false
		}
		word := func(at layout.Offset) uint64 { return binary.NativeEndian.Uint64(b[at.Int():]) }
		number := func(at layout.Offset) int32 { return int32(binary.NativeEndian.Uint32(b[at.Int():])) }
		size, free, end := word(l.Blksize), word(l.Freeptr), word(l.Endptr)
		chunks, unused := number(l.Nchunks), number(l.Nfree)
		if l.Context.Known() && word(l.Context) != set {
			return false
		}
		if end != node+size || free > end || free <= node || unused < 0 || unused > chunks {
			return false
		}
		sum += size
		c.Blocks++
		c.Free += int64(end - free)
		c.FreeChunks += int64(unused)
		return true
	})
	c.Total = int64(h.allocated + sizes.Size.Uint64())
	return ok && sum == h.allocated
}

// bumpBlocks reads the blocks of a Bump. As in pg_backend_memory_contexts, the total does not include the header of a Bump. A
// Bump has no free chunks.
func (w *walk) bumpBlocks(set uint64, h *header, c *Context) bool {
	c.Total, c.Blocks, c.Free, c.FreeChunks = 0, 0, 0, 0
	l, sizes := &w.layout.BumpBlock, &w.layout.BumpContext
	shift := uint64(0)
	if w.server.checked {
		shift = pointer // BumpBlock.context, which only a server with assertions has
	}
	ok := w.list(set+sizes.Blocks.Uint64(), func(node uint64) bool {
		free, ok1 := w.pages.word(node + l.Freeptr.Uint64() + shift)
		end, ok2 := w.pages.word(node + l.Endptr.Uint64() + shift)
		if !ok1 || !ok2 || free <= node || free > end {
			return false
		}
		c.Blocks++
		c.Total += int64(end - node)
		c.Free += int64(end - free)
		return true
	})
	return ok && uint64(c.Total)+sizes.Size.Uint64() == h.allocated
}

// size reads a field that is a Size until 16 and a uint32 from 17 on.
func (w *walk) size(addr uint64) (uint64, bool) {
	v, ok := w.pages.word(addr)
	if !w.layout.slabs.wide {
		var b [4]byte
		ok = w.pages.read(addr, b[:])
		v = uint64(binary.NativeEndian.Uint32(b[:]))
	}
	return v, ok
}

// number reads an int32; false if it is negative or cannot be read.
func (w *walk) number(addr uint64) (uint64, bool) {
	var b [4]byte
	ok := w.pages.read(addr, b[:])
	v := int32(binary.NativeEndian.Uint32(b[:]))
	return uint64(max(v, 0)), ok && v >= 0
}

// slabBlocks reads the blocks of a Slab. As in pg_backend_memory_contexts, empty blocks are included in Total only.
func (w *walk) slabBlocks(set uint64, h *header, c *Context) bool {
	l := &w.layout.slabs
	if w.server.checked {
		return true // a server with assertions has the fields elsewhere: the figures stay unknown
	}
	chunk, ok1 := w.size(set + l.fullChunkSize)
	size, ok2 := w.size(set + l.blockSize)
	perBlock, ok3 := w.number(set + l.chunksPerBlock)
	lists, head := l.count, l.header
	if !ok1 || !ok2 || !ok3 || size == 0 || size > 1<<30 || chunk < smallest || perBlock > size/chunk {
		return false
	}
	nodeSize := w.layout.DlistNode.Size.Uint64() // also the size of a dlist_head
	if lists == 0 {
		lists = perBlock + 1
		var ok bool
		if head, ok = w.pages.word(set + l.headerSize); !ok || head != l.lists+nodeSize*lists {
			return false
		}
	}
	empty := uint64(0)
	if l.empty != 0 {
		var ok bool
		if empty, ok = w.number(set + l.empty); !ok {
			return false
		}
	}
	c.Blocks, c.Free, c.FreeChunks = 0, 0, 0
	for i := range lists {
		ok := w.list(set+l.lists+nodeSize*i, func(node uint64) bool {
			free, ok := w.number(uint64(int64(node) + l.free))
			if l.owner != 0 {
				owner, readable := w.pages.word(uint64(int64(node) + l.owner))
				ok = ok && readable && owner == set
			}
			c.Blocks++
			c.Free += int64(free * chunk)
			c.FreeChunks += int64(free)
			return ok && free <= perBlock
		})
		if !ok {
			return false
		}
	}
	c.Total = int64(head + (uint64(c.Blocks)+empty)*size)
	return (uint64(c.Blocks)+empty)*size == h.allocated
}
