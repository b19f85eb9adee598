package locks

// kind returns the kind of a wait that is not for a heavyweight lock; empty if the package has nothing to say of it.
func (r *Reader) kind(event uint32) Kind {
	if event == 0 {
		return ""
	}
	class, name, _ := r.names.Name(event)
	switch {
	case class == "LWLock":
		return LWLock
	case class == "BufferPin" || class == "Buffer":
		return BufferPin
	case name == "SafeSnapshot":
		return SafeSnapshot
	case name == "SyncRep":
		return SyncRep
	case name == "RecoveryConflictSnapshot" || name == "RecoveryConflictTablespace":
		return Conflict
	}
	return ""
}

// other adds a wait that is not for a heavyweight lock.
func (r *Reader) other(m *Moment, p *proc) {
	w := Wait{PID: p.pid, Proc: p.index, Kind: r.kind(p.event), Event: p.event}
	switch w.Kind {
	case "":
		return
	case SafeSnapshot:
		w.Blockers, w.Reason = r.safeSnapshot(p)
	case SyncRep:
		w.Blockers, w.Reason = r.standbys(p)
	case Conflict:
		w.Reason = "the server does not record for which reader the replay waits"
	case BufferPin:
		w.Reason = "holder unknown: the server does not record holders of buffer pins in shared memory"
	case LWLock:
		w.Reason = "holder unknown: the server does not record holders of lightweight locks"
	}
	m.Waits = append(m.Waits, w)
}

// safeSnapshot returns the transactions that pg_safe_snapshot_blocking_pids returns.
func (r *Reader) safeSnapshot(p *proc) ([]Blocker, string) {
	for range tries {
		first, ok1 := r.unsafe(p.pid)
		second, ok2 := r.unsafe(p.pid)
		if !ok1 || !ok2 || len(first) != len(second) {
			continue
		}
		same := true
		for i := range first {
			same = same && first[i].PID == second[i].PID
		}
		if same {
			return first, ""
		}
	}
	return nil, "unknown: the list of serializable transactions could not be read"
}

// unsafe reads the conflicts of the serializable transaction of a process that waits for a safe snapshot.
func (r *Reader) unsafe(pid int) ([]Blocker, bool) {
	l := &r.layout
	table := r.region("PredXactList")
	if table == 0 {
		return nil, false
	}
	limit := 16 * (r.count + r.prepared)
	read := func(link uint64) (sxact uint64, b []byte) {
		sxact = link - uint64(int64(l.sxactLink))
		return sxact, r.one(sxact, l.sxactSize)
	}
	for link := r.next(table + predXactActive); link != 0 && link != table+predXactActive; link = r.next(link) {
		if limit--; limit < 0 || link%8 != 0 {
			return nil, false
		}
		sxact, b := read(link)
		if b == nil {
			return nil, false
		}
		if i32(b, l.sxactPID) != pid || u32(b, l.sxactFlags)&sxactDeferrableWaiting == 0 {
			continue
		}
		return r.conflicts(sxact)
	}
	return nil, false
}

func (r *Reader) conflicts(sxact uint64) (blockers []Blocker, ok bool) {
	l := &r.layout
	head := sxact + uint64(l.sxactUnsafe)
	for link := r.next(head); link != head; link = r.next(link) {
		if link == 0 || link%8 != 0 || len(blockers) > r.count+r.prepared {
			return nil, false
		}
		b := r.one(link-conflictInLink, conflictSize)
		if b == nil || u64(b, conflictSxactIn) != sxact {
			return nil, false
		}
		other := r.one(u64(b, conflictSxactOut), l.sxactSize)
		if other == nil || i32(other, l.sxactPID) < 0 {
			return nil, false
		}
		pid := i32(other, l.sxactPID)
		blockers = append(blockers, Blocker{PID: pid, Proc: -1, Leader: pid, Hard: true})
	}
	return blockers, true
}

// next returns the next node of a ring; 0 if it cannot be read.
func (r *Reader) next(link uint64) uint64 {
	b := r.one(link+nodeNext, 8)
	if b == nil {
		return 0
	}
	return u64(b, 0)
}

// standbys returns the processes that send WAL to synchronous standbys which have not confirmed a commit.
func (r *Reader) standbys(_ *proc) ([]Blocker, string) {
	return nil, "the standby is not known"
}
