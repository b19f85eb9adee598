package queue_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/serve/queue"
)

const workerSessions = `SELECT coalesce(string_agg(datname, ',' ORDER BY datname), '') FROM pg_stat_activity
	WHERE application_name = 'pg_stat_backtrace worker'`

// TestDatabases creates, changes and drops databases.
func TestDatabases(t *testing.T) {
	// So many slots that each database has a session; TestManyDatabases has fewer.
	oneSite(t, pgtest.Options{Conf: []string{"max_connections = 100"}}, func(t *testing.T, s *site) {
		worker := s.work(t)
		admin := s.Connect(t, s.User, "postgres")
		for _, name := range []string{"later", "doomed", "renamed", "copied", `"O'dd é"`} {
			run(t, admin, "CREATE DATABASE "+name)
		}
		pgtest.Wait(t, "no session where there is no extension", func() bool {
			return value[string](t, admin, workerSessions) == "postgres"
		})
		for _, name := range []string{"later", "doomed", "renamed", "copied", "O'dd é"} {
			s.extend(t, quoted(name))
		}
		// Requests from a database that the worker does not know yet are served when it does.
		c := s.Connect(t, s.User, "later")
		if o := slowResult(t, c, request(t, c, pid(admin))); o.State != "done" {
			t.Errorf("%+v", o)
		}
		waitLonger(t, "one session each", func() bool {
			return value[string](t, admin, workerSessions) == "O'dd é,copied,doomed,later,postgres,renamed"
		})
		for _, sql := range []string{
			"DROP DATABASE doomed", "ALTER DATABASE renamed RENAME TO other", "CREATE DATABASE copy TEMPLATE copied",
		} {
			got, attempts := code(t, admin, sql), 1
			// The server waits for 5 s until the worker has left, which a busy machine may need.
			for ; strings.HasPrefix(got, "55006 ") && attempts < 3; attempts++ {
				got = code(t, admin, sql)
			}
			if got != "" {
				t.Errorf("%s, %d times: %s", sql, attempts, got)
			}
		}
		waitLonger(t, "sessions are back", func() bool {
			return value[string](t, admin, workerSessions) == "O'dd é,copied,copy,later,other,postgres"
		})
		// A copy has the extension, and the table's rows.
		copied := s.Connect(t, s.User, "copy")
		if o := slowResult(t, copied, request(t, copied, pid(admin))); o.State != "done" {
			t.Errorf("%+v", o)
		}
		run(t, c, "DROP EXTENSION pg_stat_backtrace")
		waitLonger(t, "the session ends with the extension", func() bool {
			return value[string](t, admin, workerSessions) == "O'dd é,copied,copy,other,postgres"
		})
		s.testImpostor(t, worker, c)
	})
}

// testImpostor drops the extension, and a role without superuser rights makes functions with the names of its
// functions. The worker, a superuser, must not run them.
func (s *site) testImpostor(t *testing.T, worker *process, c *pgx.Conn) {
	admin := s.Connect(t, s.User, "postgres")
	s.extend(t, "later")
	waitLonger(t, "the extension is found again", func() bool {
		return strings.Contains(value[string](t, admin, workerSessions), "later")
	})
	run(t, c, `CREATE ROLE impostor; CREATE SEQUENCE public.caught; -- which no rollback sets back
		GRANT CREATE ON DATABASE later TO impostor`)
	run(t, c, "BEGIN; DROP EXTENSION pg_stat_backtrace; SET LOCAL ROLE impostor; CREATE SCHEMA backtrace")
	run(t, c, `CREATE TABLE backtrace.request (id int);
		CREATE FUNCTION backtrace.claim(int, bigint[], oid[]) RETURNS TABLE (id bigint, verb text, caller oid,
			caller_name name, superuser boolean, granted boolean, backend int, pid int, started bigint, settings jsonb,
			waited float8)
			LANGUAGE sql AS 'SELECT nextval(''public.caught''), ''get'', 10::oid, ''x''::name, true, true, 1, 1, 1::bigint,
			NULL::jsonb, 0::float8'`)
	run(t, c, "GRANT USAGE ON SCHEMA backtrace TO PUBLIC; NOTIFY pg_stat_backtrace; COMMIT")
	waitLonger(t, "the worker leaves", func() bool {
		return !strings.Contains(value[string](t, admin, workerSessions), "later")
	})
	if value[bool](t, c, "SELECT is_called FROM public.caught") {
		t.Errorf("the worker has run a stranger's function:\n%s", worker.text())
	}
}

// TestLoss kills the worker, and makes the server crash, restart and end sessions. Each request must have one result.
func TestLoss(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		worker := s.work(t)
		for name, lose := range map[string]func(t *testing.T){
			"worker killed": func(*testing.T) {
				_ = worker.end(syscall.SIGKILL)
				worker = s.launch(t)
			},
			"session terminated": func(t *testing.T) {
				s.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '^pg_stat_backtrace'`)
			},
			"server restarted": func(*testing.T) { s.Restart("fast") },
			"server crashed": func(t *testing.T) {
				victim := s.Connect(t, s.User, "postgres")
				if err := syscall.Kill(pid(victim), syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				pgtest.Wait(t, "the server has noticed", func() bool {
					return strings.Contains(s.Log(), "all server processes terminated")
				})
			},
		} {
			t.Run(name, func(t *testing.T) {
				run(t, s.again(t), "ALTER TABLE backtrace.request DISABLE TRIGGER ALL") // any statement: the server is up
				c := s.again(t)
				worker.suspend(t)
				ids := value[[]int64](t, c, "SELECT pg_request_backtrace(array_fill($1::int, ARRAY[50]))", pid(c))
				_ = worker.Process.Signal(syscall.SIGCONT)
				lose(t)
				c = s.again(t)
				if name == "server crashed" { // it has ended every process that was asked about
					if n := value[int](t, c, "SELECT count(*) FROM backtrace.request"); n != 0 {
						t.Errorf("%d requests have outlived their processes", n)
					}
					ids = nil
				}
				for _, id := range ids {
					if o := slowResult(t, c, id); o.State != "done" && o.SQLState != "55000" && o.SQLState != "42501" {
						t.Errorf("%+v", o)
					}
				}
				if o := slowResult(t, c, request(t, c, pid(c))); o.State != "done" {
					t.Errorf("afterwards: %+v", o)
				}
			})
		}
	})
}

// again connects to a server that may be coming up.
func (s *site) again(t *testing.T) (c *pgx.Conn) {
	t.Helper()
	pgtest.Wait(t, "the server accepts connections", func() bool {
		var err error
		c, err = pgx.Connect(t.Context(), s.DSN(s.User, "postgres"))
		return err == nil
	})
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// TestStandby checks that there is no queue during recovery, and no warning about that. After the promotion there must
// be a queue.
func TestStandby(t *testing.T) {
	prepare := func(dsn string) {
		c, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = c.Exec(t.Context(), "CREATE EXTENSION pg_stat_backtrace") // or the test is skipped
		_ = c.Close(t.Context())
	}
	eachSite(t, pgtest.Options{Standby: true, Prepare: prepare}, func(t *testing.T, s *site) {
		const there = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_stat_backtrace')"
		if !value[bool](t, s.Connect(t, s.User, "postgres"), there) {
			t.Skip("the extension is not installed in this server")
		}
		worker := s.launch(t)
		pgtest.Wait(t, "the worker is ready", func() bool { return strings.Contains(worker.text(), `"ready"`) })
		c := s.Connect(t, s.User, "postgres")
		other := s.Connect(t, s.User, "postgres")
		if got := code(t, c, "SELECT pg_request_backtrace($1::int)", pid(other)); !strings.HasPrefix(got, "25006 ") {
			t.Errorf("a request: %q", got)
		}
		const none = "55000 there are no queued requests on a standby"
		if got := code(t, c, "SELECT state FROM pg_backtrace_result(1)"); got != none {
			t.Errorf("a result: %q", got)
		}
		pgtest.Wait(t, "a waiting call is answered", func() bool {
			return code(t, c, "SELECT pg_get_backtrace($1::int)", pid(other)) == ""
		})
		if got := value[string](t, c, workerSessions); got != "" || strings.Contains(worker.text(), `"level":"warn"`) {
			t.Errorf("sessions: %q\n%s", got, worker.text())
		}
		run(t, c, "SELECT pg_promote()")
		if o := slowResult(t, c, request(t, c, pid(other))); o.State != "done" {
			t.Errorf("%+v", o)
		}
		if n := value[int](t, c, "SELECT count(*) FROM backtrace.request WHERE kind = 'waiting'"); n != 0 {
			t.Errorf("%d rows of calls made during recovery", n)
		}
	})
}

// TestOrdinaryRole checks that a worker without superuser rights serves the queue once it was granted the functions.
func TestOrdinaryRole(t *testing.T) {
	eachSite(t, pgtest.Options{InitDB: []string{"--encoding=LATIN1"}}, func(t *testing.T, s *site) {
		s.Exec(t, "CREATE ROLE backtracer LOGIN; CREATE ROLE alice LOGIN;"+
			"GRANT EXECUTE ON FUNCTION pg_request_backtrace(int, boolean) TO alice")
		worker := s.launch(t, workerEnv+"="+s.DSN("backtracer", "postgres"))
		pgtest.Wait(t, "the worker says what is missing", func() bool {
			return strings.Contains(worker.text(), "has no EXECUTE privilege on the functions backtrace.claim")
		})
		s.Exec(t, "GRANT EXECUTE ON FUNCTION backtrace.claim, backtrace.finish, backtrace.journal, backtrace.prune "+
			"TO backtracer")
		alice := s.Connect(t, "alice", "postgres")
		if o := slowResult(t, alice, request(t, alice, pid(alice))); o.State != "done" {
			t.Errorf("%+v", o)
		}
	})
}

// TestRate checks that a role that makes more requests than its rate allows gets its answers later, and that other
// roles do not wait for it.
func TestRate(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		s.Exec(t, `CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN;
			GRANT EXECUTE ON FUNCTION pg_request_backtrace(int, boolean), pg_request_backtrace(int[], boolean) TO alice, bob`)
		const requests, perSecond = 8, 5
		slow := s.work(t, "PGSB_RATE=0.001 1") // a role waits a quarter of an hour for its second answer
		alice, bob := s.Connect(t, "alice", "postgres"), s.Connect(t, "bob", "postgres")
		ids := value[[]int64](t, alice, "SELECT pg_request_backtrace(array_fill(pg_backend_pid(), ARRAY[$1::int]))", requests)
		if o := result(t, bob, request(t, bob, pid(bob))); o.State != "done" {
			t.Errorf("%+v", o)
		}
		if n := value[int](t, alice, "SELECT count(*) FROM backtrace.request WHERE state = 'queued'"); n < requests-1 {
			t.Errorf("of alice's requests, %d wait", n)
		}
		if err := slow.end(stopSignal); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s.work(t, fmt.Sprintf("PGSB_RATE=%d 1", perSecond))
		for _, id := range ids {
			if o := result(t, alice, id); o.State != "done" {
				t.Errorf("%+v", o)
			}
		}
		if took := time.Since(began); took < (requests-2)*time.Second/perSecond { // the first worker has answered one request
			t.Errorf("%d requests at %d a second took %v", requests-1, perSecond, took)
		}
	})
}

// quoted is a database's name in a connection string.
func quoted(name string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(strings.Trim(name, `"`)) + "'"
}

// slowResult is result with a longer timeout.
func slowResult(t *testing.T, c *pgx.Conn, id int64) outcome {
	t.Helper()
	waitLonger(t, "the request is served", func() bool {
		return value[string](t, c, "SELECT state FROM pg_backtrace_result($1)", id) != "queued"
	})
	return result(t, c, id)
}

// waitLonger waits as long as the worker's longer pauses.
func waitLonger(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * pgtest.Patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// TestNotifiedMeanwhile commits a request right before the queue sends its journal's INSERT. The notification comes with
// an answer in the same transaction. The queue must serve the request at once: its next poll is an hour later.
func TestNotifiedMeanwhile(t *testing.T) {
	oneSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		var journal queue.Journal
		admin, other := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
		meanwhile := make(chan int64, 1)
		var once sync.Once
		h := &handler{calls: map[int]int{}, before: func(_, message string) {
			if strings.Contains(message, "backtrace.journal(") {
				once.Do(func() { meanwhile <- request(t, other, 2) })
			}
		}}
		s.serve(t, h, queue.Config{Poll: time.Hour, Journal: &journal})
		_ = result(t, admin, request(t, admin, 2))
		now := time.Now()
		journal.Add("postgres", queue.Row{Verb: "get", Caller: 10, CallerName: s.User, PID: 2, Requested: now, Finished: now})
		if o := result(t, admin, <-meanwhile); o.State != "done" {
			t.Errorf("%+v", o)
		}
	})
}
