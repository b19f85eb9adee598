package memctx

// layout holds the node tags and offsets, in bytes, of one major version on a 64-bit machine.
type layout struct {
	allocSet, generation, slab, bump uint32 // node tags (nodes.h, nodetags.h); bump is 0 before 17

	// Free chunks of an AllocSet (aset.c): where the link to the next one is, and whether each has its own size.
	chunkLink    uint64
	chunkHeader  uint64
	chunkHasSize bool

	generationHead   uint64 // GenerationContext.blocks
	generationHeader uint64 // size of GenerationContext, which mem_allocated does not have
	generationBlock  uint64 // GenerationBlock.blksize; nchunks, nfree, freeptr and endptr follow
	generationOwner  bool   // GenerationBlock.context is before blksize

	slabs slabLayout
}

// slabLayout is SlabContext (slab.c).
type slabLayout struct {
	fullChunkSize, blockSize, chunksPerBlock uint64
	wide                                     bool   // sizes are of 64 bits
	headerSize                               uint64 // where the size of the context's header is, 0 where it is constant
	header                                   uint64 // that constant
	empty                                    uint64 // where the number of empty blocks is, 0 where they are in a list
	lists, count                             uint64 // dlist_heads; their number, 0: chunksPerBlock + 1
	free                                     int64  // SlabBlock.nfree, from SlabBlock.node
	owner                                    int64  // SlabBlock.slab, from SlabBlock.node; 0: it has none
}

// Fields of MemoryContextData (memnodes.h), of 14 to 19.
const (
	contextAllocated  = 8
	contextParent     = 24
	contextFirstChild = 32
	contextPrevChild  = 40
	contextNextChild  = 48
	contextName       = 56
	contextIdent      = 64
	contextSize       = 80
)

// Fields of AllocSetContext and AllocBlockData (aset.c), of 14 to 19.
const (
	setBlocks    = contextSize
	setFreeLists = 88
	freeLists    = 11
	smallest     = 8 // usable bytes of the chunks in the first free list; each has twice as many as the one before

	blockSet     = 0
	blockPrev    = 8
	blockNext    = 16
	blockFreePtr = 24
	blockEndPtr  = 32
)

// Fields of BumpContext and BumpBlock (bump.c), of 17 to 19.
const (
	bumpHead    = 96
	bumpHeader  = 112
	bumpFreePtr = 16
	bumpEndPtr  = 24
)

//nolint:gochecknoglobals // a table
var layouts = map[int]*layout{
	14: {
		allocSet: 222, slab: 223, generation: 224,
		chunkLink: 8, chunkHeader: 16, chunkHasSize: true,
		generationHead: 96, generationHeader: 112, generationBlock: 16,
		slabs: earlySlabs,
	},
	15: {
		allocSet: 223, slab: 224, generation: 225,
		chunkLink: 8, chunkHeader: 16, chunkHasSize: true,
		generationHead: 136, generationHeader: 152, generationBlock: 16,
		slabs: earlySlabs,
	},
	16: {
		allocSet: 450, generation: 451, slab: 452,
		chunkLink: 8, chunkHeader: 8,
		generationHead: 136, generationHeader: 152, generationBlock: 24, generationOwner: true,
		slabs: slabLayout{
			fullChunkSize: 88, blockSize: 96, chunksPerBlock: 104, wide: true, header: 192, empty: 136, lists: 144, count: 3,
			free: -24, owner: -32,
		},
	},
	17: {
		allocSet: 469, generation: 470, slab: 471, bump: 472,
		chunkLink: 8, chunkHeader: 8,
		generationHead: 112, generationHeader: 128, generationBlock: 24, generationOwner: true,
		slabs: laterSlabs,
	},
	18: {
		allocSet: 474, generation: 475, slab: 476, bump: 477,
		chunkLink: 8, chunkHeader: 8,
		generationHead: 112, generationHeader: 128, generationBlock: 24, generationOwner: true,
		slabs: laterSlabs,
	},
	19: {
		allocSet: 482, generation: 483, slab: 484, bump: 485,
		chunkLink: 8, chunkHeader: 8,
		generationHead: 112, generationHeader: 128, generationBlock: 24, generationOwner: true,
		slabs: laterSlabs,
	},
}

//nolint:gochecknoglobals // a table
var earlySlabs = slabLayout{
	fullChunkSize: 88, blockSize: 96, headerSize: 104, chunksPerBlock: 112, wide: true, lists: 128, free: 16,
}

//nolint:gochecknoglobals // a table
var laterSlabs = slabLayout{
	fullChunkSize: 84, blockSize: 88, chunksPerBlock: 92, header: 176, empty: 120, lists: 128, count: 3,
	free: -24, owner: -32,
}
