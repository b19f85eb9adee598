package locks

import (
	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/pg/layout"
)

// Offsets, in bytes, of fields on 64-bit machines. The names are those of the C fields.
const (
	// PROC_HDR (proc.h).
	hdrAllProcs = 0

	// PGPROC (proc.h), alike in 14 to 18.
	procLinks        = 0
	procXid          = 52
	procWaitLock     = 112
	procWaitProcLock = 120
	procWaitLockMode = 128
	procWaitStart    = 136
	procWaitLSN      = 152
	procSyncRepState = 160
	procSyncRepLinks = 168

	// LOCK (lock.h).
	lockProcLocks  = 24
	lockWaitProcs  = 40
	lockQueueSize  = 56
	lockRequested  = 64
	lockNRequested = 104
	lockGranted    = 108
	lockNGranted   = 148
	lockSize       = 152
	maxLockModes   = 10

	// PROCLOCK (lock.h).
	procLockMyLock      = 0
	procLockMyProc      = 8
	procLockGroupLeader = 16
	procLockHoldMask    = 24
	procLockLink        = 32
	procLockSize        = 64
	lockPartitions      = 16 // NUM_LOCK_PARTITIONS (lwlock.h)

	// dlist_node (ilist.h), and SHM_QUEUE (shmem.h) until 15.
	nodeNext = 8
	nodeSize = 16

	// PGShmemHeader (pg_shmem.h).
	shmemTotalSize = 8
	shmemIndex     = 32
	shmemMagic     = 679834894
	shmemHeader    = 40

	// HASHHDR (dynahash.c).
	hashNSegs      = 776
	hashMaxBucket  = 784
	hashKeySize    = 800
	hashEntrySize  = 808
	hashSegment    = 832 // ssize
	hashSize       = 848
	elementKey     = 16 // HASHELEMENT
	indexKeySize   = 48 // ShmemIndexEnt (shmem.h)
	indexLocation  = 48
	indexEntrySize = 72

	// TwoPhaseStateData and GlobalTransactionData (twophase.c).
	twoPhaseCount = 8
	twoPhaseXacts = 16
	gxactProcNo   = 8
	gxactXid      = 40
	gidSize       = 200

	// PredXactListData (predicate_internals.h): activeList.
	predXactActive = 16

	// SERIALIZABLEXACT (predicate_internals.h): flag.
	sxactDeferrableWaiting = 0x40
	// RWConflictData (predicate_internals.h).
	conflictInLink   = 16
	conflictSxactOut = 32
	conflictSxactIn  = 40
	conflictSize     = 48

	// WalSndCtlData and WalSnd (walsender_private.h).
	walSndQueues   = 0 // SyncRepQueue
	walSndPID      = 0
	walSndState    = 4
	walSndWrite    = 24 // then flush and apply
	walSndPriority = 72
	walSndHead     = 80

	// SyncRepConfigData (syncrep.h).
	syncConfigCount  = 4 // num_sync
	syncConfigMethod = 8
	syncConfigSize   = 12
)

// versionLayout has the offsets that differ between major versions.
type versionLayout struct {
	procSize, procPID, procWaitEvent, hdrCount int

	lockGroupLeader, procLxid int // PGPROC
	myProcLocks, procLink     int // PGPROC and PROCLOCK; 0: not known

	gxactGID, gxactSize int // GlobalTransactionData

	// SERIALIZABLEXACT, and the position of a list's node in it.
	sxactLink, sxactUnsafe, sxactFlags, sxactPID, sxactSize int

	// WalSndCtlData, and the size of WalSnd.
	walSnds, walSndSize int
}

// layoutOf returns the offsets of a major version; false if they are not known.
func layoutOf(major int, l *waits.Layout) (versionLayout, bool) {
	v := versionLayout{
		procSize: l.ProcSize, procPID: l.PID, procWaitEvent: l.WaitEvent, hdrCount: l.ProcCount,
		lockGroupLeader: 840, procLxid: 60, gxactGID: 55, gxactSize: 256,
		sxactLink: 96, sxactUnsafe: 128, sxactFlags: 156, sxactPID: 160, sxactSize: 168,
		walSnds: 80, walSndSize: 96,
	}
	switch major {
	case 14, 15:
		v.sxactLink, v.sxactUnsafe, v.sxactFlags, v.sxactPID, v.sxactSize = -16, 112, 140, 144, 152
	case 16:
		v.walSnds, v.walSndSize = 104, 104
	case 17:
		v.lockGroupLeader, v.procLxid = 848, 72
		v.walSnds, v.walSndSize = 112, 104
	case 18:
		v.lockGroupLeader, v.procLxid = 792, 72
		v.walSnds, v.walSndSize = 112, 96
		v.gxactGID, v.gxactSize = 55, 256
	default:
		return versionLayout{}, false
	}
	if s, ok := layout.Of(major); ok {
		v.myProcLocks, v.procLink = s.PGPROC.MyProcLocks.Int(), s.PROCLOCK.ProcLink.Int()
	}
	return v, true
}
