package source

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/history/store"
)

// TestRecordedMoment: a sweep of the recorder becomes a moment, with the forest of its blockers.
func TestRecordedMoment(t *testing.T) {
	by := func(pids ...int32) (list []store.Blocker) {
		for _, pid := range pids {
			list = append(list, store.Blocker{PID: pid, Lock: "relation", Mode: "ShareLock", Object: "5/7"})
		}
		return list
	}
	row := func(pid int32, state, class, event string, blockers []store.Blocker) store.Row {
		return store.Row{PID: pid, Start: 1, Type: clientBackend, State: state, WaitType: class, WaitEvent: event, BlockedBy: blockers,
			QueryStart: noon.Add(-time.Minute).UnixMicro(), Query: "select ?"}
	}
	w := &store.SpanSweep{Time: noon, Period: time.Second, Rows: []store.Row{
		row(1, idleInTx, "Client", "ClientRead", nil), row(2, stateActive, "Lock", "relation", by(1)),
		row(3, stateActive, "Lock", "relation", by(1, 2)), row(4, stateActive, "", "", nil),
		row(6, stateActive, "Lock", "relation", by(7)), row(7, stateActive, "Lock", "relation", by(6)), // a deadlock
		row(8, stateActive, "Lock", "relation", by(99)), // its blocker is not recorded
	}}
	w.Rows = append(w.Rows, store.Row{PID: 5, Ended: true})
	var p past
	var r rules
	m := momentOf(w)
	list := r.apply(&facts{m: m})
	p.addFindings(p.add(m, KindRecorded, w.Period), list)
	if len(m.Sessions) != 7 || len(m.Blocking) != 3 {
		t.Fatalf("%d sessions, %d trees", len(m.Sessions), len(m.Blocking))
	}
	blocks := only(list, RuleBlocks)
	if len(blocks) != 2 || blocks[0].PID != 1 || blocks[0].Sessions != 2 || blocks[1].PID != 99 || len(only(list, RuleDeadlock)) != 1 {
		t.Errorf("%+v", list)
	}
	q := Span{noon.Add(-time.Second), noon}
	l := p.load(Query{Span: q}, 1, time.Second, "")
	if l.Columns[0].Kind != KindRecorded || !near(l.Active[0], 1) || !near(l.Active[1], 5) {
		t.Errorf("%+v", l)
	}
	if share, ok := p.share(&blocks[0], q); !ok || !near(share, 100*2.0/6) {
		t.Errorf("%g", share)
	}
}

// sweepOf returns a recorded sweep in which each of the processes waits for the lock of a transaction, or of a row, that its
// blockers hold.
func sweepOf(blockers map[int32][]store.Blocker) *store.SpanSweep {
	w := &store.SpanSweep{Time: noon, Period: time.Second}
	for pid := range int32(400) { // in the order of process ids
		if list, ok := blockers[pid]; ok {
			w.Rows = append(w.Rows, store.Row{PID: pid, Start: 1, Type: clientBackend, State: stateActive, WaitType: "Lock", BlockedBy: list})
		}
	}
	return w
}

func rowLock(pid int32) store.Blocker {
	return store.Blocker{PID: pid, Lock: "tuple", Mode: "ExclusiveLock", Object: "tuple (0,1) of t (relation 7 of database 5)"}
}

func rowEnd(pid int32, transaction string) store.Blocker {
	return store.Blocker{PID: pid, Lock: "transactionid", Mode: "ShareLock", Object: "transaction " + transaction}
}

// TestRecordedPreparedTransactions: processes that wait for prepared transactions, also through others, are in no deadlock. Each
// transaction is a root.
func TestRecordedPreparedTransactions(t *testing.T) {
	m := momentOf(sweepOf(map[int32][]store.Blocker{
		100: {rowLock(200)}, 150: {rowLock(200)}, 200: {rowEnd(0, "740")}, 300: {rowEnd(0, "741")}, 350: {{Lock: "relation", Object: "relation 7 of database 5"}},
	}))
	var roots []string
	for _, n := range BlockingOf(m).Nodes {
		if n.Depth == 0 {
			roots = append(roots, fmt.Sprintf("%d blocks %d, deadlock %v", n.XID, n.Blocks, n.Deadlock))
		}
	}
	if want := "740 blocks 3, deadlock false; 741 blocks 1, deadlock false; 0 blocks 1, deadlock false"; strings.Join(roots, "; ") != want {
		t.Errorf("%s, want %s", strings.Join(roots, "; "), want)
	}
	list := (&rules{}).apply(&facts{m: m})
	if len(only(list, RuleDeadlock)) != 0 || len(only(list, RuleBlocks)) != 3 || !strings.HasPrefix(list[0].Text, "The prepared transaction 740 blocks 3 sessions") ||
		!strings.HasPrefix(list[1].Text, "A prepared transaction blocks 1 session") {
		t.Errorf("%+v", list)
	}
	for i, want := range []string{"the prepared transaction 741", "a prepared transaction"} {
		if got := blockerText(m, &m.Sessions[3+i]); !strings.HasPrefix(got, want+" ") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestRecordedDeadlock: the root of a deadlock is a process of the cycle, not a process that waits behind it.
func TestRecordedDeadlock(t *testing.T) {
	m := momentOf(sweepOf(map[int32][]store.Blocker{5: {rowEnd(6, "740")}, 6: {rowEnd(7, "741")}, 7: {rowEnd(6, "740")}}))
	if b := BlockingOf(m); b.Trees != 1 || len(b.Nodes) != 3 || !b.Nodes[0].Deadlock || b.Nodes[0].PID != 6 {
		t.Errorf("%+v", b)
	}
}

// TestRecordedQueue: processes in the queue of a lock are below the process that holds it, not below each other.
func TestRecordedQueue(t *testing.T) {
	waits := map[int32][]store.Blocker{}
	for pid := int32(2); pid <= 11; pid++ {
		waits[pid] = []store.Blocker{{PID: 1, Lock: "relation", Object: "relation 7 of database 5"}}
		for before := int32(2); before < pid; before++ {
			waits[pid] = append(waits[pid], store.Blocker{PID: before, Lock: "relation", Object: "relation 7 of database 5", Soft: true})
		}
	}
	m := momentOf(sweepOf(waits))
	for _, n := range BlockingOf(m).Nodes {
		if n.PID != 1 && (n.Depth != 1 || n.MoreBlockers != 0 || n.Blocks != 0) {
			t.Errorf("%+v", n)
		}
	}
	if f := one(t, (&rules{}).apply(&facts{m: m}), RuleBlocks); f.Text != "PID 1 blocks 10 sessions on relation 7 of database 5" {
		t.Errorf("%q", f.Text)
	}
}
