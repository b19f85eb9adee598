package cluster_test

import (
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
)

// The worker calls both benchmarked functions for every request.
func BenchmarkContains(b *testing.B) {
	s := pgtest.Start(b, pgtest.BinDir(b), pgtest.Options{})
	pid := int(s.Connect(b, "postgres", "postgres").PgConn().PID())
	c, err := cluster.ByDataDir(s.DataDir)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("Alive", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !c.Alive() {
				b.Fatal("the server has gone")
			}
		}
	})
	b.Run("Contains", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			target, err := c.Contains(pid)
			if err != nil {
				b.Fatal(err)
			}
			target.Held.Release()
		}
	})
}
