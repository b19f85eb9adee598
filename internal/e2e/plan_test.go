package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
)

// TestRunningPlan checks that SQL shows the plan of another session's statement as text and as JSON, to the roles that see the
// session's query in pg_stat_activity.
func TestRunningPlan(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, binDir string) {
		s := start(t, binDir, pgtest.Options{})
		s.work(t)
		boss := s.connect(t, s.User, "postgres")
		boss.run(t, `CREATE ROLE planner LOGIN; CREATE ROLE other LOGIN; CREATE ROLE reads LOGIN; GRANT pg_monitor TO reads;
			GRANT EXECUTE ON FUNCTION pg_get_running_plan(int, text) TO planner, other, reads;
			CREATE TABLE planned AS SELECT 1 AS a; GRANT SELECT ON planned TO planner`)
		target := s.Connect(t, "planner", "postgres")
		pid := int(target.PgConn().PID())
		running := make(chan error, 1)
		go func() {
			_, err := target.Exec(t.Context(), "SELECT pg_sleep(600) FROM planned")
			running <- err
		}()
		pgtest.Wait(t, "the session sleeps", func() bool {
			var event *string
			err := boss.QueryRow(t.Context(), "SELECT wait_event FROM pg_stat_activity WHERE pid = $1", pid).Scan(&event)
			return err == nil && event != nil && *event == "PgSleep"
		})
		pgtest.Wait(t, "the worker has read the server's program", func() bool { // a slow disk can exceed the worker's limit
			_, err := boss.Exec(t.Context(), "SELECT pg_get_running_plan($1)", pid)
			return err == nil || !strings.Contains(err.Error(), "was not read in time")
		})
		for _, role := range []string{s.User, "planner", "reads"} {
			c := s.connect(t, role, "postgres")
			text := c.text(t, "SELECT pg_get_running_plan($1)", pid)
			if !strings.Contains(text, "SELECT pg_sleep(600) FROM planned") || !strings.Contains(text, "Seq Scan on planned") {
				t.Errorf("%s: %s", role, text)
			}
			var got struct {
				PID        int
				Statements []struct{ Plan map[string]any }
			}
			text = c.text(t, "SELECT pg_get_running_plan($1, 'json')", pid)
			if err := json.Unmarshal([]byte(text), &got); err != nil || got.PID != pid || len(got.Statements) != 1 ||
				got.Statements[0].Plan["Node Type"] != "Seq Scan" {
				t.Errorf("%s: %v, %s", role, err, text)
			}
		}
		for _, refused := range []struct{ role, format, code string }{{"other", "text", "42501"}, {s.User, "xml", "22023"}} {
			_, err := s.connect(t, refused.role, "postgres").Exec(t.Context(), "SELECT pg_get_running_plan($1, $2)", pid, refused.format)
			var failed *pgconn.PgError
			if !errors.As(err, &failed) || failed.Code != refused.code {
				t.Errorf("%+v: %v", refused, err)
			}
		}
		boss.run(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'planner'")
		if err := <-running; err == nil {
			t.Error("the statement ended before its session")
		}
	})
}

// TestRunningPlanOfFunctions checks that an ordinary role does not see a statement of a function, also if no statement of the client
// is around it, and that it sees the client's own statements.
func TestRunningPlanOfFunctions(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, binDir string) {
		s := start(t, binDir, pgtest.Options{})
		s.work(t)
		boss := s.connect(t, s.User, "postgres")
		boss.run(t, `CREATE ROLE caller LOGIN; GRANT EXECUTE ON FUNCTION pg_get_running_plan(int, text) TO caller;
			CREATE TABLE payroll AS SELECT 1 AS a; CREATE TABLE wages AS SELECT 1 AS a; GRANT SELECT, INSERT ON wages TO caller;
			GRANT SELECT ON payroll TO caller; -- a procedure of another owner cannot COMMIT
			CREATE PROCEDURE held() LANGUAGE plpgsql AS $$DECLARE r record; BEGIN
				FOR r IN EXECUTE 'SELECT CASE WHEN i > 20 THEN pg_sleep(600) END, ''token'' FROM payroll, generate_series(1, 30) i'
				LOOP COMMIT; END LOOP; END$$;
			CREATE PROCEDURE undone() LANGUAGE plpgsql AS $$DECLARE r record; BEGIN
				FOR r IN EXECUTE 'SELECT CASE WHEN i > 20 THEN pg_sleep(600) END, ''token'' FROM payroll, generate_series(1, 30) i'
				LOOP ROLLBACK; END LOOP; END$$;
			CREATE FUNCTION hold() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS
				$$BEGIN EXECUTE 'DECLARE h CURSOR WITH HOLD FOR SELECT pg_sleep(600), ''token'' FROM payroll'; END$$;
			CREATE PROCEDURE secret() LANGUAGE plpgsql SECURITY DEFINER AS
				$$BEGIN EXECUTE 'SELECT pg_sleep(600), ''token'' FROM payroll'; END$$;
			CREATE PROCEDURE cursor() LANGUAGE plpgsql SECURITY DEFINER AS
				$$DECLARE r record; BEGIN FOR r IN EXECUTE 'SELECT pg_sleep(600), ''token'' FROM payroll' LOOP END LOOP; END$$;
			CREATE PROCEDURE plain() LANGUAGE sql SECURITY DEFINER AS $$SELECT pg_sleep(600), 'token' FROM payroll$$;
			CREATE FUNCTION opened() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS
				$$DECLARE c refcursor = 'c'; BEGIN OPEN c FOR EXECUTE 'SELECT pg_sleep(600), ''token'' FROM payroll'; END$$;
			CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN CALL secret(); RETURN NULL; END$$;
			CREATE CONSTRAINT TRIGGER late AFTER INSERT ON wages DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()`)
		pgtest.Wait(t, "the worker has read the server's program", func() bool { // a slow disk can exceed the worker's limit
			_, err := boss.Exec(t.Context(), "SELECT pg_get_running_plan(pg_backend_pid())")
			return err == nil || !strings.Contains(err.Error(), "was not read in time")
		})
		asks := s.connect(t, "caller", "postgres")
		for _, c := range []struct{ statement, seen string }{ // seen: the table that the caller sees
			{"CALL secret()", ""},
			{"CALL cursor()", ""},
			{"CALL plain()", ""},
			{"BEGIN; INSERT INTO wages VALUES (2); COMMIT", ""},
			{"BEGIN; SELECT opened(); FETCH c", ""},
			{"CALL held()", ""},
			{"CALL undone()", ""},
			{"BEGIN; SELECT hold(); COMMIT", ""},
			{"SELECT pg_sleep(600), 'token' FROM wages", "wages"},
			{"PREPARE own AS SELECT pg_sleep(600), 'token' FROM wages; EXECUTE own", "wages"},
			{"EXPLAIN ANALYZE SELECT pg_sleep(600), 'token' FROM wages", "wages"},
			{"COPY (SELECT pg_sleep(600), 'token' FROM wages) TO STDOUT", "wages"},
		} {
			target := s.connect(t, "caller", "postgres")
			pid := target.pid()
			done := make(chan error, 1)
			go func() {
				_, err := target.PgConn().Exec(context.Background(), c.statement).ReadAll()
				done <- err
			}()
			s.waits(t, pid, "PgSleep")
			for _, format := range []string{"text", "json"} {
				const query = "SELECT pg_get_running_plan($1, $2)"
				if all := boss.text(t, query, pid, format); !strings.Contains(all, "token") {
					t.Errorf("%s: a superuser sees %s", c.statement, all)
				}
				got := asks.text(t, query, pid, format)
				if c.seen == "" && (strings.Contains(got, "token") || strings.Contains(got, "payroll") || !strings.Contains(got, "not shown to this role")) ||
					c.seen != "" && (!strings.Contains(got, "token") || !strings.Contains(got, c.seen)) {
					t.Errorf("%s: the caller sees %s", c.statement, got)
				}
			}
			boss.run(t, fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
			if err := <-done; err == nil {
				t.Errorf("%s ended before its session", c.statement)
			}
		}
		s.parallelPlan(t, boss, asks)
	})
}

// parallelPlan checks that an ordinary role does not see the plan of a parallel worker, whose leader may run a function.
func (s *site) parallelPlan(t *testing.T, boss, asks *session) {
	t.Helper()
	boss.run(t, `ALTER TABLE payroll SET (parallel_workers = 2);
		ALTER ROLE caller SET parallel_setup_cost = 0; ALTER ROLE caller SET parallel_tuple_cost = 0;
		ALTER ROLE caller SET min_parallel_table_scan_size = 0; ALTER ROLE caller SET parallel_leader_participation = off;
		CREATE PROCEDURE parallel() LANGUAGE plpgsql SECURITY DEFINER AS
			$$BEGIN EXECUTE 'SELECT count(*), ''token'' FROM payroll WHERE pg_sleep(600)::text = a::text'; END$$`)
	target := s.connect(t, "caller", "postgres")
	pid := target.pid()
	done := make(chan error, 1)
	go func() {
		_, err := target.PgConn().Exec(context.Background(), "CALL parallel()").ReadAll()
		done <- err
	}()
	const ofWorker = "SELECT coalesce(min(pid), 0) FROM pg_stat_activity WHERE backend_type = 'parallel worker' AND wait_event = 'PgSleep'"
	var worker int
	pgtest.Wait(t, "a parallel worker", func() bool {
		if err := boss.QueryRow(t.Context(), ofWorker).Scan(&worker); err != nil {
			t.Fatal(err)
		}
		return worker != 0
	})
	const query = "SELECT pg_get_running_plan($1)"
	if all := boss.text(t, query, worker); !strings.Contains(all, "payroll") {
		t.Errorf("a superuser sees %s", all)
	}
	if got := asks.text(t, query, worker); strings.Contains(got, "payroll") || !strings.Contains(got, "not shown to this role") {
		t.Errorf("the caller sees %s", got)
	}
	boss.run(t, fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
	if err := <-done; err == nil {
		t.Error("the parallel statement ended before its session")
	}
}
