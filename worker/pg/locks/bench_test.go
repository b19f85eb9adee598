package locks

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
)

// BenchmarkRead reads sessions that wait behind one advisory lock.
func BenchmarkRead(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s := pgtest.Start(b, pgtest.BinDir(b), pgtest.Options{Conf: []string{
				fmt.Sprintf("max_connections = %d", n+20), "autovacuum = off", "deadlock_timeout = '1h'", "shared_buffers = 16MB",
			}})
			if _, err := s.Connect(b, "postgres", "postgres").Exec(context.Background(), "SELECT pg_advisory_lock(1)"); err != nil {
				b.Fatal(err)
			}
			for range n {
				conn := s.Connect(b, "postgres", "postgres")
				go func() { _, _ = conn.Exec(context.Background(), "SELECT pg_advisory_lock(1)") }()
			}
			r := open(b, s)
			var m *Moment
			began := time.Now()
			for m == nil || len(m.Waits) < n {
				if time.Since(began) > time.Minute {
					b.Fatalf("%d waiters", len(m.Waits))
				}
				var err error
				if m, err = r.Read(); err != nil {
					b.Fatal(err)
				}
			}
			edges := 0
			for i := range m.Waits {
				edges += len(m.Waits[i].Blockers)
			}
			var err error
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				if m, err = r.Read(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(m.Reads), "reads")
			b.ReportMetric(float64(edges), "edges")
			s.Stop("immediate")
		})
	}
}
