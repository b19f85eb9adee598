package layout

// Locks has the offsets and sizes that a reader of lock waits needs: in bytes, on 64-bit machines. Each name is the
// structure's, followed by the C field's.
type Locks struct {
	// PROC_HDR and PGPROC (proc.h). ProcWaitLink is the node of the process in the queue of the lock that it waits for.
	HdrAllProcs, HdrCount                                                    int
	ProcSize, ProcPID, ProcWaitEvent, ProcWaitLink, ProcXid, ProcLxid        int
	ProcWaitLock, ProcWaitProcLock, ProcWaitLockMode, ProcWaitStart          int
	ProcWaitLSN, ProcSyncRepState, ProcSyncRepLinks, ProcLeader, ProcMyLocks int
	// ProcFastBits and ProcFastRelations have the relation locks that a process has without an entry in the lock table
	// (the fast path). Each slot has FastBits bits, for the modes from FastFirst on, and the relation's oid. A group has
	// FastSlots slots. If FastGroups is empty, PGPROC has one group. Otherwise PGPROC has two pointers to several groups,
	// and the server's variable that FastGroups names has their number.
	ProcDatabase, ProcFastBits, ProcFastRelations int
	FastSlots, FastBits, FastFirst                int
	FastGroups                                    string

	// LOCKTAG (lock.h).
	TagField1, TagField2, TagField3, TagField4, TagType, TagMethod int

	// LOCK and PROCLOCK (lock.h). LockQueueSize is the number of processes in the queue.
	LockSize, LockProcLocks, LockWaitProcs, LockQueueSize        int
	LockRequested, LockNRequested, LockGranted, LockNGranted     int
	ProcLockSize, ProcLockMyLock, ProcLockMyProc, ProcLockLeader int
	ProcLockHoldMask, ProcLockLink, ProcLockProcLink             int
	LockModeCounts, LockPartitions                               int // MAX_LOCKMODES (lock.h), NUM_LOCK_PARTITIONS (lwlock.h)
	NodeNext, NodeSize                                           int // dlist_node (ilist.h); SHM_QUEUE (shmem.h) until 15
	ShmemMagic                                                   uint32
	ShmemHeader, ShmemTotalSize                                  int // PGShmemHeader (pg_shmem.h)
	// ShmemIndex is the offset, in PGShmemHeader, of the address of the index. From 19 on that address is in
	// ShmemAllocatorData (shmem.c), whose offset in the segment PGShmemHeader has at ShmemAllocator. ShmemAllocator is
	// 0 before 19.
	ShmemIndex, ShmemAllocator int

	// HASHHDR (dynahash.c). HashDirectory is the offset of the directory's address; 0 if the directory follows the
	// header. HashSegment is the offset of the number of buckets of a segment; 0 if this number is always
	// HashSegmentSize.
	HashSize, HashNSegs, HashMaxBucket, HashKeySize, HashEntrySize int
	HashDirectory, HashSegment, HashSegmentSize                    int
	ElementKey                                                     int // HASHELEMENT
	IndexKeySize, IndexLocation, IndexEntrySize                    int // ShmemIndexEnt (shmem.c)

	// TwoPhaseStateData and GlobalTransactionData (twophase.c). A transaction id has 32 bits, from 19 on 64 bits.
	TwoPhaseCount, TwoPhaseXacts                             int
	GxactSize, GxactProcNo, GxactXid, GxactXidSize, GxactGID int
	GIDSize                                                  int

	// PredXactListData, SERIALIZABLEXACT and RWConflictData (predicate_internals.h). SxactLink is negative in versions
	// until 15, in which the list node precedes the structure.
	PredXactActive                                                    int
	SxactLink, SxactUnsafe, SxactXid, SxactFlags, SxactPID, SxactSize int
	SxactDeferrableWaiting                                            uint32
	ConflictInLink, ConflictSxactOut, ConflictSxactIn, ConflictSize   int

	// WalSndCtlData and WalSnd (walsender_private.h), SyncRepConfigData (syncrep.h). After WalSndWrite come flush and
	// apply, 8 bytes each. WalSndHead is the size of the part of WalSnd that the reader needs.
	WalSndQueues, WalSnds, WalSndSize, WalSndPID, WalSndState, WalSndWrite, WalSndFlush, WalSndPriority, WalSndHead int
	SyncConfigSize, SyncConfigCount, SyncConfigMethod                                                               int
}

// LocksOf returns the offsets of a major version. It returns false if the version or one of its offsets is not known.
func LocksOf(major int) (Locks, bool) {
	l, ok := Of(major)
	if !ok {
		return Locks{}, false
	}
	waitLink := l.PGPROC.WaitLink
	if !waitLink.Known() {
		waitLink = l.PGPROC.Links
	}
	v := Locks{
		LockModeCounts: 10, LockPartitions: 16,
		FastSlots: 16, FastBits: 3, FastFirst: 1, // lock.c, proc.h
		ShmemMagic: 679834894, ShmemHeader: 40, ShmemIndex: 32,
		HashSize: 848, HashNSegs: 776, HashMaxBucket: 784, HashKeySize: 800, HashEntrySize: 808, HashSegment: 832,
		IndexKeySize: 48, IndexLocation: 48, IndexEntrySize: 72,
		TwoPhaseCount: 8, TwoPhaseXacts: 16,
		GxactSize: 256, GxactProcNo: 8, GxactXid: 40, GxactXidSize: 4, GxactGID: 55, GIDSize: 200,
		PredXactActive: 16, SxactLink: 96, SxactUnsafe: 128, SxactXid: 144, SxactFlags: 156, SxactPID: 160, SxactSize: 168,
		SxactDeferrableWaiting: 0x40,
		ConflictInLink:         16, ConflictSxactOut: 32, ConflictSxactIn: 40, ConflictSize: 48,
		WalSndPID: 0, WalSndState: 4, WalSndWrite: 24, WalSndFlush: 32, WalSndPriority: 72, WalSndHead: 80,
		SyncConfigCount: 4, SyncConfigMethod: 8, SyncConfigSize: 12,
	}
	known := true
	for place, o := range map[*int]Offset{
		&v.HdrAllProcs: l.ProcHdr.AllProcs, &v.HdrCount: l.ProcHdr.AllProcCount, &v.ProcSize: l.PGPROC.Size,
		&v.ProcPID: l.PGPROC.PID, &v.ProcWaitEvent: l.PGPROC.WaitEventInfo, &v.ProcWaitLink: waitLink,
		&v.ProcXid: l.PGPROC.Xid, &v.ProcLxid: l.PGPROC.Lxid, &v.ProcWaitLock: l.PGPROC.WaitLock,
		&v.ProcWaitProcLock: l.PGPROC.WaitProcLock, &v.ProcWaitLockMode: l.PGPROC.WaitLockMode,
		&v.ProcWaitStart: l.PGPROC.WaitStart, &v.ProcWaitLSN: l.PGPROC.WaitLSN,
		&v.ProcSyncRepState: l.PGPROC.SyncRepState, &v.ProcSyncRepLinks: l.PGPROC.SyncRepLinks,
		&v.ProcLeader: l.PGPROC.LockGroupLeader, &v.ProcMyLocks: l.PGPROC.MyProcLocks,
		&v.ProcDatabase: l.PGPROC.DatabaseId, &v.ProcFastBits: l.PGPROC.FpLockBits, &v.ProcFastRelations: l.PGPROC.FpRelId,
		&v.TagField1: l.LOCKTAG.LocktagField1, &v.TagField2: l.LOCKTAG.LocktagField2, &v.TagField3: l.LOCKTAG.LocktagField3,
		&v.TagField4: l.LOCKTAG.LocktagField4, &v.TagType: l.LOCKTAG.LocktagType, &v.TagMethod: l.LOCKTAG.LocktagLockmethodid,
		&v.LockSize: l.LOCK.Size, &v.LockProcLocks: l.LOCK.ProcLocks, &v.LockWaitProcs: l.LOCK.WaitProcs,
		&v.LockRequested: l.LOCK.Requested, &v.LockNRequested: l.LOCK.NRequested, &v.LockGranted: l.LOCK.Granted,
		&v.LockNGranted: l.LOCK.NGranted, &v.ProcLockSize: l.PROCLOCK.Size, &v.ProcLockMyLock: l.PROCLOCK.MyLock,
		&v.ProcLockMyProc: l.PROCLOCK.MyProc, &v.ProcLockLeader: l.PROCLOCK.GroupLeader,
		&v.ProcLockHoldMask: l.PROCLOCK.HoldMask, &v.ProcLockLink: l.PROCLOCK.LockLink, &v.ProcLockProcLink: l.PROCLOCK.ProcLink,
		&v.NodeNext: l.DlistNode.Next, &v.NodeSize: l.DlistNode.Size, &v.ShmemTotalSize: l.PGShmemHeader.Totalsize,
		&v.ElementKey: l.HASHELEMENT.Size,
	} {
		*place = o.Int()
		known = known && o.Known()
	}
	v.LockQueueSize = v.LockWaitProcs + v.NodeSize
	const fastGroups = 18 // the first version with several groups
	if major >= fastGroups {
		v.FastGroups = "FastPathLockGroupsPerBackend"
	}
	switch major {
	case 14, 15:
		v.SxactLink, v.SxactUnsafe, v.SxactXid, v.SxactFlags, v.SxactPID, v.SxactSize = -16, 112, 128, 140, 144, 152
		v.WalSnds, v.WalSndSize = 80, 96
	case 16:
		v.WalSnds, v.WalSndSize = 104, 104
	case 17:
		v.WalSnds, v.WalSndSize = 112, 104
	case 18:
		v.WalSnds, v.WalSndSize = 112, 96
	case 19:
		v.WalSnds, v.WalSndSize = 112, 96
		v.ShmemAllocator, v.ShmemIndex, v.IndexEntrySize = 16, 16, 80
		v.HashDirectory, v.HashSegment, v.HashSegmentSize = 840, 0, 256
		v.GxactSize, v.GxactXidSize, v.GxactGID = 264, 8, 59
	default:
		return Locks{}, false
	}
	return v, known
}
