package verb

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/history/store"
)

// dayOfHistory writes 24 hours of 50 active sessions, with -short 4 hours: 665 queries, about 10,000 stacks. It takes minutes. As on
// real servers, few queries take most of the time, and each one comes from one application, mostly waits for the same events, and
// lasts for seconds. If the day is even, all queries, users and waits are equally frequent instead: the worst case.
func dayOfHistory(b *testing.B, even bool) (dir string, until time.Time) {
	b.Helper()
	until = time.Now().UTC().Truncate(time.Hour)
	dir = filepath.Join(b.TempDir(), "state")
	options := store.Options{Dir: dir, MinFree: 1, Meta: store.Meta{SystemID: "1"}}
	w, err := store.Open(options)
	if err != nil {
		b.Fatal(err)
	}
	begin := until.Add(-24 * time.Hour)
	if testing.Short() {
		begin = until.Add(-4 * time.Hour)
	}
	sessions := newLoad(50)
	sessions.even = even
	for at := begin; at.Before(until); at = at.Add(time.Second) {
		if err := w.Append(sessions.sweep(at)); err != nil {
			b.Fatal(err)
		}
	}
	for range 2 {
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		if w, err = store.Open(options); err != nil { // closes the last hour
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return dir, until
}

// A load makes sweeps of sessions that work as those of a real server.
type load struct {
	random  *rand.Rand
	queries *rand.Zipf
	rows    []store.Row
	left    []int // seconds until the session begins its next query
	even    bool  // see dayOfHistory
}

func newLoad(sessions int) *load {
	source := rand.New(rand.NewPCG(1, 2))
	return &load{
		random: source, queries: rand.NewZipf(source, 1.2, 3, 664), rows: make([]store.Row, sessions), left: make([]int, sessions),
	}
}

func (l *load) sweep(at time.Time) *store.Sweep {
	waits := [][2]string{
		{}, {}, {"IO", "DataFileRead"}, {"LWLock", "WALWrite"}, {"Lock", "transactionid"}, {"Client", "ClientRead"}, {"IO", "WALSync"},
		{"LWLock", "BufferMapping"}, {"IPC", "ExecuteGather"}, {"Timeout", "PgSleep"}, {"IO", "DataFileExtend"}, {"LWLock", "LockManager"},
	}
	s := &store.Sweep{Time: at, Period: time.Second}
	for i := range l.rows {
		r := &l.rows[i]
		if l.left[i]--; l.left[i] < 0 {
			l.left[i] = int(l.random.ExpFloat64() * 3)
			query := int64(l.queries.Uint64()) + 1
			user := query
			if l.even {
				query, user = l.random.Int64N(665)+1, l.random.Int64N(1000)
			}
			*r = store.Row{
				PID: int32(1000 + i), Start: at.Truncate(time.Hour).UnixMicro(), Type: "client backend", DatabaseID: 5,
				Database: fmt.Sprintf("shop%d", query%2), UserID: 10, User: fmt.Sprintf("user%d", user%5), App: fmt.Sprintf("app%d", query%24),
				Client: "10.0.0.1", State: "active", XactStart: at.UnixMicro() - 1000, QueryStart: at.UnixMicro() - l.random.Int64N(1e6),
				StateStart: at.UnixMicro() - 900, QueryID: query * 7919, PhraseKey: "executes", Phrase: "executes a query", Method: "blocked",
				Query: fmt.Sprintf("SELECT o.id, o.total FROM orders_%d o JOIN lines l USING (id) WHERE o.customer = ?", query),
			}
		}
		// half of the samples of a query have its first event, a quarter the second one, and so on
		kind := min(int(l.random.ExpFloat64()/0.7), 3)
		wait := waits[(int(r.QueryID)*5+kind*kind)%len(waits)]
		if l.even {
			wait = waits[l.random.IntN(len(waits))]
		}
		r.WaitType, r.WaitEvent = wait[0], wait[1]
		r.Stack = r.QueryID<<8 | int64(kind*4+l.random.IntN(4)) + 1
		s.Rows = append(s.Rows, *r)
		s.Stacks = append(s.Stacks, store.Stack{
			ID: r.Stack, Frames: []string{"epoll_wait", fmt.Sprintf("f%d", r.Stack&0xff), fmt.Sprintf("g%d", r.QueryID), "PostgresMain", "main"},
		})
	}
	return s
}

// BenchmarkHistoryDay reads 24 hours of 50 sessions as the SQL functions do.
func BenchmarkHistoryDay(b *testing.B) {
	for _, even := range []bool{false, true} {
		b.Run(map[bool]string{false: "skewed", true: "even"}[even], func(b *testing.B) {
			dir, until := dayOfHistory(b, even)
			reader := func() *store.Reader {
				r, err := store.OpenReader(dir, "1")
				if err != nil {
					b.Fatal(err)
				}
				return r
			}
			measure := func(name string, read func() int) {
				b.Run(name, func(b *testing.B) {
					rows, used := 0, processorTime()
					for b.Loop() {
						rows = read()
					}
					b.ReportMetric(float64((processorTime()-used).Microseconds())/1000/float64(b.N), "cpu-ms/op")
					b.ReportMetric(float64(rows), "rows")
				})
			}
			for _, bucket := range []time.Duration{24 * time.Hour, time.Hour, 15 * time.Minute, time.Minute} {
				measure("summary "+bucket.String(), func() int {
					sums := newBuckets(bucket)
					if err := sums.read(context.Background(), reader(), until.Add(-24*time.Hour), until); err != nil {
						b.Fatal(err)
					}
					return len(sums.rows(0, encodingUTF8))
				})
			}
			measure("rows 5m", func() int {
				rows, err := recordedRows(
					context.Background(), reader(), until.Add(-10*time.Minute), until.Add(-5*time.Minute), nil, encodingUTF8)
				if err != nil {
					b.Fatal(err)
				}
				return len(rows)
			})
		})
	}
}

// processorTime returns the processor time of this process.
func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
