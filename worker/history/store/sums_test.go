package store_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pg_stat_backtrace/worker/history/store"
)

// mixed makes a sweep of sessions with few users, queries and waits, some of which have ended.
func mixed(r *rand.Rand, at time.Time) *store.Sweep {
	s := &store.Sweep{Time: at.UTC(), Period: time.Duration(1+r.IntN(3)) * time.Second}
	for pid := range int32(r.IntN(8)) {
		q := r.Int64N(4)
		row := store.Row{
			Time: at.UnixMicro(), PID: 100 + pid, Type: []string{"client backend", "walwriter"}[r.IntN(2)], QueryID: q,
			User: []string{"", "alice", "bob"}[r.IntN(3)], Database: []string{"", "shop"}[r.IntN(2)], App: []string{"psql", "web"}[r.IntN(2)],
			Stack: r.Int64N(3), Ended: r.IntN(6) == 0,
		}
		if q != 0 {
			row.Query = fmt.Sprintf("select %d", q)
		}
		if r.IntN(3) > 0 {
			row.WaitType, row.WaitEvent = "Lock", []string{"relation", "tuple"}[r.IntN(2)]
		}
		s.Rows = append(s.Rows, row)
	}
	return s
}

// recorded writes two closed hours and one in progress. The writer restarts at times, and the clock is set back once.
func recorded(t *testing.T, dir string, random *rand.Rand) (from, until time.Time) {
	t.Helper()
	hour := time.Now().UTC().Truncate(time.Hour)
	if time.Since(hour) > 50*time.Minute { // so that a writer that restarts continues this hour
		hour = hour.Add(time.Hour)
	}
	from = hour.Add(-2*time.Hour + 7*time.Minute)
	w := open(t, dir)
	stepped := false
	for at := from; at.Before(hour.Add(20 * time.Minute)); at = at.Add(time.Duration(random.Int64N(10e9))).Truncate(time.Microsecond) {
		if random.IntN(400) == 0 {
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			w = open(t, dir)
		}
		if !stepped && at.After(hour.Add(10*time.Minute)) {
			stepped, at = true, at.Add(-3*time.Minute)
		}
		if err := w.Append(mixed(random, at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return from, hour.Add(20 * time.Minute)
}

// key has the columns by which sums are counted.
type key struct {
	kind, waitType, waitEvent, database, user, app string
	query                                          int64
}

type figures struct {
	samples int64
	seconds float64
}

// TestSumsEqualRows adds up random spans from sums and from rows: by all columns together, and for each user alone.
func TestSumsEqualRows(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	random := rand.New(rand.NewPCG(21, 22))
	from, until := recorded(t, dir, random)
	r, err := store.OpenReader(dir, meta.SystemID)
	if err != nil {
		t.Fatal(err)
	}
	var times []time.Time // of sweeps
	if err := r.Sweeps(t.Context(), from, until, func(s store.SweepInfo) error {
		times = append(times, time.UnixMicro(s.Time))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	edge := func() time.Time {
		at := from.Add(time.Duration(random.Int64N(int64(until.Sub(from)))))
		switch random.IntN(4) {
		case 0:
			return at.Truncate(time.Hour)
		case 1:
			return at.Truncate(time.Minute)
		case 2:
			return times[random.IntN(len(times))]
		}
		return at
	}
	for i := range 45 {
		since := edge()
		to := edge()
		if i%3 == 0 { // mostly within a minute, or two
			to = since.Add(time.Duration(random.Int64N(int64(90 * time.Second))))
		}
		if to.Before(since) {
			since, to = to, since
		}
		want, users := rowFigures(t, r, since, to)
		for _, byMinute := range []bool{false, true} {
			got, byUser := map[key]figures{}, map[string]int64{}
			err := r.Sums(t.Context(), store.SumOptions{Since: since, Until: to, ByMinute: byMinute}, func(s *store.Sum) error {
				k := key{s.Type, s.WaitType, s.WaitEvent, s.Database, s.User, s.App, s.QueryID}
				f := got[k]
				got[k] = figures{f.samples + s.Samples, f.seconds + s.Weight}
				byUser[s.User] += s.Samples
				if at := time.UnixMicro(s.Time); at.Before(since.Truncate(time.Hour)) || !at.Before(to) {
					t.Errorf("a sum of %s in a span from %s to %s", at, since, to)
				}
				if s.QueryID != 0 && s.Query != "" && s.Query != fmt.Sprintf("select %d", s.QueryID) {
					t.Errorf("query %d has the text %q", s.QueryID, s.Query)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			same := func(a, b figures) bool { return a.samples == b.samples && math.Abs(a.seconds-b.seconds) < 1e-6 }
			if !maps.EqualFunc(got, want, same) || !maps.Equal(byUser, users) {
				t.Fatalf("from %s to %s, by minute: %v: sums\n%v, rows\n%v", since, to, byMinute, got, want)
			}
		}
	}
	for _, err := range r.Damage {
		t.Error(err)
	}
}

// rowFigures counts the rows of a span by all columns, and by user.
func rowFigures(t *testing.T, r *store.Reader, since, until time.Time) (map[key]figures, map[string]int64) {
	t.Helper()
	m, users := map[key]figures{}, map[string]int64{}
	_, err := store.ReadSpan(t.Context(), r, since, until, func(w *store.SpanSweep, _ *store.Gap) error {
		for i := range w.Rows {
			row := &w.Rows[i]
			if row.Ended {
				continue
			}
			k := key{row.Type, row.WaitType, row.WaitEvent, row.Database, row.User, row.App, row.QueryID}
			f := m[k]
			m[k] = figures{f.samples + 1, f.seconds + w.Period.Seconds()}
			users[row.User]++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m, users
}

// TestSumsEnough: hours after the caller has enough are not read, also if they are damaged.
func TestSumsEnough(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	random := rand.New(rand.NewPCG(23, 24))
	from := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	w := open(t, dir)
	for i := range 5 {
		if err := w.Append(mixed(random, from.Add(time.Duration(i)*time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	hours := filepath.Join(dir, "cluster="+meta.SystemID, "date=2026-11-28")
	for _, hour := range []string{"02", "03"} {
		if err := os.WriteFile(filepath.Join(hours, "hour="+hour, "sums.parquet"), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, enough := range []time.Duration{2 * time.Hour, 4 * time.Hour} {
		r, err := store.OpenReader(dir, meta.SystemID)
		if err != nil {
			t.Fatal(err)
		}
		o := store.SumOptions{
			Since: from, Until: from.Add(6 * time.Hour),
			Enough: func(at time.Time) bool { return !at.Before(from.Add(enough)) },
		}
		err = r.Sums(t.Context(), o, func(s *store.Sum) error {
			if at := time.UnixMicro(s.Time); !at.Before(from.Add(enough)) {
				t.Errorf("a sum of %s", at)
			}
			return nil
		})
		if want := max(0, int(enough/time.Hour)-2); err != nil || len(r.Damage) != want {
			t.Errorf("%s: %d damaged files, not %d: %v", enough, len(r.Damage), want, err)
		}
	}
}
