package queue_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
)

func TestQueue(t *testing.T) {
	eachSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		s.Exec(t, `CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE stranger LOGIN;
			GRANT EXECUTE ON FUNCTION pg_request_backtrace(int, boolean), pg_request_backtrace(int[], boolean)
			TO alice, bob`)
		admin := s.Connect(t, s.User, "postgres")
		target := s.Connect(t, s.User, "postgres")
		t.Run("before there is a worker", func(t *testing.T) { s.testNoWorker(t, admin, pid(target)) })
		worker := s.work(t)
		for name, test := range map[string]func(*testing.T, *pgx.Conn, int){
			"table": s.testTable, "rolled back": s.testRollback, "many": s.testMany, "log": s.testLog,
			"failures": s.testFailures, "arguments": s.testArguments, "read-only": s.testReadOnly,
			"retention": s.testRetention, "settings": s.testSettings,
			"row security": s.testRowSecurity, "privileges": s.testPrivileges, "forged": s.testForged,
			"limit": s.testLimit, "journal": s.testJournal,
		} {
			t.Run(name, func(t *testing.T) { test(t, admin, pid(target)) })
		}
		t.Run("two sessions", func(t *testing.T) { s.testTwoSessions(t, worker, admin, pid(target)) })
		if strings.Contains(worker.text(), `"level":"error"`) || strings.Contains(worker.text(), `"level":"warn"`) {
			t.Errorf("the worker complains:\n%s", worker.text())
		}
	})
}

// testNoWorker checks that a request without a worker stays queued, and that the requester gets a notice.
func (s *site) testNoWorker(t *testing.T, admin *pgx.Conn, target int) {
	c, notices := s.notices(t)
	run(t, c, "SET pg_stat_backtrace.timeout = 60000") // the worker's first capture, beside other packages' tests
	id := request(t, c, target)
	const want = "NOTICE the pg_stat_backtrace worker is not running"
	if got := notices(); len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("told: %q", got)
	}
	if state := value[string](t, admin, "SELECT state FROM pg_backtrace_result($1)", id); state != "queued" {
		t.Errorf("without a worker it is %s", state)
	}
	worker := s.work(t)
	if o := result(t, admin, id); o.State != "done" {
		t.Errorf("%+v", o)
	}
	request(t, c, target)
	if got := notices(); len(got) != 0 {
		t.Errorf("with a worker told: %q", got)
	}
	if err := worker.end(stopSignal); err != nil {
		t.Error(err)
	}
}

func (s *site) testTable(t *testing.T, admin *pgx.Conn, target int) {
	run(t, admin, "LISTEN backtrace_done")
	id := request(t, admin, target)
	// The last request of another test may end only now.
	for done := ""; done != strconv.FormatInt(id, 10); {
		n, err := admin.WaitForNotification(t.Context())
		if err != nil {
			t.Fatalf("told of no end of request %d, last %q: %v", id, done, err)
		}
		done = n.Payload
	}
	run(t, admin, "UNLISTEN *")
	o := result(t, admin, id)
	if o.State != "done" || !strings.Contains(o.Text, "in PostgresMain+0x") || o.Engine != "stop" && o.Engine != "blocked" || o.Pause > 0 != (o.Engine == "stop") ||
		o.Depth != strings.Count(o.Text, "\n")+1 {
		t.Errorf("%+v", o)
	}
	row := value[string](t, admin, `SELECT concat_ws(' ', kind, verb, caller_name, caller = 10,
		backend = pg_backend_pid(), pid, finished_at >= requested_at) FROM backtrace.request WHERE id = $1`, id)
	if want := value[string](t, admin, "SELECT 'queued get postgres t t ' || $1::int || ' t'", target); row != want {
		t.Errorf("%q, want %q", row, want)
	}
}

func (s *site) testRollback(t *testing.T, admin *pgx.Conn, target int) {
	c := s.Connect(t, s.User, "postgres")
	run(t, c, "BEGIN")
	id := request(t, c, target)
	run(t, c, "ROLLBACK; BEGIN; SAVEPOINT a")
	other := request(t, c, target)
	run(t, c, "ROLLBACK TO a; COMMIT")
	result(t, admin, request(t, admin, target)) // a later one is done
	if n := value[int](t, admin, "SELECT count(*) FROM backtrace.request WHERE id IN ($1, $2)", id, other); n != 0 {
		t.Errorf("requests that were rolled back: %d rows", n)
	}
}

func (s *site) testMany(t *testing.T, admin *pgx.Conn, target int) {
	ids := value[[]*int64](t, admin, "SELECT pg_request_backtrace(ARRAY[$1::int, 0, $1, NULL, 2147483647])", target)
	if len(ids) != 5 || ids[0] == nil || ids[1] != nil || ids[2] == nil || ids[3] != nil || ids[4] == nil {
		t.Fatalf("ids %v", ids)
	}
	for i, want := range map[int]string{0: "done ", 2: "done ", 4: "failed 01000"} {
		if o := result(t, admin, *ids[i]); o.State+" "+o.SQLState != want {
			t.Errorf("request %d: %+v", i, o)
		}
	}
	if n := value[int](t, admin, "SELECT cardinality(pg_request_backtrace('{}'::int[]))"); n != 0 {
		t.Errorf("no pids: %d ids", n)
	}
}

// testLog checks that the worker's session writes the log entry, and that the requester gets no message.
func (s *site) testLog(t *testing.T, admin *pgx.Conn, target int) {
	c, notices := s.notices(t)
	run(t, c, "SET client_min_messages = log")
	o := result(t, c, value[int64](t, c, "SELECT pg_request_backtrace($1::int, log => true)", target))
	if o.State != "done" || o.Text != "" || o.Depth <= 0 || len(notices()) != 0 {
		t.Errorf("%+v, told %q", o, notices())
	}
	banner := "LOG:  backtrace of PID " + value[string](t, admin, "SELECT $1::int::text", target) + "\n"
	_, entry, found := strings.Cut(s.Log(), banner)
	if line, _, _ := strings.Cut(entry, "\n"); !found || !strings.Contains(line, "DETAIL:  #0  0x") {
		t.Errorf("logged: %v %q", found, entry)
	}
	if strings.Contains(entry, "STATEMENT:  SELECT backtrace") {
		t.Error("the worker's statement is logged")
	}
}

func (s *site) testFailures(t *testing.T, admin *pgx.Conn, _ int) {
	gone := s.Connect(t, s.User, "postgres")
	ended := pid(gone)
	_ = gone.Close(t.Context())
	pgtest.Wait(t, "the session has ended", func() bool {
		return value[bool](t, admin, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", ended)
	})
	for name, c := range map[string]struct {
		pid          int
		state, words string
	}{
		"the postmaster":     {s.PostmasterPID(), "42501", "cannot capture the backtrace of the postmaster"},
		"nobody's":           {ended, "01000", "is not a PostgreSQL server process"},
		"somebody's":         {1, "01000", "PID 1 is not a PostgreSQL server process"},
		"a backend that had": {0, "42501", "now belongs to another process"},
		"a backend that has": {-1, "55000", "has exited"},
	} {
		// The last two: made in a transaction that ends after the process has, or with another start time.
		tx := s.Connect(t, s.User, "postgres")
		victim := s.Connect(t, s.User, "postgres")
		run(t, tx, "BEGIN")
		asked := c.pid
		if asked <= 0 {
			asked = pid(victim)
		}
		id := request(t, tx, asked)
		switch c.pid {
		case 0:
			run(t, tx, fmt.Sprint("UPDATE backtrace.request SET started = started - 1 WHERE id = ", id))
		case -1:
			_ = victim.Close(t.Context())
			pgtest.Wait(t, "the process has ended", func() bool {
				return value[bool](t, admin, "SELECT pg_stat_file('/proc/' || $1::int, true) IS NULL", asked)
			})
		}
		run(t, tx, "COMMIT")
		if o := result(t, admin, id); o.State != "failed" || o.SQLState != c.state || !strings.Contains(o.Message, c.words) {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

func (s *site) testArguments(t *testing.T, admin *pgx.Conn, _ int) {
	c, notices := s.notices(t)
	for sql, want := range map[string]string{
		"SELECT pg_request_backtrace(0)":                  "WARNING PID 0 is not a PostgreSQL server process",
		"SELECT pg_request_backtrace(-5, true)":           "WARNING PID -5 is not a PostgreSQL server process",
		"SELECT (pg_request_backtrace('{-7}'::int[]))[1]": "WARNING PID -7 is not a PostgreSQL server process",
		"SELECT pg_request_backtrace(NULL::int)":          "",
		"SELECT (pg_request_backtrace(NULL::int[]))[1]":   "",
	} {
		if id := value[*int64](t, c, sql); id != nil {
			t.Errorf("%s: %d", sql, *id)
		}
		if got := strings.Join(notices(), ";"); got != want {
			t.Errorf("%s: told %q", sql, got)
		}
	}
	got := code(t, admin, "SELECT pg_request_backtrace(array_fill(1, ARRAY[10001]))")
	if got != "54000 cannot request more than 10000 backtraces at once" {
		t.Error(got)
	}
	if n := value[int](t, admin, "SELECT count(*) FROM pg_backtrace_result(-1)"); n != 0 {
		t.Errorf("a request that does not exist: %d rows", n)
	}
}

func (s *site) testReadOnly(t *testing.T, _ *pgx.Conn, target int) {
	c := s.Connect(t, s.User, "postgres")
	run(t, c, "BEGIN READ ONLY")
	got := code(t, c, "SELECT pg_request_backtrace($1::int)", target)
	if got != "25006 cannot queue a request for a backtrace in a read-only transaction" {
		t.Error(got)
	}
	run(t, c, "ROLLBACK")
}

// testRetention calls prune, as the worker does from time to time.
func (s *site) testRetention(t *testing.T, _ *pgx.Conn, _ int) {
	c := s.Connect(t, s.User, "postgres")
	run(t, c, "BEGIN; DELETE FROM backtrace.request")
	run(t, c, `INSERT INTO backtrace.request (kind, verb, state, caller, caller_name, requested_at, finished_at)
		SELECT 'waiting', 'get', CASE WHEN i % 10 = 0 THEN 'queued' ELSE 'done' END, 10, 'x',
		       clock_timestamp() - interval '1 hour' * (100 - i), CASE WHEN i % 10 > 0 THEN now() END
		FROM generate_series(1, 100) i`)
	for _, step := range []struct {
		sql        string
		gone, left int
	}{
		{"SELECT backtrace.prune('1000 hours', 1000, 1000)", 0, 100},
		{"SELECT backtrace.prune('89.5 hours', 1000, 5)", 5, 95},
		{"SELECT backtrace.prune('89.5 hours', 1000, 1000)", 4, 91},
		{"SELECT backtrace.prune('1000 hours', 80, 1000)", 1, 90},
		{"SELECT backtrace.prune('0', 80, 1000)", 80, 10},
		{"SELECT backtrace.prune('0', 0, 1000)", 0, 10},
	} {
		gone := value[int](t, c, step.sql)
		left := value[int](t, c, "SELECT count(*) FROM backtrace.request")
		if gone != step.gone || left != step.left {
			t.Errorf("%s: %d gone and %d left, want %d and %d", step.sql, gone, left, step.gone, step.left)
		}
	}
	run(t, c, "ROLLBACK")
}

func (s *site) testSettings(t *testing.T, _ *pgx.Conn, target int) {
	c := s.Connect(t, s.User, "postgres")
	run(t, c, "SET pg_stat_backtrace.max_frames = 2")
	if o := result(t, c, request(t, c, target)); o.Depth != 2 {
		t.Errorf("%+v", o)
	}
	run(t, c, "SET pg_stat_backtrace.max_frames = 'many'")
	if o := result(t, c, request(t, c, target)); o.SQLState != "22023" || !strings.Contains(o.Message, `"many"`) {
		t.Errorf("%+v", o)
	}
	run(t, c, "SET pg_stat_backtrace.max_frames = '"+strings.Repeat("9", 2000)+"'")
	if got := code(t, c, "SELECT pg_request_backtrace(1)"); !strings.HasPrefix(got, "22023 ") {
		t.Error(got)
	}
}

// testTwoSessions checks that the worker passes over rows claimed by another session, and claims them when that
// session gives them up. A row must never get a second result.
func (s *site) testTwoSessions(t *testing.T, worker *process, admin *pgx.Conn, target int) {
	other := s.Connect(t, s.User, "postgres")
	worker.suspend(t)
	// A query that the worker sent just before must not claim the new request.
	const asking = `SELECT count(*) FROM pg_stat_activity
		WHERE application_name ~ '^pg_stat_backtrace' AND state = 'active'`
	quiet := 0
	pgtest.Wait(t, "the end of what the worker had asked for", func() bool {
		if quiet++; value[int](t, other, asking) > 0 {
			quiet = 0
		}
		return quiet > 5
	})
	ids := value[[]int64](t, admin, "SELECT pg_request_backtrace(array_fill($1::int, ARRAY[20]))", target)
	run(t, other, "BEGIN")
	claimed := value[[]int64](t, other, "SELECT array_agg(id) FROM backtrace.claim(10, '{}', '{}')")
	if err := worker.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(claimed, ids[:10]) {
		t.Errorf("claimed %v of %v", claimed, ids)
	}
	for _, id := range ids[10:] {
		if o := result(t, admin, id); o.State != "done" {
			t.Errorf("%+v", o)
		}
	}
	const queued = "SELECT count(*) FROM backtrace.request WHERE id = ANY ($1) AND state = 'queued'"
	if n := value[int](t, admin, queued, claimed); n != 10 {
		t.Errorf("%d of the requests that another session has are queued", n)
	}
	run(t, other, "ROLLBACK")
	for _, id := range claimed {
		if o := result(t, admin, id); o.State != "done" {
			t.Errorf("%+v", o)
		}
	}
	if n := value[int](t, other, "SELECT backtrace.finish($1, $2, $3, $4, $5, $6, $7, $8, $9)", ids[:1],
		[]string{"x"}, []float64{1}, []int32{1}, []string{"second"}, make([]*string, 1), make([]*string, 1),
		make([]*string, 1), make([]*string, 1)); n != 0 {
		t.Errorf("a second result was written: %d", n)
	}
}

// testLimit checks that roles over their limit get an error, and do not delay the requests of others.
func (s *site) testLimit(t *testing.T, admin *pgx.Conn, _ int) {
	c := s.Connect(t, "alice", "postgres")
	run(t, c, "BEGIN")
	first := code(t, c, "SELECT pg_request_backtrace(array_fill(1, ARRAY[999]))")
	second := code(t, c, "SELECT pg_request_backtrace(1)")
	third := code(t, c, "SELECT pg_request_backtrace(1)")
	if first+second != "" || third != "53400 too many backtrace requests are waiting" {
		t.Errorf("%q %q %q", first, second, third)
	}
	run(t, c, "ROLLBACK")
	if got := code(t, admin, "SELECT pg_request_backtrace(array_fill(0, ARRAY[5000]))"); got != "" {
		t.Error(got)
	}
}

func (s *site) testJournal(t *testing.T, admin *pgx.Conn, target int) {
	run(t, admin, "GRANT EXECUTE ON FUNCTION pg_get_backtrace(int), pg_log_backtrace(int) TO alice")
	alice := s.Connect(t, "alice", "postgres")
	bob := s.Connect(t, "bob", "postgres")
	began := time.Now()
	for _, sql := range []string{
		"SELECT pg_get_backtrace(pg_backend_pid() + 0 * length(pg_get_backtrace($1::int)))", // the inner one fails
		"SELECT pg_get_backtrace($1::int)",
	} {
		_ = code(t, alice, sql, target)
	}
	_ = code(t, alice, "SELECT pg_log_backtrace($1::int)", pid(bob))
	_ = code(t, alice, "SELECT pg_get_backtrace(2147483647)")
	mine := s.Connect(t, "alice", "postgres")
	own := pid(mine)
	if got := code(t, alice, "SELECT pg_log_backtrace($1::int)", own); got != "" {
		t.Error(got)
	}
	const rows = `SELECT array_agg(concat_ws(' ', verb, state, pid, sqlstate, engine IN ('stop', 'blocked')) ORDER BY id)
		FROM backtrace.request WHERE kind = 'waiting' AND caller_name = 'alice' AND requested_at >= $1`
	var got []string
	pgtest.Wait(t, "the journal", func() bool {
		got = value[[]string](t, alice, rows, began.Add(-time.Minute))
		return len(got) >= 5
	})
	n := func(pid int) string { return value[string](t, admin, "SELECT $1::int::text", pid) }
	want := []string{
		"get failed " + n(target) + " 42501", "get failed " + n(target) + " 42501", "log failed " + n(pid(bob)) + " 42501",
		"get failed 2147483647 01000", "log done " + n(own) + " t",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if seen := value[int](t, bob, "SELECT count(*) FROM backtrace.request WHERE caller_name = 'alice'"); seen != 0 {
		t.Errorf("bob sees %d of alice's rows", seen)
	}
}
