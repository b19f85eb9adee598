package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRoots counts chains of waits by the process at their begin, which waits for no other.
func TestRoots(t *testing.T) {
	t.Parallel()
	by := func(pids ...int32) (list []Blocker) {
		for _, pid := range pids {
			list = append(list, Blocker{PID: pid})
		}
		return list
	}
	const holder, alter, unseen = 1, 2, 99
	reporting := Row{PID: holder, Type: "client backend", User: "u", App: "reporting", State: "idle in transaction"}
	queued := Row{PID: alter, Type: "client backend", User: "u", State: "active", WaitType: "Lock", BlockedBy: by(holder)}
	for _, c := range []struct {
		name string
		rows []Row
		want string // PIDs of waiters, and the texts of their roots
	}{
		{"a session that waits behind a waiting one", []Row{
			reporting, queued, {PID: 3, BlockedBy: by(alter)}, {PID: 4, BlockedBy: by(3, alter)},
		}, "2,3,4: 1 reporting (client backend, u, idle in transaction)"},
		{"a blocker that has ended", []Row{
			{PID: holder, Ended: true}, queued, {PID: 3, BlockedBy: by(alter)},
		}, "2,3: 1"},
		{"two roots", []Row{
			reporting, queued, {PID: 3, BlockedBy: by(alter, unseen)},
		}, "2,3: 1 reporting (client backend, u, idle in transaction); 3: 99"},
		{"a prepared transaction", []Row{
			{PID: alter, BlockedBy: by(0)}, {PID: 3, BlockedBy: by(alter)},
		}, "2,3: prepared transaction"},
		{"a circle, and a session behind it", []Row{
			{PID: 5, BlockedBy: by(6)}, {PID: 6, BlockedBy: by(5)}, {PID: 7, BlockedBy: by(6)},
		}, "5,6,7: deadlock"},
		{"a leader that waits for its blocked worker", []Row{
			reporting, {PID: 5, Type: "client backend"}, {PID: 6, Leader: 5, BlockedBy: by(holder)}, {PID: 7, BlockedBy: by(5)},
		}, "6,7: 1 reporting (client backend, u, idle in transaction)"},
		{"a blocker that waits for a lock whose holders are not known", []Row{
			{PID: alter, Type: "client backend", User: "u", State: "active", WaitType: "Lock"}, {PID: 3, BlockedBy: by(alter)},
		}, "3: 2 (client backend, u, active, waits for an unknown process)"},
	} {
		totals := NewTotals([]string{"blocker", "pid"})
		totals.Add(&SpanSweep{Period: time.Second, Rows: c.rows})
		list, _ := totals.List()
		waiters := map[string][]string{}
		for _, total := range list {
			waiters[total.Keys[0]] = append(waiters[total.Keys[0]], total.Keys[1])
		}
		var got []string
		for root, pids := range waiters {
			slices.Sort(pids)
			got = append(got, strings.Join(pids, ",")+": "+root)
		}
		slices.Sort(got)
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("%s: got %s; want %s", c.name, text, c.want)
		}
	}
}

// TestComparisonHasNoPIDs: the same application blocks in two spans, as another process.
func TestComparisonHasNoPIDs(t *testing.T) {
	t.Parallel()
	totals := NewComparison([]string{"blocker"})
	for _, pid := range []int32{1, 2} {
		totals.Add(&SpanSweep{Period: time.Second, Rows: []Row{
			{PID: pid, Type: "client backend", User: "u", App: "crm", State: "active"}, {PID: 3, BlockedBy: []Blocker{{PID: pid}}},
		}})
		totals.Other()
	}
	list := totals.Changes(1, 1, func(_, key string) string { return key })
	if len(list) != 1 || list[0].Keys[0] != "crm (client backend, u, active)" || list[0].Samples != 1 || list[0].Before.Samples != 1 {
		t.Errorf("%+v", list)
	}
}

// TestTotalsByProcess: two processes that had the same id are two totals. Sessions that Only leaves out still block.
func TestTotalsByProcess(t *testing.T) {
	t.Parallel()
	totals, blockers := NewTotals([]string{"pid", "application"}), NewTotals([]string{"blocker"})
	blockers.Only = func(r *Row) bool { return r.PID != 1 }
	for start := range int64(2) {
		s := SpanSweep{Period: time.Second, Rows: []Row{{PID: 1, Start: start + 1, App: "a"}, {PID: 2, BlockedBy: []Blocker{{PID: 1}}}}}
		totals.Add(&s)
		blockers.Add(&s)
	}
	list, all := totals.List()
	if len(list) != 3 || all != 4 || fmt.Sprint(list[0].Keys) != "[2 -]" || fmt.Sprint(list[1].Keys, list[2].Keys) != "[1 a] [1 a]" {
		t.Errorf("%+v of %v", list, all)
	}
	if list, all := blockers.List(); len(list) != 1 || list[0].Keys[0] != "1 a (, -, -)" || all != 2 {
		t.Errorf("%+v of %v", list, all)
	}
}
