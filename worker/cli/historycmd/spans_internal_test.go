package historycmd

import (
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/report/table"
)

// TestOwnSessionsThatBlockAreKept: a session of pg_stat_backtrace is left out, unless it blocks a session of another application or
// waits for one.
func TestOwnSessionsThatBlockAreKept(t *testing.T) {
	t.Parallel()
	by := func(pid int32) []store.Blocker { return []store.Blocker{{PID: pid}} }
	s := store.SpanSweep{Period: time.Second, Rows: []store.Row{
		{PID: 1, App: "pg_stat_backtrace"}, {PID: 2, App: "pg_stat_backtrace worker", BlockedBy: by(1)},
		{PID: 3, App: "pg_stat_backtrace"}, {PID: 4, App: "shop", BlockedBy: by(3)},
		{PID: 5, App: "pg_stat_backtrace", BlockedBy: by(4)}, {PID: 6, App: "pg_stat_backtraces"},
	}}
	p := (&historyFlags{}).printer(nil, nil, "", &store.Meta{})
	p.own.begin(&s)
	kept := ""
	for i := range s.Rows {
		if p.only(&s.Rows[i]) {
			kept += string('0' + rune(s.Rows[i].PID))
		}
	}
	if kept != "3456" || p.own.rows != 2 || p.own.took != 2*time.Second {
		t.Errorf("kept %s, left out %d rows of %s", kept, p.own.rows, p.own.took)
	}
}

// TestManyGaps: the time that was not recorded is the time of all gaps, also of gaps without a line.
func TestManyGaps(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
	s := store.Summary{Since: since, Until: since.Add(time.Hour), GapsMore: 1499, Missing: 3000}
	s.Gaps = []store.Gap{{From: since, To: since.Add(2 * time.Second)}}
	var out strings.Builder
	p := (&historyFlags{}).printer(nil, nil, "", &store.Meta{})
	p.zone = time.UTC
	p.gaps(&out, &s)
	p.problems(&out, &s, &ownRows{})
	for _, want := range []string{"(2.0 s)\n", "-- not recorded: 1499 gaps more\n", "not recorded: 50 min in 1500 gaps;"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %s", want, out.String())
		}
	}
}

// TestPendingLinesAreBounded: with too many lines, the printer prints them before the end. The header is printed once.
func TestPendingLinesAreBounded(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	since := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
	p := newSpanPrinter(&out, table.Options{}, since, since.Add(time.Minute), 80)
	s := store.SpanSweep{Period: time.Second, Rows: make([]store.Row, maxPendingLines+1)}
	for i := range s.Rows {
		s.Rows[i] = store.Row{PID: int32(i + 1), Type: "client backend"}
	}
	for i := range 2 {
		s.Time = since.Add(time.Duration(i) * time.Second)
		if err := p.add(&s, nil, func(*store.Row) bool { return true }); err != nil {
			t.Fatal(err)
		}
		if len(p.lines) > 0 || len(p.open) > 0 {
			t.Fatalf("%d lines are pending, %d open", len(p.lines), len(p.open))
		}
	}
	if err := p.print(); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Count(out.String(), "\n"), 2*len(s.Rows)+1; got != want || strings.Count(out.String(), "from ") != 1 {
		t.Errorf("%d lines, want %d", got, want)
	}
}

// TestTimesInTheFuture: after the clock was set back, a wait and a transaction began in the future. They have no age then.
func TestTimesInTheFuture(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
	for ahead, want := range map[time.Duration]string{-2 * time.Second: " 2.0 s", time.Second: " 0 ms", time.Hour: ""} {
		if got := ageText(" ", at.UnixMicro(), at.Add(ahead).UnixMicro()); got != want {
			t.Errorf("%s ahead: %q, want %q", ahead, got, want)
		}
	}
	if got := ageText(" ", at.UnixMicro(), 0) + age(at.UnixMicro(), at.Add(time.Hour).UnixMicro()); got != "" {
		t.Errorf("no time, and seconds since a time in the future: %q", got)
	}
	l := spanLine{to: at, row: store.Row{XactStart: at.Add(time.Hour).UnixMicro()}, transactions: 1, statements: 2}
	if got := l.transaction(); got != "2 or more statements" {
		t.Errorf("%q", got)
	}
}
