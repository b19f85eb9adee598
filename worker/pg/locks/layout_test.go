package locks

import (
	"testing"

	"pg_stat_backtrace/worker/pg/layout"
)

// TestOffsetsAgree compares the offsets with those of package layout, where it has them.
func TestOffsetsAgree(t *testing.T) {
	t.Parallel()
	for major := 14; major <= 18; major++ {
		l, ok := layout.Of(major)
		if !ok {
			t.Fatalf("version %d has no layout", major)
		}
		compared := 0
		for _, c := range []struct {
			name string
			got  int
			want layout.Offset
		}{
			{"PROC_HDR.allProcs", hdrAllProcs, l.ProcHdr.AllProcs},
			{"PGPROC.links", procLinks, l.PGPROC.Links}, {"PGPROC.xid", procXid, l.PGPROC.Xid},
			{"PGPROC.waitLock", procWaitLock, l.PGPROC.WaitLock}, {"PGPROC.waitProcLock", procWaitProcLock, l.PGPROC.WaitProcLock},
			{"PGPROC.waitLockMode", procWaitLockMode, l.PGPROC.WaitLockMode}, {"PGPROC.waitStart", procWaitStart, l.PGPROC.WaitStart},
			{"PGPROC.waitLSN", procWaitLSN, l.PGPROC.WaitLSN}, {"PGPROC.syncRepState", procSyncRepState, l.PGPROC.SyncRepState},
			{"PGPROC.syncRepLinks", procSyncRepLinks, l.PGPROC.SyncRepLinks},
			{"LOCK.procLocks", lockProcLocks, l.LOCK.ProcLocks}, {"LOCK.waitProcs", lockWaitProcs, l.LOCK.WaitProcs},
			{"LOCK.requested", lockRequested, l.LOCK.Requested}, {"LOCK.nRequested", lockNRequested, l.LOCK.NRequested},
			{"LOCK.granted", lockGranted, l.LOCK.Granted}, {"LOCK.nGranted", lockNGranted, l.LOCK.NGranted},
			{"size of LOCK", lockSize, l.LOCK.Size},
			{"PROCLOCK.myLock", procLockMyLock, l.PROCLOCK.MyLock}, {"PROCLOCK.myProc", procLockMyProc, l.PROCLOCK.MyProc},
			{"PROCLOCK.groupLeader", procLockGroupLeader, l.PROCLOCK.GroupLeader},
			{"PROCLOCK.holdMask", procLockHoldMask, l.PROCLOCK.HoldMask}, {"PROCLOCK.lockLink", procLockLink, l.PROCLOCK.LockLink},
			{"size of PROCLOCK", procLockSize, l.PROCLOCK.Size},
			{"dlist_node.next", nodeNext, l.DlistNode.Next}, {"size of dlist_node", nodeSize, l.DlistNode.Size},
			{"PGShmemHeader.totalsize", shmemTotalSize, l.PGShmemHeader.Totalsize},
			{"HASHHDR.nsegs", hashNSegs, l.HASHHDR.Nsegs}, {"HASHHDR.max_bucket", hashMaxBucket, l.HASHHDR.MaxBucket},
			{"HASHHDR.keysize", hashKeySize, l.HASHHDR.Keysize}, {"HASHHDR.entrysize", hashEntrySize, l.HASHHDR.Entrysize},
			{"size of HASHELEMENT", elementKey, l.HASHELEMENT.Size},
			{"ShmemIndexEnt.location", indexLocation, l.ShmemIndexEnt.Location}, {"size of ShmemIndexEnt", indexEntrySize, l.ShmemIndexEnt.Size},
		} {
			if !c.want.Known() {
				continue
			}
			compared++
			if c.got != c.want.Int() {
				t.Errorf("%d: %s is %d, and %d in package layout", major, c.name, c.got, c.want.Int())
			}
		}
		if compared < 20 {
			t.Errorf("%d: only %d offsets are compared", major, compared)
		}
	}
}
