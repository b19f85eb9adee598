package verb

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"pg_stat_backtrace/worker/history/store"
)

// dayOfHistory writes 24 hours of 50 active sessions: 665 queries, 10,000 stacks. It takes minutes.
// Waits, users and queries are independent of each other, so an hour has far more sums than on a real server.
func dayOfHistory(b *testing.B) (dir string, until time.Time) {
	b.Helper()
	until = time.Now().UTC().Truncate(time.Hour)
	dir = filepath.Join(b.TempDir(), "state")
	w, err := store.Open(store.Options{Dir: dir, MinFree: 1, Meta: store.Meta{SystemID: "1"}})
	if err != nil {
		b.Fatal(err)
	}
	source := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same day each time
	waits := [][2]string{
		{}, {}, {"IO", "DataFileRead"}, {"LWLock", "WALWrite"}, {"Lock", "transactionid"}, {"Client", "ClientRead"}, {"IO", "WALSync"},
	}
	begin := until.Add(-24 * time.Hour)
	for at := begin; at.Before(until); at = at.Add(time.Second) {
		s := store.Sweep{Time: at, Period: time.Second}
		for pid := range 50 {
			query, stack := int64(source.IntN(665)+1), int64(source.IntN(10_000)+1)
			wait := waits[source.IntN(len(waits))]
			r := store.Row{
				PID: int32(1000 + pid), Start: begin.UnixMicro(), Type: "client backend", DatabaseID: 5, Database: "shop", UserID: 10,
				User: fmt.Sprintf("user%d", pid%5), App: "app", Client: "10.0.0.1", State: "active", XactStart: at.UnixMicro() - 1000,
				QueryStart: at.UnixMicro() - 900 - query, StateStart: at.UnixMicro() - 900, WaitType: wait[0], WaitEvent: wait[1],
				QueryID: query, Query: fmt.Sprintf("SELECT o.id, o.total FROM orders_%d o JOIN lines l USING (id) WHERE o.customer = ?", query),
				PhraseKey: "executes", Phrase: "executes a query", Stack: stack, Method: "blocked",
			}
			s.Rows = append(s.Rows, r)
			s.Stacks = append(s.Stacks, store.Stack{ID: stack, Frames: []string{"epoll_wait", fmt.Sprintf("f%d", stack), "PostgresMain", "main"}})
		}
		if err := w.Append(&s); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	w, err = store.Open(store.Options{Dir: dir, MinFree: 1, Meta: store.Meta{SystemID: "1"}}) // closes the last hour
	if err != nil {
		b.Fatal(err)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return dir, until
}

// BenchmarkHistoryDay reads 24 hours of 50 sessions as the SQL functions do.
func BenchmarkHistoryDay(b *testing.B) {
	dir, until := dayOfHistory(b)
	reader := func() *store.Reader {
		r, err := store.OpenReader(dir, "1")
		if err != nil {
			b.Fatal(err)
		}
		return r
	}
	for _, bucket := range []time.Duration{24 * time.Hour, time.Hour, 15 * time.Minute, time.Minute} {
		b.Run("summary/"+bucket.String(), func(b *testing.B) {
			for b.Loop() {
				sums := newBuckets(bucket)
				if err := sums.read(context.Background(), reader(), until.Add(-24*time.Hour), until); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(len(sums.rows(0))), "rows")
			}
		})
	}
	b.Run("rows/5m", func(b *testing.B) {
		for b.Loop() {
			rows, err := recordedRows(context.Background(), reader(), until.Add(-10*time.Minute), until.Add(-5*time.Minute), nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(len(rows)), "rows")
		}
	})
}
