package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// record writes sweeps at these seconds of an hour that has ended, each with a row, and closes the hour.
func record(t *testing.T, hour time.Time, at []float64) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	w, err := Open(Options{Dir: dir, MinFree: 1, Meta: Meta{SystemID: "1"}})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range at {
		sweep := Sweep{Time: hour.Add(time.Duration(s * float64(time.Second))), Period: time.Second, Rows: []Row{
			{PID: 1, Type: "client backend", State: "active", BlockedBy: []Blocker{{PID: 2}, {PID: 0}}},
			{PID: 2, Type: "client backend", State: "idle in transaction", User: "u", WaitType: "Client", WaitEvent: "ClientRead"},
			{PID: 3, Ended: true},
		}}
		if i == len(at)-1 {
			sweep.Lost, sweep.Delay = 4, 2*time.Second
		}
		if err := w.Append(&sweep); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w, err = Open(Options{Dir: dir, MinFree: 1, Meta: Meta{SystemID: "1"}}) // closes the hour
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestRead has a gap in the middle, and late sweeps. It reads them with and without a readable sweeps.parquet.
func TestRead(t *testing.T) {
	hour := time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour)
	dir := record(t, hour, []float64{0, 1, 2.05, 3, 7, 8})
	sweeps, err := filepath.Glob(filepath.Join(dir, "cluster=1", "date=*", "hour=*", "sweeps.parquet"))
	if err != nil || len(sweeps) != 1 {
		t.Fatal(sweeps, err)
	}
	for _, damaged := range []bool{false, true} {
		if damaged {
			if err := os.WriteFile(sweeps[0], []byte("PAR1"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r, err := OpenReader(dir, "1")
		if err != nil {
			t.Fatal(err)
		}
		totals := NewTotals([]string{"blocker"})
		var gaps []string
		summary, err := ReadSpan(t.Context(), r, hour, hour.Add(9*time.Second), func(s *SpanSweep, g *Gap) error {
			if len(s.Rows) != 3 {
				t.Errorf("%d rows at %s", len(s.Rows), s.Time)
			}
			if g != nil {
				gaps = append(gaps, fmt.Sprint(g.From.Sub(hour), " to ", g.To.Sub(hour)))
			}
			totals.Add(s)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(gaps, "; "); got != "3s to 6s" {
			t.Errorf("gaps: %s", got)
		}
		if summary.Sweeps != 6 || summary.Rows != 18 || summary.Seconds != 6 || len(summary.Gaps) != 1 {
			t.Errorf("%+v", summary)
		}
		if damaged != (len(summary.Damage) > 0) || !damaged && (summary.Lost != 4 || summary.Late != 1) {
			t.Errorf("%+v", summary)
		}
		list, all := totals.List()
		got := ""
		for _, total := range list {
			got += fmt.Sprintf("%s %v %d;", total.Keys, total.Seconds, total.Samples)
		}
		if want := "[2 (client backend, u, idle in transaction)] 6 6;[prepared transaction] 6 6;"; got != want || all != 12 {
			t.Errorf("%s of %v, want %s", got, all, want)
		}
	}
}

// TestManyGaps has more gaps than the summary lists. It has the time of all gaps, and the gap at the end.
func TestManyGaps(t *testing.T) {
	hour := time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour)
	const n = maxGaps + 10
	at := make([]float64, n)
	for i := range at {
		at[i] = float64(3 * i)
	}
	r, err := OpenReader(record(t, hour, at), "1")
	if err != nil {
		t.Fatal(err)
	}
	summary, err := ReadSpan(t.Context(), r, hour, hour.Add(time.Hour), func(*SpanSweep, *Gap) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if want := 3600.0 - n; len(summary.Gaps) != maxGaps || summary.GapsMore != n-maxGaps || summary.Missing < want || summary.Missing > want+1 {
		t.Errorf("%d gaps, %d more, %v s, want %v s", len(summary.Gaps), summary.GapsMore, summary.Missing, want)
	}
	if last := summary.Gaps[maxGaps-1]; summary.Until.Sub(last.To) > time.Second {
		t.Errorf("the last gap ends at %s", last.To)
	}
}

// TestTotalsAreBounded has more queries than totals.
func TestTotalsAreBounded(t *testing.T) {
	totals := NewTotals([]string{"query", "wait"})
	for i := range maxTotals + 1000 {
		totals.Add(&SpanSweep{Period: time.Second, Rows: []Row{{QueryID: int64(i + 1)}}})
	}
	list, all := totals.List()
	if len(list) != maxTotals+1 || list[0].Keys[0] != "(others)" || list[0].Samples != 1000 || all != maxTotals+1000 {
		t.Errorf("%d totals, %+v, %v", len(list), list[0], all)
	}
}

// TestComparisonIsBounded has more queries than totals. The queries beyond the bound are counted together in both spans.
func TestComparisonIsBounded(t *testing.T) {
	totals := NewComparison([]string{"query"})
	span := func() {
		for i := range maxTotals + 1000 {
			totals.Add(&SpanSweep{Period: time.Second, Rows: []Row{{QueryID: int64(i + 1)}}})
		}
	}
	span()
	totals.Other()
	span()
	list := totals.Changes(1, 1, func(_, key string) string { return key })
	if len(list) != maxTotals+1 || list[0].Keys[0] != "(others)" || list[0].Samples != 1000 || list[0].Before.Samples != 1000 {
		t.Errorf("%d totals, %+v", len(list), list[0])
	}
	for _, total := range list {
		if total.Seconds != total.Before.Seconds {
			t.Fatalf("%+v", total)
		}
	}
}
