package source

import (
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
