package queue_test

import (
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/serve/queue"
)

// TestLocksAreRead checks that the list of databases reads pg_locks only while another session has been executing a
// statement for some time, and then once, however many databases there are. It then finds a database that another
// session has locked.
func TestLocksAreRead(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		admin, other := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
		run(t, admin, "CREATE DATABASE one")
		run(t, admin, "CREATE DATABASE two")
		plan := func() string {
			rows, err := admin.Query(t.Context(), "EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) "+queue.DatabaseSQL,
				[]int32{})
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			for rows.Next() {
				var line string
				if err := rows.Scan(&line); err != nil {
					t.Fatal(err)
				}
				text.WriteString(line + "\n")
			}
			if rows.Err() != nil {
				t.Fatal(rows.Err())
			}
			return text.String()
		}
		reads := func(plan string) (read, never bool) {
			for line := range strings.Lines(plan) {
				if strings.Contains(line, "pg_lock_status") {
					return !strings.Contains(line, "never executed"), strings.Contains(line, "never executed")
				}
			}
			t.Fatalf("the plan reads no locks:\n%s", plan)
			return false, false
		}
		if _, never := reads(plan()); !never {
			t.Errorf("pg_locks is read in an idle server:\n%s", plan())
		}
		busy := make(chan error, 1)
		go func() {
			_, err := other.Exec(t.Context(), "BEGIN; ALTER DATABASE two RENAME TO three; SELECT pg_sleep(3600)")
			busy <- err
		}()
		pgtest.Wait(t, "the locks are read", func() bool { read, _ := reads(plan()); return read })
		if p := plan(); strings.Count(p, "pg_lock_status") != 1 || !strings.Contains(p, "loops=1") {
			t.Errorf("pg_locks is read more than once:\n%s", p)
		}
		locked := value[string](t, admin, strings.ReplaceAll("SELECT string_agg(convert_from(datname, 'UTF8'), ' ') FROM ("+queue.DatabaseSQL+
			") d (oid, datname, wanted, lim, others) WHERE wanted", "$1::int[]", "'{}'::int[]"))
		if locked != "two" {
			t.Errorf("locked: %q", locked)
		}
		run(t, admin, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
		<-busy
	})
}
