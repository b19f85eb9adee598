package queue_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
)

// TestFairness checks that a role with thousands of requests delays each other role by at most its share of a batch.
func TestFairness(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		s.Exec(t, `CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE carol LOGIN; CREATE ROLE boss LOGIN SUPERUSER;
			GRANT EXECUTE ON FUNCTION pg_request_backtrace(int[], boolean) TO alice, bob, carol`)
		ask := func(role string, n int) {
			run(t, s.Connect(t, role, "postgres"), fmt.Sprintf("SELECT pg_request_backtrace(array_fill(1, ARRAY[%d]))", n))
		}
		ask("alice", 900)
		ask("bob", 30)
		ask("carol", 2)
		ask("boss", 5)
		c := s.Connect(t, s.User, "postgres")
		const shares = `SELECT string_agg(caller_name || ' ' || n, ', ' ORDER BY caller_name)
			FROM (SELECT caller_name, count(*) AS n FROM backtrace.claim(%d, '{}', '%s') GROUP BY 1) x`
		for _, step := range []struct {
			most       int
			but, claim string
		}{
			{4, "{}", "boss 4"}, {25, "{}", "alice 9, bob 9, boss 5, carol 2"}, {7, "{}", "alice 1, boss 5, carol 1"},
			{100, "{}", "alice 63, bob 30, boss 5, carol 2"}, {2000, "{}", "alice 900, bob 30, boss 5, carol 2"},
		} {
			run(t, c, "BEGIN")
			got := value[string](t, c, fmt.Sprintf(shares, step.most, step.but))
			run(t, c, "ROLLBACK")
			if got != step.claim && (step.most != 7 || got == "") {
				t.Errorf("of %d: %s, want %s", step.most, got, step.claim)
			}
		}
		// What another session has claimed is passed over, and the roles named.
		other := s.Connect(t, s.User, "postgres")
		run(t, other, "BEGIN")
		_ = value[int](t, other, "SELECT count(*) FROM backtrace.claim(25, '{}', '{}')")
		alice := value[uint32](t, c, "SELECT 'alice'::regrole::oid")
		if got := value[string](t, c, fmt.Sprintf(shares, 100, fmt.Sprintf("{%d}", alice))); got != "bob 21" {
			t.Errorf("what is left of the others: %s", got)
		}
		run(t, other, "ROLLBACK")
	})
}

// TestCap checks the limit of a role's requests with transactions that cannot see each other's requests.
func TestCap(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		s.Exec(t, `CREATE ROLE alice LOGIN; CREATE ROLE boss LOGIN SUPERUSER;
			GRANT EXECUTE ON FUNCTION pg_request_backtrace(int[], boolean) TO alice`)
		sessions := make([]*pgx.Conn, 0, 4)
		for range 4 {
			c := s.Connect(t, "alice", "postgres")
			run(t, c, "BEGIN; SELECT pg_request_backtrace(array_fill(1, ARRAY[1000]))")
			sessions = append(sessions, c)
		}
		run(t, s.Connect(t, "boss", "postgres"), "SELECT pg_request_backtrace(array_fill(1, ARRAY[1500]))")
		for _, c := range sessions {
			run(t, c, "COMMIT")
		}
		c := s.Connect(t, s.User, "postgres")
		run(t, c, "BEGIN")
		_ = value[int](t, c, "SELECT count(*) FROM backtrace.claim(2000, '{}', '{}')")
		run(t, c, "COMMIT")
		got := value[string](t, c, `SELECT string_agg(concat_ws(' ', caller_name, state, sqlstate, n), ', '
				ORDER BY caller_name, state)
			FROM (SELECT caller_name, state, sqlstate, count(*) AS n FROM backtrace.request GROUP BY 1, 2, 3) x`)
		if want := "alice failed 53400 3000, alice queued 1000, boss queued 1500"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if n := value[int](t, c, `SELECT count(*) FROM backtrace.request WHERE state = 'failed' AND id <=
			(SELECT max(id) FROM backtrace.request WHERE state = 'queued' AND caller_name = 'alice')`); n != 0 {
			t.Errorf("%d of the oldest requests were refused", n)
		}
	})
}

// TestSetval checks a role with write access to all tables that moves the sequence of ids, which row security does
// not protect.
func TestSetval(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		s.Exec(t, "CREATE ROLE writer LOGIN; GRANT pg_write_all_data TO writer")
		s.work(t)
		admin, writer := s.Connect(t, s.User, "postgres"), s.Connect(t, "writer", "postgres")
		run(t, admin, "SET pg_stat_backtrace.timeout = 60000")
		first := request(t, admin, pid(writer))
		seen := map[int64]bool{first: true}
		for _, to := range []string{
			"9223372036854775807", "1", "9223372036854775806", "9007199254740991", "1", "9223372036854775807, false", "1, false",
		} {
			run(t, writer, "SELECT setval('backtrace.request_id_seq', "+to+")")
			for range 3 {
				id := request(t, admin, pid(writer))
				if o := result(t, admin, id); o.State != "done" || seen[id] {
					t.Errorf("after setval to %s: %d %+v", to, id, o)
				}
				seen[id] = true
			}
			run(t, writer, "SELECT setval('backtrace.request_id_seq', "+to+")")
			before := value[int](t, admin, "SELECT count(*) FROM backtrace.request WHERE kind = 'waiting'")
			_ = value[string](t, admin, "SELECT pg_get_backtrace($1::int)", pid(writer))
			pgtest.Wait(t, "the journal has the call", func() bool {
				return value[int](t, admin, "SELECT count(*) FROM backtrace.request WHERE kind = 'waiting'") > before
			})
		}
	})
}

// TestSetvalStorm checks a role that moves the sequence all the time.
func TestSetvalStorm(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		s.Exec(t, "CREATE ROLE writer LOGIN; GRANT pg_write_all_data TO writer")
		c, writer := s.Connect(t, s.User, "postgres"), s.Connect(t, "writer", "postgres")
		run(t, c, "SELECT pg_advisory_lock(4711)") // before: the storm ends when it gets this lock
		storm := make(chan error, 1)
		go func() {
			_, err := writer.Exec(t.Context(), `DO $$ BEGIN WHILE NOT pg_try_advisory_xact_lock(4711) LOOP
				PERFORM setval('backtrace.request_id_seq',
					('{1,9223372036854775807,9007199254740991,5}'::bigint[])[1 + (random() * 3)::int]); END LOOP; END $$`)
			storm <- err
		}()
		pgtest.Wait(t, "the storm", func() bool {
			return value[bool](t, c, "SELECT state = 'active' AND query LIKE 'DO %' FROM pg_stat_activity WHERE pid = $1", pid(writer))
		})
		for range 100 {
			run(t, c, "SELECT pg_request_backtrace('{1,2,3}'::int[])")
			run(t, c, `SELECT backtrace.journal('{get,get}', '{10,10}', '{x,x}', '{1,1}', '{1,1}', '{now,now}', '{now,now}',
				'{x,x}', '{1,1}', '{1,1}', '{NULL,NULL}', '{NULL,NULL}', '{NULL,NULL}', '{NULL,NULL}')`)
		}
		run(t, c, "SELECT pg_advisory_unlock(4711)")
		if err := <-storm; err != nil {
			t.Error(err)
		}
		got := value[string](t, c, "SELECT count(*) || ' ' || count(DISTINCT id) FROM backtrace.request")
		if got != "500 500" {
			t.Error(got)
		}
		if id := value[int64](t, c, "SELECT pg_request_backtrace(1)"); id >= 1<<53 {
			t.Errorf("afterwards the id of a request is %d", id)
		}
	})
}

// TestLockTable: a role that may write to all tables locks the table. Calls are answered meanwhile; queue and journal
// continue afterwards.
func TestLockTable(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		s.Exec(t, "CREATE ROLE writer LOGIN; GRANT pg_write_all_data TO writer")
		s.work(t)
		admin, writer := s.Connect(t, s.User, "postgres"), s.Connect(t, "writer", "postgres")
		run(t, admin, "SET pg_stat_backtrace.timeout = 60000; SET statement_timeout = '60s'")
		id := request(t, admin, pid(writer))
		_ = result(t, admin, id)
		run(t, writer, "BEGIN; LOCK TABLE backtrace.request IN ACCESS EXCLUSIVE MODE")
		if n := value[int](t, admin, `SELECT count(*) FROM pg_locks WHERE relation = 'backtrace.request'::regclass
			AND mode = 'AccessExclusiveLock' AND granted`); n != 1 {
			t.Fatalf("%d locks: this test shows nothing", n)
		}
		for range 3 {
			_ = value[string](t, admin, "SELECT pg_get_backtrace($1::int)", pid(writer))
		}
		run(t, writer, "COMMIT")
		if o := slowResult(t, admin, request(t, admin, pid(writer))); o.State != "done" {
			t.Errorf("%+v", o)
		}
		waitLonger(t, "the journal has the calls", func() bool {
			return value[int](t, admin, "SELECT count(*) FROM backtrace.request WHERE kind = 'waiting'") >= 3
		})
	})
}
