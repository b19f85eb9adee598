package layout

// Replication has the offsets that a reader of WAL positions needs: in bytes, on 64-bit machines. The offsets in xlog.c and
// xlogrecovery.c come from private structures in the sources of 14.5, 15.18, 16.2, 17.2 and 18.6. Those of 19 are not
// verified, so ReplicationOf returns false for 19.
type Replication struct {
	// XLogCtlData (xlog.c): SharedRecoveryState, and its value after the end of recovery (StateDone). Flushed is the
	// position up to which WAL is on disk.
	State, StateDone, Flushed int
	// XLogRecoveryCtlData (xlogrecovery.c), until 14 XLogCtlData: lastReplayedEndRecPtr and recoveryPauseState, with its
	// value for paused replay (IsPause). ReplayIn is the name of the structure in shared memory.
	ReplayIn                 string
	Replayed, Pause, IsPause int
	// WalRcvData (walreceiver.h): flushedUpto.
	Received int
	// WalSndCtlData and WalSnd (walsender_private.h). SndKind is 0 if the version has no kind.
	Senders, SndSize, SndPID, SndState, SndSent, SndWrite, SndFlush, SndApply, SndReply, SndKind int
	SndCatchup, SndStreaming                                                                     uint32
	SndLogical                                                                                   uint32
	// The size of CheckpointStatsData (xlog.h), a variable of the checkpointer.
	StatsSize int
}

// ReplicationOf returns the offsets of a major version. It returns false if one of them is not known.
func ReplicationOf(major int) (Replication, bool) {
	r := Replication{
		State: 324, StateDone: 2, Flushed: 280, ReplayIn: "XLOG Recovery Ctl", Replayed: 32, Pause: 80, IsPause: 2, Received: 48,
		Senders: 112, SndSize: 96, SndState: 4, SndSent: 8, SndWrite: 24, SndFlush: 32, SndApply: 40, SndReply: 88,
		SndCatchup: 2, SndStreaming: 3, SndLogical: 1, StatsSize: 80,
	}
	switch major {
	case 14:
		r.State, r.Flushed, r.ReplayIn, r.Replayed, r.Pause, r.Senders = 332, 288, "XLOG Ctl", 464, 512, 80
	case 15:
		r.Senders = 80
	case 16:
		r.Senders, r.SndSize, r.SndKind = 104, 104, 96
	case 17:
		r.SndSize, r.SndKind = 104, 96
	case 18:
		r.SndReply, r.SndKind = 80, 88
	default:
		return Replication{}, false
	}
	return r, true
}
