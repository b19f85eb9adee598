package locks

import (
	"fmt"
	"slices"
	"sort"
	"time"
)

// kind returns the kind of a wait that is not for a heavyweight lock; empty if the package does not report such waits.
func (r *Reader) kind(event uint32) Kind {
	if event == 0 {
		return ""
	}
	class, name, _ := r.names.Name(event)
	switch {
	case class == "LWLock" || class == "Buffer" && name != "BufferCleanup": // from 19 on, locks of buffers have events of their own
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

// other adds to m the wait of a process that does not wait for a heavyweight lock.
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
		w.Blockers, w.Reason = r.reader(p)
	case BufferPin:
		r.pin(&w, p)
	case LWLock:
		w.Reason = "holder unknown: the server does not record holders of lightweight locks"
	default:
	}
	w.Changed = w.Reason == errChanged.Error()
	m.Waits = append(m.Waits, w)
}

// safeSnapshot returns the same processes as pg_safe_snapshot_blocking_pids, with their transactions.
func (r *Reader) safeSnapshot(p *proc) ([]Blocker, string) {
	for range tries {
		first, ok1 := r.unsafe(p.pid)
		second, ok2 := r.unsafe(p.pid)
		if ok1 && ok2 && slices.Equal(first, second) {
			return first, ""
		}
	}
	return nil, "unknown: the list of serializable transactions could not be read"
}

// unsafe returns the blockers of a process that waits for a safe snapshot: the conflicts of its serializable
// transaction. It returns false if they cannot be read.
func (r *Reader) unsafe(pid int) ([]Blocker, bool) {
	l := &r.layout
	table := r.region("PredXactList")
	if table == 0 {
		return nil, false
	}
	limit := 16 * (r.count + r.prepared)
	read := func(link uint64) (sxact uint64, b []byte) {
		sxact = link - uint64(int64(l.SxactLink))
		return sxact, r.one(sxact, l.SxactSize)
	}
	head := at(table, r.layout.PredXactActive)
	for link := r.next(head); link != 0 && link != head; link = r.next(link) {
		if limit--; limit < 0 || link%8 != 0 {
			return nil, false
		}
		sxact, b := read(link)
		if b == nil {
			return nil, false
		}
		if i32(b, l.SxactPID) != pid || u32(b, l.SxactFlags)&r.layout.SxactDeferrableWaiting == 0 {
			continue
		}
		return r.conflicts(sxact)
	}
	return nil, false
}

func (r *Reader) conflicts(sxact uint64) (blockers []Blocker, ok bool) {
	l := &r.layout
	head := sxact + uint64(l.SxactUnsafe)
	for link := r.next(head); link != head; link = r.next(link) {
		if link == 0 || link%8 != 0 || len(blockers) > r.count+r.prepared {
			return nil, false
		}
		b := r.one(link-uint64(r.layout.ConflictInLink), r.layout.ConflictSize)
		if b == nil || u64(b, r.layout.ConflictSxactIn) != sxact {
			return nil, false
		}
		other := r.one(u64(b, r.layout.ConflictSxactOut), l.SxactSize)
		if other == nil || i32(other, l.SxactPID) < 0 {
			return nil, false
		}
		pid := i32(other, l.SxactPID)
		blocker := Blocker{PID: pid, Proc: -1, Leader: pid, Hard: true}
		if pid == 0 { // a prepared transaction
			blocker.XID = u32(other, l.SxactXid)
			blocker.GID = r.readGID(-1, blocker.XID)
		}
		blockers = append(blockers, blocker)
	}
	return blockers, true
}

// next returns the next node of a ring; 0 if it cannot be read.
func (r *Reader) next(link uint64) uint64 {
	b := r.one(at(link, r.layout.NodeNext), 8)
	if b == nil {
		return 0
	}
	return u64(b, 0)
}

// reader returns the transaction for which the replay of a standby waits. The server does not record which one this is.
// It is certain only if exactly one process besides the startup process (p) has a transaction. Otherwise the result is
// the reason why the transaction is unknown.
func (r *Reader) reader(p *proc) ([]Blocker, string) {
	var only []proc
	for _, a := range r.active {
		if a.index != p.index {
			only = append(only, a)
		}
	}
	if len(only) != 1 {
		return nil, "unknown: the server does not record for which transaction the replay waits"
	}
	b := only[0]
	now, err := r.readProcs([]int{p.index, b.index})
	if err != nil || now[p.index].event != p.event || now[b.index].pid != b.pid || now[b.index].lxid != b.lxid {
		return nil, errChanged.Error()
	}
	return []Blocker{{PID: b.pid, Proc: b.index, Leader: b.pid, Hard: true}}, ""
}

// Methods of synchronous_standby_names (syncrep.h), and states of a WAL sender (walsender_private.h).
const (
	methodPriority = 0
	methodQuorum   = 1
	stateStreaming = 3
	stateStopping  = 4
)

// sender is a process that sends WAL to a synchronous standby. lag is how many bytes of WAL the standby has not yet
// confirmed, up to the end of the commit.
type sender struct{ pid, priority, lag int }

// standbys returns the processes that send WAL to the synchronous standbys which have not confirmed a commit. With a
// quorum each of these processes is a soft blocker (Blocker.Hard is false), because other standbys may confirm instead.
func (r *Reader) standbys(p *proc) ([]Blocker, string) {
	const waiting = 1 // SYNC_REP_WAITING
	unknown := "unknown: the table of WAL senders could not be read"
	if p.syncState != waiting {
		return nil, errChanged.Error()
	}
	table := r.region("Wal Sender Ctl")
	position := r.syncQueue(table, p)
	method, count := r.syncMethod()
	switch {
	case table == 0 || count <= 0:
		return nil, unknown
	case position == 0:
		return nil, errChanged.Error()
	}
	senders, ok := r.senders(table, position, p.waitLSN)
	if !ok {
		return nil, unknown
	}
	return behind(senders, method, count)
}

// behind returns the blockers of a commit: the senders whose standbys have not confirmed it. count standbys have to confirm
// the commit; with methodPriority these are the first ones by priority. Without blockers, behind returns the reason.
func behind(senders []sender, method, count int) ([]Blocker, string) {
	if len(senders) < count {
		return nil, fmt.Sprintf("%d of %d required synchronous standbys are connected", len(senders), count)
	}
	if method == methodPriority {
		sort.SliceStable(senders, func(i, j int) bool {
			a, b := senders[i], senders[j]
			return a.priority-b.priority < 0
		})
		senders = senders[:count]
	}
	var blockers []Blocker
	for _, s := range senders {
		if s.lag > 0 {
			blockers = append(blockers, Blocker{PID: s.pid, Proc: -1, Leader: s.pid, Hard: method == methodPriority, Behind: uint64(s.lag)})
		}
	}
	if blockers == nil {
		return nil, "the standbys have confirmed the commit"
	}
	return blockers, ""
}

// syncQueue finds the queue of a waiting commit, and returns the offset in WalSnd of the position that it waits for:
// write, flush or apply. It returns 0 if no queue has the process.
func (r *Reader) syncQueue(table uint64, p *proc) int {
	if table == 0 {
		return 0
	}
	if r.queued == nil { // read once in a moment: thousands of commits may wait
		r.queued = r.syncQueues(table)
	}
	return r.queued[p.index]
}

// syncQueues returns the results of syncQueue for all processes in the queues, by the positions of their PGPROCs.
func (r *Reader) syncQueues(table uint64) map[int]int {
	const queues = 3
	queued := make(map[int]int)
	for mode := range queues {
		head := at(table, r.layout.WalSndQueues+mode*r.layout.NodeSize)
		for range tries {
			if r.followQueue(head, r.layout.WalSndWrite+8*mode, queued) {
				break
			}
		}
	}
	return queued
}

// followQueue notes a position for each process in the queue of a head. It returns false if it has not reached the end: a commit
// left the queue meanwhile, or the deadline has passed.
func (r *Reader) followQueue(head uint64, position int, queued map[int]int) bool {
	link := r.next(head)
	for range r.count + 1 {
		if link == head {
			return true
		}
		i, ok := r.index(link - uint64(r.layout.ProcSyncRepLinks))
		if link == 0 || !ok || time.Now().After(r.deadline) {
			return false
		}
		queued[i] = position
		link = r.next(link)
	}
	return false
}

func (r *Reader) syncMethod() (method, count int) {
	b := r.one(r.syncConfig, 8)
	if r.syncConfig == 0 || b == nil || u64(b, 0) == 0 {
		return 0, 0
	}
	if b = r.one(u64(b, 0), r.layout.SyncConfigSize); b == nil || b[r.layout.SyncConfigMethod] > methodQuorum {
		return 0, 0
	}
	return int(b[r.layout.SyncConfigMethod]), i32(b, r.layout.SyncConfigCount)
}

// senders returns the processes that send WAL to synchronous standbys; false: the table cannot be read.
func (r *Reader) senders(table uint64, position int, lsn uint64) (senders []sender, ok bool) {
	b := r.one(r.maxSenders, 4)
	if r.maxSenders == 0 || b == nil {
		return nil, false
	}
	n := i32(b, 0)
	if n <= 0 || n > r.count {
		return nil, false
	}
	if b = r.one(table+uint64(r.layout.WalSnds), n*r.layout.WalSndSize); b == nil {
		return nil, false
	}
	for i := range n {
		s := b[i*r.layout.WalSndSize:][:r.layout.WalSndHead]
		state, priority := u32(s, r.layout.WalSndState), i32(s, r.layout.WalSndPriority)
		flush := u64(s, r.layout.WalSndFlush) // 0: the receiver has reported none, like pg_receivewal; the server does not wait for it
		if pid := i32(s, r.layout.WalSndPID); pid > 0 && priority > 0 && flush != 0 && (state == stateStreaming || state == stateStopping) {
			lag := uint64(0)
			if confirmed := u64(s, position); confirmed < lsn {
				lag = lsn - confirmed
			}
			senders = append(senders, sender{pid, priority, int(min(lag, 1<<62))})
		}
	}
	return senders, true
}
