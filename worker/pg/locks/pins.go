package locks

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pg_stat_backtrace/worker/report/units"
)

// Bounds of a search for the candidates of a buffer pin.
const (
	maxCandidates = 32
	maxGroups     = 1024 // of fast-path locks of a process (FP_LOCK_GROUPS_PER_BACKEND_MAX)
	pinWaits      = 16   // waits for which candidates are searched, in one moment
)

// pin names the candidates for a wait for a buffer pin. The server does not record in shared memory which process holds a pin.
// But a process pins a page of a relation only within a transaction that has a lock on the relation. VACUUM waits for a page of the
// only relation that it has locked. So its candidates are the other processes with a lock on this relation. Replay on a standby has
// no locks, so its candidates are all processes with a transaction.
func (r *Reader) pin(w *Wait, p *proc) {
	w.Reason = noPinHolders
	if r.pins++; r.pins > pinWaits {
		return
	}
	b, err := r.mem.read([]piece{{r.first, r.count * r.layout.ProcSize}})
	if err != nil || b[0] == nil {
		return
	}
	page, lock := r.vacuumed(p)
	holders := map[int]bool{}
	if page != nil {
		w.Page = page
		if c, err := r.readLock(lock, nil, nil); err == nil {
			for i := range c.entries {
				holders[c.entries[i].proc] = c.entries[i].hold != 0
			}
		}
	}
	for i := range r.count {
		one := b[0][i*r.layout.ProcSize:][:r.layout.ProcSize]
		q := r.parse(one, i)
		switch {
		case i == p.index && (q.pid != p.pid || q.event != p.event):
			w.Reason, w.Page, w.Candidates, w.MoreCandidates = errChanged.Error(), nil, nil, 0
			return
		case i == p.index, q.pid <= 0, q.lxid == 0:
		case page != nil && (holders[i] || r.locksOutside(one, page)), page == nil && r.replays(b[0], p.index):
			if len(w.Candidates) >= maxCandidates {
				w.MoreCandidates++
				continue
			}
			w.Candidates = append(w.Candidates, q.pid)
		}
	}
}

// replays reports whether a process is the startup process: it has no database and no transaction.
func (r *Reader) replays(procs []byte, index int) bool {
	b := procs[index*r.layout.ProcSize:][:r.layout.ProcSize]
	return u32(b, r.layout.ProcDatabase) == 0 && r.parse(b, index).lxid == 0
}

// vacuumed returns the relation that a process has locked as VACUUM does (ShareUpdateExclusiveLock or stronger), and the address of
// the lock; nil: there is none, or more than one.
func (r *Reader) vacuumed(p *proc) (relation *Tag, lock uint64) {
	const shareUpdateExclusive = Mode(4)
	count := 0
	ok := r.ownLocks(p, func(tag Tag, kind int, hold uint32, addr uint64) {
		if kind == tagRelation && hold>>shareUpdateExclusive != 0 {
			relation, lock = &tag, addr
			count++
		}
	})
	if !ok || count != 1 {
		return nil, 0
	}
	return relation, lock
}

// ownLocks calls the callback each for every lock that a process holds in the lock table. It returns false if a lock cannot be
// read, or if the process has too many locks; the callback has then got only some of them.
func (r *Reader) ownLocks(p *proc, each func(tag Tag, kind int, hold uint32, lock uint64)) bool {
	const most = 64 // locks of a process in one of the partitions
	first := r.address(p.index) + uint64(r.layout.ProcMyLocks)
	heads := r.one(first, r.layout.LockPartitions*r.layout.NodeSize)
	if heads == nil {
		return false
	}
	for i := range r.layout.LockPartitions {
		head := first + uint64(i*r.layout.NodeSize)
		n := 0
		for link := u64(heads, i*r.layout.NodeSize+r.layout.NodeNext); link != head && link != 0; n++ {
			if r.steps++; n > most || r.steps > maxSteps || link%8 != 0 {
				return false
			}
			b := r.one(link-uint64(r.layout.ProcLockProcLink), r.layout.ProcLockSize)
			if b == nil || u64(b, r.layout.ProcLockMyProc) != r.address(p.index) {
				return false
			}
			if hold := u32(b, r.layout.ProcLockHoldMask); hold != 0 {
				addr := u64(b, r.layout.ProcLockMyLock)
				lock := r.one(addr, r.layout.LockSize)
				if lock == nil {
					return false
				}
				tag, kind, ok := readTag(lock, &r.layout)
				if !ok {
					return false
				}
				each(tag, kind, hold, addr)
			}
			link = u64(b, r.layout.ProcLockProcLink+r.layout.NodeNext)
		}
	}
	return true
}

// locksOutside reports whether a process has a fast-path lock on a relation: a lock that is in its PGPROC (b), not in the lock
// table. The server keeps weak locks of ordinary tables there (EligibleForRelationFastPath in lock.c).
func (r *Reader) locksOutside(b []byte, relation *Tag) bool {
	l := &r.layout
	if u32(b, l.ProcDatabase) != relation.Database {
		return false
	}
	const word, oid = 8, 4
	groups := 1
	bits, relations := b[l.ProcFastBits:], b[l.ProcFastRelations:]
	if l.FastGroups != "" {
		if groups = r.fastGroups(); groups == 0 {
			return false
		}
		read, err := r.mem.read([]piece{
			{u64(b, l.ProcFastBits), groups * word}, {u64(b, l.ProcFastRelations), groups * l.FastSlots * oid},
		})
		if err != nil || read[0] == nil || read[1] == nil {
			return false
		}
		bits, relations = read[0], read[1]
	}
	if len(bits) < groups*word || len(relations) < groups*l.FastSlots*oid {
		return false
	}
	for i := range groups * l.FastSlots {
		modes := u64(bits, i/l.FastSlots*word) >> (i % l.FastSlots * l.FastBits) & (1<<l.FastBits - 1)
		if modes != 0 && u32(relations, i*oid) == relation.Relation {
			return true
		}
	}
	return false
}

// fastGroups returns how many groups of fast-path locks a process has; 0: not known.
func (r *Reader) fastGroups() int {
	if r.fastCount == 0 {
		return 0
	}
	b := r.one(r.fastCount, 4)
	if b == nil {
		return 0
	}
	if n := i32(b, 0); n > 0 && n <= maxGroups {
		return n
	}
	return 0
}

const noPinHolders = "holder unknown: the server does not record holders of buffer pins"

// pinReason returns the Reason of a wait for a buffer pin, with the candidates in words.
func (w *Wait) pinReason() string {
	const named = 5
	has, have, locked := "has an open transaction", "have open transactions", ""
	if w.Page != nil {
		if locked = w.Page.Name; locked == "" {
			locked = w.Page.relation()
		}
		has, have = "has a lock on "+locked, "have locks on "+locked
	}
	switch n := len(w.Candidates) + w.MoreCandidates; {
	case w.Reason != noPinHolders, n == 0 && w.Page == nil:
		return w.Reason
	case n == 0:
		return w.Reason + "; no other transaction with a lock on " + locked + " was found"
	case n == 1:
		return fmt.Sprintf("%s; %d may hold it: it %s", w.Reason, w.Candidates[0], has)
	case n > named:
		return fmt.Sprintf("%s; one of %s and %s may hold it: they %s", w.Reason, pidList(w.Candidates[:named]), units.Count(n-named, "other"), have)
	default:
		return fmt.Sprintf("%s; one of %s may hold it: they %s", w.Reason, pidList(w.Candidates), have)
	}
}

func pidList(pids []int) string {
	texts := make([]string, 0, len(pids))
	for _, pid := range slices.Sorted(slices.Values(pids)) {
		texts = append(texts, strconv.Itoa(pid))
	}
	return strings.Join(texts, ", ")
}
