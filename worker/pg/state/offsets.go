package state

import "pg_stat_backtrace/worker/pg/layout"

// Lengths that are the same in all versions.
const (
	nameDataLen    = 64
	progressParams = 20
	bgwTypeLen     = 96
)

// offsets are the offsets of one major version in bytes, from package layout.
type offsets struct {
	// size is the size of PgBackendStatus (backend_status.h). The fields st* are the offsets of its members.
	size                                            int
	stChangecount, stProcpid, stBackendType         int
	stProcStartTimestamp, stXactStartTimestamp      int
	stActivityStartTimestamp, stStateStartTimestamp int
	stDatabaseid, stUserid, stClientaddr            int
	stState, stAppname, stActivityRaw, stQueryID    int
	stProgressCommand, stProgressCommandTarget      int
	stProgressParam                                 int
	// waitStart and lockGroupLeader are members of PGPROC (proc.h). They are negative if the version does not have them.
	waitStart, lockGroupLeader int
	// databaseName and userName are members of Port (libpq-be.h), bgwType one of BackgroundWorker (bgworker.h).
	databaseName, userName, bgwType int
}

// offsetsOf returns the offsets of a major version. It returns false if package layout lacks any of them.
func offsetsOf(version int) (o offsets, ok bool) {
	l, ok := layout.Of(version)
	if !ok {
		return o, false
	}
	e := &l.PgBackendStatus
	needed := []struct {
		to   *int
		from layout.Offset
	}{
		{&o.size, e.Size},
		{&o.stChangecount, e.StChangecount},
		{&o.stProcpid, e.StProcpid},
		{&o.stBackendType, e.StBackendType},
		{&o.stProcStartTimestamp, e.StProcStartTimestamp},
		{&o.stXactStartTimestamp, e.StXactStartTimestamp},
		{&o.stActivityStartTimestamp, e.StActivityStartTimestamp},
		{&o.stStateStartTimestamp, e.StStateStartTimestamp},
		{&o.stDatabaseid, e.StDatabaseid},
		{&o.stUserid, e.StUserid},
		{&o.stClientaddr, e.StClientaddr},
		{&o.stState, e.StState},
		{&o.stAppname, e.StAppname},
		{&o.stActivityRaw, e.StActivityRaw},
		{&o.stProgressCommand, e.StProgressCommand},
		{&o.stProgressCommandTarget, e.StProgressCommandTarget},
		{&o.stProgressParam, e.StProgressParam},
		{&o.stQueryID, e.StQueryId},
		{&o.databaseName, l.Port.DatabaseName},
		{&o.userName, l.Port.UserName},
		{&o.bgwType, l.BackgroundWorker.BgwType},
	}
	for _, n := range needed {
		if !n.from.Known() {
			return offsets{}, false
		}
		*n.to = n.from.Int()
	}
	o.waitStart, o.lockGroupLeader = l.PGPROC.WaitStart.Or(-1), l.PGPROC.LockGroupLeader.Or(-1)
	return o, true
}
