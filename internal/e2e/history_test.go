package e2e

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
)

// TestHistory checks that SQL shows what the worker has recorded, to superusers and to roles that may read all
// statistics: a session that waits for another one, with its blocker.
func TestHistory(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, binDir string) {
		s := start(t, binDir, pgtest.Options{})
		w := s.work(t)
		boss := s.connect(t, s.User, "postgres")
		boss.run(t, "CREATE ROLE stranger LOGIN; CREATE ROLE reader LOGIN; GRANT pg_read_all_stats TO reader; CREATE TABLE held (a int)")
		fails := func(c *session, code, sql string) {
			t.Helper()
			_, err := c.Exec(t.Context(), sql)
			var failed *pgconn.PgError
			if !errors.As(err, &failed) || failed.Code != code {
				t.Errorf("%s: %v, want %s", sql, err, code)
			}
		}
		const all = "SELECT count(*) FROM pg_backtrace_history(now() - interval '1 hour')"
		fails(boss, "55000", all) // the worker does not record
		_ = w.end(syscall.SIGTERM)
		s.work(t, "--record-dir", filepath.Join(s.DataDir, "history"), "--record", "200ms")
		boss.run(t, "BEGIN; LOCK TABLE held")
		waiter := s.Connect(t, s.User, "postgres")
		blocked := make(chan error, 1)
		go func() {
			_, err := waiter.Exec(t.Context(), "SELECT count(*) FROM held WHERE a = 4711")
			blocked <- err
		}()
		pids := []int{int(waiter.PgConn().PID())}
		const rows = `SELECT count(*) FILTER (WHERE blocked_by = ARRAY[$2]::int[] AND query = 'SELECT count(*) FROM held WHERE a = ?'
				AND wait_event = 'relation' AND lock <> '' AND query_age >= interval '0' AND user_name IS NOT NULL AND NOT ended),
			count(*) FILTER (WHERE pid <> $1[1])
			FROM pg_backtrace_history(now() - interval '1 hour', clock_timestamp(), $1)`
		for _, role := range []string{s.User, "reader"} {
			c := s.connect(t, role, "postgres")
			pgtest.Wait(t, "the history has the session that waits", func() bool {
				var waiting, others int
				if err := c.QueryRow(t.Context(), rows, pids, int(boss.PgConn().PID())).Scan(&waiting, &others); err != nil {
					var failed *pgconn.PgError
					if errors.As(err, &failed) && failed.Code == "55000" { // nothing is recorded yet
						return false
					}
					t.Fatal(role, err)
				}
				if others > 0 {
					t.Errorf("%s: %d rows of other sessions", role, others)
				}
				return waiting > 0
			})
		}
		fails(s.connect(t, "stranger", "postgres"), "42501", all)
		other := s.connect(t, s.User, "postgres")
		for _, span := range []string{"NULL", "now(), now()", "now(), now() - interval '1 s'", "'-infinity'"} {
			fails(other, "22023", "SELECT pg_backtrace_history("+span+")")
		}
		fails(other, "22023", "SET pg_stat_backtrace.history = 'x'; SELECT pg_backtrace_history('infinity')")
		boss.run(t, "COMMIT")
		if err := <-blocked; err != nil {
			t.Error(err)
		}
	})
}
