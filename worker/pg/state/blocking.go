package state

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/locks"
	"pg_stat_backtrace/worker/report/units"
)

// Blocking adds the blockers of each session, and the forest of waits for locks, to a moment that Read returned. If the
// locks cannot be read, the moment gets the reason in Missing.
func (r *Reader) Blocking(m *moment.Moment) {
	if r.locks == nil {
		reader, err := locks.Open(r.server.Cluster)
		if err != nil {
			m.Missing = append(m.Missing, "locks: "+err.Error())
			return
		}
		r.locks = reader
	}
	l, err := r.locks.Read()
	if err != nil {
		m.Missing = append(m.Missing, "locks: "+err.Error())
		return
	}
	addBlocking(m, l)
}

// addBlocking adds lock waits to a moment. Only sessions that the moment has get blockers. In the forest, the process that waits for
// the longest time comes first among its neighbours. Waits since an unknown time come last.
func addBlocking(m *moment.Moment, l *locks.Moment) {
	sessions := make(map[int]*moment.Session, len(m.Sessions))
	for i := range m.Sessions {
		sessions[m.Sessions[i].ServerPID] = &m.Sessions[i]
	}
	slices.SortStableFunc(l.Waits, func(a, b locks.Wait) int {
		if a.Since.IsZero() || b.Since.IsZero() {
			return zeroLast(a.Since) - zeroLast(b.Since)
		}
		return a.Since.Compare(b.Since)
	})
	for i := range l.Waits {
		w := &l.Waits[i]
		s := sessions[w.PID]
		if s == nil || w.Kind == locks.LWLock {
			continue
		}
		wait := lockWait(w)
		s.BlockersUnknown = wait.Unknown
		for _, b := range w.Blockers {
			s.Blockers = append(s.Blockers, moment.Blocker{
				PID: b.PID, XID: b.XID, GID: b.GID, Lock: wait.Lock, Mode: wait.Mode, Object: wait.Object, Relation: wait.Relation,
				Since: wait.Since,
				Held:  b.Held.String(), Queued: !b.Hard, Behind: b.Behind,
			})
		}
		if w.Omitted > 0 {
			m.Missing = append(m.Missing, fmt.Sprintf("%s of process %d: too many", units.Count(w.Omitted, "blocker"), w.PID))
		}
	}
	m.Blocking = forest(l.Forest())
}

func zeroLast(t time.Time) int {
	if t.IsZero() {
		return 1
	}
	return 0
}

// forest translates a forest of package locks. A node has its children at one place only: a node with Repeated has
// none.
func forest(roots []*locks.Node) []*moment.Node {
	top := &moment.Node{}
	type pair struct {
		from []*locks.Node
		to   *moment.Node
	}
	for todo := []pair{{roots, top}}; len(todo) > 0; {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, from := range p.from {
			n := &moment.Node{PID: from.PID, XID: from.XID, GID: from.GID, Deadlock: from.Cycle, Repeated: from.Repeated}
			for i := range from.Waits {
				n.Waits = append(n.Waits, lockWait(&from.Waits[i]))
			}
			p.to.Blocked = append(p.to.Blocked, n)
			todo = append(todo, pair{from.Blocked, n})
		}
	}
	return top.Blocked
}

func lockWait(w *locks.Wait) moment.LockWait {
	l := moment.LockWait{
		PID: w.PID, Lock: string(w.Kind), Since: timeOrNil(w.Since), Unknown: w.Reason, Candidates: w.Candidates, MoreCandidates: w.MoreCandidates,
	}
	if w.Tag != nil {
		l.Lock, l.Object, l.Relation, l.Mode = w.Tag.Type, object(w.Tag), w.Tag.Name, w.Mode.String()
	}
	if w.Row != nil {
		l.Row, _ = moment.LockWords(w.Row.Type, object(w.Row), w.Row.Name)
	}
	return l
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// object returns the object of a lock, without the type of the lock. The oid of the database comes first; it is 0 for
// objects of all databases.
func object(t *locks.Tag) string {
	relation := fmt.Sprintf("%d/%d", t.Database, t.Relation)
	switch t.Type {
	case "relation", "extend":
		return relation
	case "page":
		return fmt.Sprintf("%s page %d", relation, t.Page)
	case "tuple":
		return fmt.Sprintf("%s (%d,%d)", relation, t.Page, t.Tuple)
	case "frozenid":
		return strconv.FormatUint(uint64(t.Database), 10)
	case "transactionid":
		return strconv.FormatUint(uint64(t.XID), 10)
	case "virtualxid":
		return fmt.Sprintf("%d/%d", t.VirtualProc, t.VirtualXID)
	case "spectoken":
		return fmt.Sprintf("%d token %d", t.XID, t.Token)
	case "applytransaction":
		return fmt.Sprintf("%d subscription %d transaction %d", t.Database, t.Relation, t.XID)
	case "advisory":
		if t.SubID == 1 {
			return fmt.Sprintf("%d key %d", t.Database, int64(uint64(t.ClassID)<<32|uint64(t.ObjectID)))
		}
		return fmt.Sprintf("%d keys %d, %d", t.Database, int32(t.ClassID), int32(t.ObjectID))
	}
	return fmt.Sprintf("%d class %d object %d", t.Database, t.ClassID, t.ObjectID)
}
