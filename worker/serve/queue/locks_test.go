package queue_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/serve/queue"
)

// planOfList returns the plan of one execution of the statement that lists the databases.
func planOfList(t *testing.T, c *pgx.Conn) string {
	t.Helper()
	rows, err := c.Query(t.Context(), "EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) "+queue.DatabaseSQL, []int32{})
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// TestSessionsAreCountedOnce checks that the list of databases reads the sessions a fixed number of times, however many
// databases have a CONNECTION LIMIT, and counts them only if there is such a database.
func TestSessionsAreCountedOnce(t *testing.T) {
	eachSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		admin := s.Connect(t, s.User, "postgres")
		check := func(what string, want int) {
			t.Helper()
			got := 0
			plan := planOfList(t, admin)
			for line := range strings.Lines(plan) {
				if !strings.Contains(line, "pg_stat_get_activity") || strings.Contains(line, "never executed") {
					continue
				}
				if got++; !strings.Contains(line, "loops=1)") {
					got += 100
				}
			}
			if got != want {
				t.Errorf("%s: the sessions are not read %d times:\n%s", what, want, plan)
			}
		}
		others := func(name string) string {
			return value[string](t, admin, strings.ReplaceAll("SELECT lim || ' ' || others FROM ("+queue.DatabaseSQL+
				") d (oid, datname, wanted, lim, others) WHERE convert_from(datname, 'UTF8') = '"+name+"'", "$1::int[]", "'{}'::int[]"))
		}
		check("no limits", 1)
		for _, name := range []string{"one", "two", "three"} {
			run(t, admin, "CREATE DATABASE "+name)
			run(t, admin, "ALTER DATABASE "+name+" CONNECTION LIMIT 5")
		}
		s.Connect(t, s.User, "two")
		check("three limits", 2)
		if one, two := others("one"), others("two"); one != "5 0" || two != "5 1" {
			t.Errorf("limit and sessions: %q and %q", one, two)
		}
	})
}

// TestLocksAreRead checks that the list of databases reads pg_locks only while another session has been executing a
// statement for some time, and then once, however many databases there are. It then finds a database that another
// session has locked.
func TestLocksAreRead(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		admin, other := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
		run(t, admin, "CREATE DATABASE one")
		run(t, admin, "CREATE DATABASE two")
		plan := func() string { return planOfList(t, admin) }
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
