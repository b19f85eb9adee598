package source

import (
	"context"
	"slices"
	"strconv"
	"time"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
)

// recordedSpan is the length of the history that fill reads.
const recordedSpan = 15 * time.Minute

// Recorded reads the files of a recorder for one server.
type Recorded struct {
	dir, id string
	reader  *store.Reader
}

// OpenRecorded opens the history of the server with a data directory. The error wraps store.ErrNoHistory if the recorder's
// directory does not have it.
func OpenRecorded(dir, dataDir string) (*Recorded, error) {
	control, err := cluster.ReadControl(dataDir)
	if err != nil {
		return nil, err
	}
	r, err := store.OpenReader(dir, control.ID())
	if err != nil {
		return nil, err
	}
	return &Recorded{dir, control.ID(), r}, nil
}

// Dir returns the recorder's directory.
func (r *Recorded) Dir() string { return r.dir }

// fill adds the recorded sweeps of the last recordedSpan before the time now to p, which must be empty. Sweeps that cannot be read
// become gaps.
func (r *Recorded) fill(now time.Time, p *past, rules *rules) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	stacks := recordedStacks{wanted: map[int64]bool{}}
	_, _ = store.ReadSpan(ctx, r.reader, now.Add(-recordedSpan), now, func(w *store.SpanSweep, gap *store.Gap) error {
		m := momentOf(w)
		p.addRecorded(w, gap, m, rules)
		stacks.add(w, m)
		return nil
	})
	_ = stacks.read(ctx, r.reader, Span{now.Add(-recordedSpan), now}, p)
}

// recordedStacks are sweeps with the numbers of their stacks. The frames of these stacks are read later, by the method read.
type recordedStacks struct {
	sweeps []recordedSweep
	wanted map[int64]bool // the numbers of all stacks
	rows   int            // of all sweeps
}

// recordedSweep has the active sessions of a sweep, and the numbers of their stacks; 0: no stack.
type recordedSweep struct {
	at       time.Time
	period   time.Duration
	sessions []*moment.Session
	stacks   []int64
}

// add adds a sweep, whose moment is m, with the numbers of its stacks. A sweep without stacks is left out.
func (k *recordedStacks) add(w *store.SpanSweep, m *moment.Moment) {
	x := recordedSweep{at: w.Time, period: w.Period}
	at, some := 0, false
	for i := range w.Rows {
		if w.Rows[i].Ended {
			continue
		}
		s := &m.Sessions[at] // momentOf keeps the order of the rows
		at++
		if ClassOf(s) == "" {
			continue
		}
		id := w.Rows[i].Stack
		if !k.wanted[id] && len(k.wanted) >= maxStacks {
			id = 0
		}
		if id != 0 {
			k.wanted[id], some = true, true
		}
		x.sessions, x.stacks = append(x.sessions, s), append(x.stacks, id)
	}
	if some && len(k.sweeps) < maxStackSets && k.rows+len(x.sessions) <= maxStackRows {
		k.sweeps, k.rows = append(k.sweeps, x), k.rows+len(x.sessions)
	}
}

// read reads the frames of all stacks, and adds the stacks to p.
func (k *recordedStacks) read(ctx context.Context, r *store.Reader, span Span, p *past) error {
	if len(k.wanted) == 0 {
		return nil
	}
	found, err := r.Stacks(ctx, span.From.Add(-time.Hour), span.To, k.wanted)
	if err != nil {
		return err
	}
	for _, x := range k.sweeps {
		var list []takenStack
		for i, s := range x.sessions {
			list = append(list, takenStack{s, found[x.stacks[i]].Frames})
		}
		p.addStacks(x.at, KindRecorded, x.period, list)
	}
	return nil
}

// momentOf returns a recorded sweep as a moment. Sessions have the order of the rows. Idle sessions are absent unless they
// block others, as a recorder does not keep them.
func momentOf(w *store.SpanSweep) *moment.Moment {
	m := &moment.Moment{Time: w.Time, Method: "recorded"}
	if w.Note != "" {
		m.Missing = append(m.Missing, w.Note)
	}
	for i := range w.Rows {
		row := &w.Rows[i]
		if row.Ended {
			continue
		}
		s := moment.Session{
			PID: int(row.PID), ServerPID: int(row.PID), Started: stamp(row.Start), Type: row.Type, DatabaseOID: row.DatabaseID,
			UserOID: row.UserID, Database: row.Database, User: row.User, Application: row.App, Client: row.Client,
			State: row.State, XactStart: stamp(row.XactStart), QueryStart: stamp(row.QueryStart), StateStart: stamp(row.StateStart),
			QueryID: row.QueryID, Query: row.Query, Leader: int(row.Leader), Phrase: row.Does(),
		}
		if row.WaitType != "" {
			s.Wait = &moment.Wait{Type: row.WaitType, Event: row.WaitEvent, Since: stamp(row.WaitStart)}
		}
		for _, b := range row.BlockedBy {
			object, relation := moment.ObjectOf(b.Object)
			xid := uint64(0)
			if b.PID == 0 && b.Lock == "transactionid" { // only this lock names the prepared transaction that holds it
				xid, _ = strconv.ParseUint(object, 10, 32)
			}
			s.Blockers = append(s.Blockers, moment.Blocker{
				PID: int(b.PID), XID: uint32(xid), Lock: b.Lock, Mode: b.Mode, Object: object, Relation: relation, Queued: b.Soft,
				Since: stamp(row.WaitStart),
			})
		}
		m.Sessions = append(m.Sessions, s)
	}
	m.Blocking = forestOf(m.Sessions)
	return m
}

func stamp(micro int64) *time.Time {
	if micro == 0 {
		return nil
	}
	t := time.UnixMicro(micro).UTC()
	return &t
}

// forestOf builds the forest of waits for locks from the blockers of each session. A session is listed below each of its
// blockers, but only once with the processes that wait for it.
func forestOf(sessions []moment.Session) []*moment.Node {
	blocked, waits := map[nodeID][]*moment.Session{}, map[nodeID]*moment.Session{}
	for i := range sessions {
		s := &sessions[i]
		for _, id := range parents(s) {
			blocked[id] = append(blocked[id], s)
			waits[nodeID{pid: s.ServerPID}] = s
		}
	}
	const deepest = 1000
	seen := map[nodeID]bool{}
	var below func(id nodeID, depth int) *moment.Node
	below = func(id nodeID, depth int) *moment.Node {
		n := &moment.Node{PID: id.pid, XID: id.xid}
		if s := waits[id]; s != nil {
			b := &s.Blockers[0]
			n.Waits = []moment.LockWait{{PID: id.pid, Lock: b.Lock, Mode: b.Mode, Object: b.Object, Relation: b.Relation, Since: b.Since}}
		}
		if seen[id] || depth > deepest {
			n.Repeated = true
			return n
		}
		seen[id] = true
		for _, s := range blocked[id] {
			n.Blocked = append(n.Blocked, below(nodeID{pid: s.ServerPID}, depth+1))
		}
		return n
	}
	var roots []*moment.Node
	for i := range sessions { // in the order of process ids
		if id := (nodeID{pid: sessions[i].ServerPID}); waits[id] == nil && blocked[id] != nil {
			roots = append(roots, below(id, 0))
		}
	}
	for i := range sessions { // roots that are not sessions of the sweep, such as prepared transactions
		for _, id := range parents(&sessions[i]) {
			if waits[id] == nil && !seen[id] {
				roots = append(roots, below(id, 0))
			}
		}
	}
	for i := range sessions { // the remaining processes are in a cycle or wait behind one: the root is a process of the cycle
		id := nodeID{pid: sessions[i].ServerPID}
		if waits[id] == nil || seen[id] {
			continue
		}
		met := map[nodeID]bool{}
		for waits[id] != nil && !met[id] {
			met[id] = true
			id = parents(waits[id])[0]
		}
		n := below(id, 0)
		n.Deadlock = waits[id] != nil
		roots = append(roots, n)
	}
	return roots
}

// parents returns the nodes below which a session is placed, each once: all that hold the lock. If none is known, it is the first one
// before the session in the queue. A recorder lists it first.
func parents(s *moment.Session) (list []nodeID) {
	for i := range s.Blockers {
		b := &s.Blockers[i]
		if id := (nodeID{b.PID, b.XID}); i == 0 || !b.Queued && !slices.Contains(list, id) {
			list = append(list, id)
		}
	}
	return list
}
