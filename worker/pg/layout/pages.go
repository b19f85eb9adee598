package layout

// Pages is the layout of heap pages and of their buffers. It is the same in versions 14 to 19 (bufpage.h, itemid.h,
// htup_details.h, relmapper.c, buf_internals.h). From 19 on the state of a buffer has 64 bits, of which BufferState is the
// lower half on little-endian machines. The version of the page layout is 4 since PostgreSQL 8.3.
//
//nolint:gochecknoglobals // a table
var Pages = struct {
	// PageSize is the size of a page, BLCKSZ, as nearly all builds have it. The word at PageVersion in each page must
	// be PageVersionWord: the page's size and layout version.
	PageSize, PageLower, PageUpper, PageVersion, PageItems int
	PageVersionWord                                        uint16

	// ItemSize is the size of an item identifier (ItemIdData): 15 bits offset, 2 bits flags, 15 bits length.
	ItemSize, ItemFlagsShift, ItemLengthShift int
	ItemMask, ItemNormal                      uint32

	// Offsets and flags of HeapTupleHeaderData.
	TupleXmin, TupleXmax, TupleInfomask, TupleHoff, TupleHeader             int
	XminCommitted, XminInvalid, XmaxCommitted, XmaxInvalid, XmaxOnlyLocksIt uint16
	XmaxIsMulti                                                             uint16

	// MapSize is at least the size of pg_filenode.map, which begins with MapMagic, the number of entries, and the entries
	// (RelMapFile): an oid and the number of a file each.
	MapSize, MapCount, MapEntries, MapEntrySize, MapFile int
	MapMagic                                             uint32

	// Offsets of BufferDesc. The tag is tablespace, database, file number, fork and block.
	BufferSize, BufferDatabase, BufferFile, BufferFork, BufferBlock, BufferState int
	BufferValid                                                                  uint32

	// ClassOID is the oid of pg_class. Its first columns are oid and relname, which has NameSize bytes.
	ClassOID            uint32
	ClassName, NameSize int

	// AuthidOID and DatabaseOID are the oids of pg_authid and pg_database. Their first columns are those of pg_class: the oid
	// and the name.
	AuthidOID, DatabaseOID uint32
}{
	PageSize: 8192, PageLower: 12, PageUpper: 14, PageVersion: 18, PageItems: 24, PageVersionWord: 8192 | 4,
	ItemSize: 4, ItemFlagsShift: 15, ItemLengthShift: 17, ItemMask: 1<<15 - 1, ItemNormal: 1,
	TupleXmin: 0, TupleXmax: 4, TupleInfomask: 20, TupleHoff: 22, TupleHeader: 23,
	XminCommitted: 0x0100, XminInvalid: 0x0200, XmaxCommitted: 0x0400, XmaxInvalid: 0x0800, XmaxOnlyLocksIt: 0x0080,
	XmaxIsMulti: 0x1000,
	MapSize:     1024, MapCount: 4, MapEntries: 8, MapEntrySize: 8, MapFile: 4, MapMagic: 0x592717,
	BufferSize: 64, BufferDatabase: 4, BufferFile: 8, BufferFork: 12, BufferBlock: 16, BufferState: 24, BufferValid: 1<<24 | 1<<25,
	ClassOID: 1259, ClassName: 4, NameSize: 64,
	AuthidOID: 1260, DatabaseOID: 1262,
}

// CommitLog is the layout of the commit log, pg_xact, and of its buffers (clog.c, slru.h).
type CommitLog struct {
	// Region is the name that the shared memory's index has for the buffers, SlruSharedData. The offsets after it are those
	// of its members, and Header is the size of the part with all of them. The pages' numbers have NumberSize bytes each.
	Region                                  string
	Slots, Buffers, Status, Numbers, Header int
	NumberSize                              int
	// MaxSlots is the greatest number of buffers. A page in a buffer is complete if its status is Valid or Writing.
	MaxSlots       int
	Valid, Writing uint32
	// PageXacts is the number of transactions of a page. Each byte has ByteXacts of them, with Bits bits each: Committed,
	// Aborted, SubCommitted, or 0 if the transaction has not ended. A file has FilePages pages.
	PageXacts, ByteXacts, Bits, FilePages uint32
	Committed, Aborted, SubCommitted      byte
	// FirstNormal is the first id of an ordinary transaction. The rows of earlier ids are visible.
	FirstNormal uint32
}

// CommitLogOf returns the layout of the commit log of a major version.
func CommitLogOf(major int) CommitLog {
	l := CommitLog{
		Region: "transaction", Slots: 0, Buffers: 8, Status: 16, Numbers: 32, Header: 40, NumberSize: 8,
		MaxSlots: 1 << 17, Valid: 2, Writing: 3,
		PageXacts: 32768, ByteXacts: 4, Bits: 2, FilePages: 32, Committed: 1, Aborted: 2, SubCommitted: 3, FirstNormal: 3,
	}
	const longNumbers = 17 // the first version in which a page's number has 64 bits
	if major < longNumbers {
		l.Region, l.Slots, l.Buffers, l.Status, l.Numbers, l.Header, l.NumberSize = "Xact", 8, 16, 24, 40, 48, 4
	}
	return l
}
