package state

import (
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
)

// BenchmarkRead reads a server with 100 sessions.
func BenchmarkRead(b *testing.B) {
	s := pgtest.Start(b, pgtest.BinDir(b), pgtest.Options{Conf: []string{"max_connections = 120"}})
	for range 100 {
		s.Connect(b, s.User, "postgres")
	}
	c, err := cluster.ByDataDir(s.DataDir)
	if err != nil {
		b.Fatal(err)
	}
	r, err := Open(c)
	if err != nil {
		b.Fatal(err)
	}
	for name, o := range map[string]Options{"states": {}, "texts": {Texts: true}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if m, err := r.Read(o); err != nil || len(m.Sessions) < 100 {
					b.Fatal(err, len(m.Sessions))
				}
			}
		})
	}
	b.Run("blocking", func(b *testing.B) {
		m, err := r.Read(Options{})
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			r.Blocking(m)
		}
	})
}
