package authz_test

import (
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/authz"
)

// A look-up is on the path of every call that is not a superuser's.
func BenchmarkLook(b *testing.B) {
	s := pgtest.Start(b, pgtest.BinDir(b), pgtest.Options{})
	conn := s.Connect(b, "postgres", "postgres")
	look := &authz.Lookup{Server: single{conn}}
	pid := int(conn.PgConn().PID())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := look.Look(b.Context(), pid, 10); err != nil {
			b.Fatal(err)
		}
	}
}
