package e2e

import (
	"errors"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
)

// TestMemoryContexts checks that SQL shows the memory contexts of every process, even of a stopped one. Superusers
// and roles that may read all statistics see them. Only superusers see the text of prepared statements: a function may
// have prepared them.
func TestMemoryContexts(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, binDir string) {
		s := start(t, binDir, pgtest.Options{})
		s.work(t)
		boss := s.connect(t, s.User, "postgres")
		boss.run(t, "CREATE ROLE stranger LOGIN; CREATE ROLE reader LOGIN; GRANT pg_read_all_stats TO reader")
		target := s.Connect(t, s.User, "postgres")
		if _, err := target.Exec(t.Context(), "PREPARE marked AS SELECT 'what is prepared'"); err != nil {
			t.Fatal(err)
		}
		pid := int(target.PgConn().PID())
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })

		const summary = `SELECT count(*), count(*) FILTER (WHERE ident = 'PREPARE marked AS SELECT ''what is prepared'''),
			bool_and(total_bytes > 0 AND total_nblocks >= 0 AND used_bytes = total_bytes - free_bytes AND free_chunks >= 0),
			min(name) FILTER (WHERE parent IS NULL), min(level), count(DISTINCT path), bool_and(level =
			cardinality(path) - (current_setting('server_version_num')::int < 180000)::int), min(type)
			FROM pg_get_memory_contexts($1)`
		for _, role := range []string{s.User, "reader"} {
			c := s.connect(t, role, "postgres")
			var all, marked, paths, level int
			var sound, deep bool
			var top, kind string
			row := c.QueryRow(t.Context(), summary, pid)
			if err := row.Scan(&all, &marked, &sound, &top, &level, &paths, &deep, &kind); err != nil {
				t.Fatalf("%s: %v", role, err)
			}
			if all < 60 || (marked > 0) != (role == s.User) || !sound || top != "TopMemoryContext" ||
				paths != all || !deep || kind != "AllocSet" {
				t.Errorf("%s: %d contexts, %d marked, sound %t, first %q at level %d, %d paths, deep %t, type %s",
					role, all, marked, sound, top, level, paths, deep, kind)
			}
		}
		_, err := s.connect(t, "stranger", "postgres").Exec(t.Context(), "SELECT pg_get_memory_contexts($1)", pid)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "42501" {
			t.Errorf("a stranger: %v", err)
		}
		for what, other := range map[string]int{"postmaster": s.PostmasterPID(), "own backend": int(boss.PgConn().PID())} {
			var n int
			err := boss.QueryRow(t.Context(), "SELECT count(*) FROM pg_get_memory_contexts($1)", other).Scan(&n)
			if err != nil || n == 0 {
				t.Errorf("%s: %d contexts, %v", what, n, err)
			}
		}
		var n int
		err = boss.QueryRow(t.Context(), "SELECT count(*) FROM pg_get_memory_contexts(-1)").Scan(&n)
		if err != nil || n != 0 {
			t.Errorf("no process: %d contexts, %v", n, err)
		}
		boss.mu.Lock()
		defer boss.mu.Unlock()
		if len(boss.notices) != 1 || boss.notices[0].message != "PID -1 is not a PostgreSQL server process" {
			t.Errorf("notices %+v", boss.notices)
		}
	})
}
