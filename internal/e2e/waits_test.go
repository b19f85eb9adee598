package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
)

// workAsRoot starts a worker that may load programs into the kernel: as root it keeps the right.
func (s *site) workAsRoot(t *testing.T, arguments ...string) *worker {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may load programs into the kernel")
	}
	command := exec.Command(programs.worker, s.workerArguments(arguments)...)
	command.SysProcAttr = &syscall.SysProcAttr{}
	w := s.launch(t, command)
	s.ready(t, w)
	pgtest.Wait(t, "the timing of wait events", func() bool { return strings.Contains(w.text(), "timing wait events") })
	if strings.Contains(w.text(), `"mechanism":"polling"`) {
		t.Skip("this kernel takes no programs")
	}
	s.worker = w
	return w
}

// TestWaitEvents is about the views and functions of wait events.
func TestWaitEvents(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		s := start(t, bin, pgtest.Options{Conf: []string{"compute_query_id = on"}})
		s.workAsRoot(t, "--wait-event-capture", "stats", "--wait-event-method", "exact")
		t.Run("figures", func(t *testing.T) { waitFigures(t, s) })
		t.Run("privileges", func(t *testing.T) { waitPrivileges(t, s) })
		t.Run("trace", func(t *testing.T) { waitTrace(t, s) })
		t.Run("trace of all", func(t *testing.T) { waitTraceOfAll(t, s) })
		t.Run("off", func(t *testing.T) { waitsOff(t, s) })
		t.Run("restart", func(t *testing.T) { waitsRestart(t, s) })
	})
}

// refused runs a query that must fail with an SQLSTATE.
func refused(t *testing.T, c *session, state, sql string) {
	t.Helper()
	if got, e := c.try(t.Context(), sql); e.state != state {
		t.Errorf("%s: %q, %v; want SQLSTATE %s", sql, got, e, state)
	}
}

// warned runs a query that must warn.
func warned(t *testing.T, c *session, state, message, sql string) {
	t.Helper()
	c.told()
	c.run(t, sql)
	if notices := c.told(); len(notices) != 1 || notices[0].state != state || notices[0].message != message {
		t.Errorf("%s: %v", sql, notices)
	}
}

const sleeps = "DO $$ BEGIN FOR i IN 1..50 LOOP PERFORM pg_sleep(0.002); END LOOP; END $$"

// sleepsOf returns the number of sleeps of a process in the view.
func sleepsOf(t *testing.T, c *session, pid int) string {
	t.Helper()
	return c.text(t, `SELECT coalesce(sum(calls), 0)::text FROM pg_stat_wait_event_timing
		WHERE pid = $1 AND wait_event = 'PgSleep'`, pid)
}

// counted expects the number of sleeps. The server sleeps again when something else has woken it up, which happens often
// on a busy host. Counting each sleep twice would give 100. The server does not sleep if the time is over before: on a
// busy host the first pg_sleep of a session can wait so long for a page of the program.
func counted(t *testing.T, c *session, pid int) {
	t.Helper()
	if n, err := strconv.Atoi(sleepsOf(t, c, pid)); err != nil || n < 45 || n >= 95 {
		t.Errorf("%d sleeps, %v; the figures of the process:\n%s", n, err, c.text(t, `SELECT string_agg(wait_event || ' '
			|| calls || ' ' || total_time_ms || ' ms ' || histogram::text, E'\n') FROM pg_stat_wait_event_timing
			WHERE pid = $1`, pid))
	}
}

func waitFigures(t *testing.T, s *site) {
	sleeper, c := s.connect(t, s.User, "postgres"), s.connect(t, s.User, "postgres")
	sleeper.run(t, sleeps)
	counted(t, c, sleeper.pid())
	// The query of the patch's documentation.
	text := c.text(t, `SELECT (sum(h.count) = max(w.calls))::text FROM pg_stat_wait_event_timing w,
		LATERAL unnest(w.histogram) WITH ORDINALITY AS h(count, idx)
		JOIN pg_wait_event_timing_histogram_buckets b ON b.bucket_idx = h.idx - 1
		WHERE w.pid = $1 AND w.wait_event = 'PgSleep' AND w.method = 'exact' AND (h.count = 0
			OR b.lower_ns <= w.max_time_us * 1000) AND w.backend_type = 'client backend'`, sleeper.pid())
	if text != "true" {
		t.Errorf("histogram: %s", text)
	}
	c.run(t, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
	if n := c.text(t, "SELECT (count(DISTINCT pid) >= 5)::text FROM pg_stat_wait_event_timing"); n != "true" {
		t.Errorf("too few processes in a read-only transaction: %s", n)
	}
	c.run(t, "COMMIT")
	// The end of the query is noticed when the session waits for the next one.
	pgtest.Wait(t, "the figures by query", func() bool {
		return c.text(t, `SELECT (sum(calls) >= 45 AND max(share) BETWEEN 0.3 AND 1)::text
			FROM pg_stat_wait_event_timing_by_query WHERE wait_event = 'PgSleep'`) == "true"
	})
	c.run(t, "SELECT pg_stat_reset_wait_event_timing("+strconv.Itoa(sleeper.pid())+")")
	if n := sleepsOf(t, c, sleeper.pid()); n != "0" {
		t.Errorf("%s sleeps after a reset", n)
	}
	if n := c.text(t, `SELECT reset_count || ' ' || overflow_count FROM pg_stat_wait_event_timing_overflow
		WHERE pid = $1`, sleeper.pid()); n != "1 0" {
		t.Errorf("resets and overflow: %s", n)
	}
	sleeper.run(t, sleeps)
	c.run(t, "SELECT pg_stat_reset_wait_event_timing_all()")
	if n := sleepsOf(t, c, sleeper.pid()); n != "0" {
		t.Errorf("%s sleeps after a reset of all", n)
	}
	warned(t, c, "01000", "the process is unknown, or has not waited yet", "SELECT pg_stat_reset_wait_event_timing(1)")
}

func waitPrivileges(t *testing.T, s *site) {
	s.Exec(t, `CREATE ROLE joe LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_read_all_stats`)
	joe, monitor := s.connect(t, "joe", "postgres"), s.connect(t, "monitor", "postgres")
	refused(t, joe, "42501", "SELECT pid FROM pg_stat_wait_event_timing")
	refused(t, joe, "42501", "SELECT pg_wait_event_capture('off')")
	refused(t, joe, "42501", "SELECT pg_stat_reset_wait_event_timing_all()")
	refused(t, joe, "42501", "SELECT unnest(ask) FROM backtrace.ask(0, 'waits', '{}')")
	s.Exec(t, `GRANT SELECT ON pg_stat_wait_event_timing, pg_stat_wait_event_timing_by_query TO joe;
		GRANT EXECUTE ON FUNCTION pg_stat_get_wait_event_timing, pg_stat_get_wait_event_timing_by_query TO joe`)
	joe.run(t, sleeps)
	others := `SELECT count(*) FILTER (WHERE a.usename IS DISTINCT FROM 'joe')::text || ' ' ||
		(count(*) FILTER (WHERE w.wait_event = 'PgSleep') > 0)::text
		FROM pg_stat_wait_event_timing w LEFT JOIN pg_stat_activity a USING (pid)`
	if text := joe.text(t, others); text != "0 true" {
		t.Errorf("rows of others, and of joe's sleeps: %s", text)
	}
	refused(t, joe, "42501", "SELECT unnest(ask) FROM backtrace.ask(0, 'waits', '{}')")
	refused(t, joe, "42501", "SELECT calls FROM pg_stat_wait_event_timing_by_query")
	if text := monitor.text(t, "SELECT (count(DISTINCT pid) >= 5)::text FROM pg_stat_wait_event_timing"); text != "true" {
		t.Errorf("pg_read_all_stats sees all: %s", text)
	}
	refused(t, monitor, "42501", "SELECT pg_wait_event_capture('off')")
}

// noticed expects a notice about the trace of a process.
func noticed(t *testing.T, c *session, message string, pid int) {
	t.Helper()
	c.told()
	c.text(t, "SELECT count(*)::text FROM pg_get_backend_wait_event_trace($1)", pid)
	notices := c.told()
	if len(notices) != 1 || notices[0].level != "NOTICE" || notices[0].message != message || notices[0].hint == "" {
		t.Errorf("notices %v, not %q", notices, message)
	}
}

func waitTrace(t *testing.T, s *site) {
	sleeper, c := s.connect(t, s.User, "postgres"), s.connect(t, s.User, "postgres")
	sleeper.run(t, "SELECT pg_sleep(0.001)")
	c.run(t, "SELECT pg_wait_event_capture('trace', "+strconv.Itoa(sleeper.pid())+")")
	three := func() {
		for range 3 {
			sleeper.run(t, "SELECT pg_sleep(0.002)")
			s.waits(t, sleeper.pid(), "ClientRead") // or the next query comes so soon that the session does not wait
		}
	}
	three()
	records := `SELECT string_agg(kind || coalesce(' ' || wait_event, ''), ', ' ORDER BY "timestamp", seq)
		FROM pg_get_backend_wait_event_trace($1) WHERE kind <> 'wait' OR wait_event = 'PgSleep'`
	want := strings.TrimSuffix(strings.Repeat(
		"query start, executor start, wait PgSleep, executor end, query end, ", 3), ", ")
	var got string
	defer func() { t.Log(got) }()
	const last = ` FROM (SELECT * FROM pg_get_backend_wait_event_trace($1) WHERE %s ORDER BY "timestamp" DESC, seq DESC LIMIT 3) x`
	looks := 0
	pgtest.Wait(t, "the trace", func() bool {
		// The server sleeps twice if something else has woken it up, and shorter if it had to wait for a processor before.
		if looks++; looks%100 == 0 {
			three()
		}
		got = c.text(t, records, sleeper.pid())
		return strings.HasSuffix(got, want) && c.text(t, "SELECT (min(duration_us) >= 1900)::text"+
			fmt.Sprintf(last, "wait_event = 'PgSleep'"), sleeper.pid()) == "true"
	})
	if text := c.text(t, "SELECT (count(DISTINCT query_id) = 1)::text"+fmt.Sprintf(last, "wait_event = 'PgSleep'"),
		sleeper.pid()); text != "true" {
		t.Errorf("query ids: %s", text)
	}
	if text := c.text(t, "SELECT (count(*) = 3 AND min(coalesce(duration_us, 0)) >= 1900)::text"+
		fmt.Sprintf(last, "kind = 'executor end'"), sleeper.pid()); text != "true" {
		t.Errorf("durations of the executor: %s", text)
	}
	c.run(t, "SELECT pg_wait_event_capture('off', "+strconv.Itoa(sleeper.pid())+")")
	sleeper.run(t, "SELECT pg_sleep(0.002)")
	c.told()
	if again := c.text(t, records, sleeper.pid()); again != got {
		t.Errorf("the trace goes on: %s", again)
	}
	if notices := c.told(); len(notices) != 0 {
		t.Errorf("notices about a whole trace: %v", notices)
	}
	noticed(t, c, fmt.Sprintf("process %d has no trace", c.pid()), c.pid())
	refused(t, c, "22023", "SELECT pg_wait_event_capture('everything')")
}

// waitTraceOfAll traces all processes, and new ones as they start.
func waitTraceOfAll(t *testing.T, s *site) {
	c := s.connect(t, s.User, "postgres")
	c.run(t, "SELECT pg_wait_event_capture('trace')")
	traced := 0
	for range 2 {
		sleeper := s.connect(t, s.User, "postgres")
		traced = sleeper.pid()
		sleeper.run(t, "SELECT pg_sleep(0.003)")
		s.waits(t, sleeper.pid(), "ClientRead")
		sleeper.run(t, "SELECT pg_sleep(0.003)")
		pgtest.Wait(t, "the trace of all", func() bool {
			got := c.text(t, `SELECT coalesce(string_agg(DISTINCT kind, ','), '')
				FROM pg_get_backend_wait_event_trace($1)`, sleeper.pid())
			return got == "query end,query start,wait"
		})
	}
	pgtest.Wait(t, "records of at least three processes", func() bool { // some wait for seconds
		return c.text(t, `SELECT (count(DISTINCT a.pid) >= 3)::text FROM pg_stat_activity a,
			LATERAL pg_get_backend_wait_event_trace(a.pid) t WHERE a.pid <> pg_backend_pid()`) == "true"
	})
	noticed(t, c, "a trace of all processes has no starts and ends of the executor", traced)
	c.run(t, "SELECT pg_wait_event_capture('stats')")
	later := s.connect(t, s.User, "postgres")
	later.run(t, "SELECT pg_sleep(0.003)")
	if n := c.text(t, "SELECT count(*)::text FROM pg_get_backend_wait_event_trace($1)", later.pid()); n != "0" {
		t.Errorf("%s records of a process after the end of the trace", n)
	}
}

func waitsOff(t *testing.T, s *site) {
	c := s.connect(t, s.User, "postgres")
	c.run(t, "SELECT pg_wait_event_capture('off')")
	warned(t, c, "55000", "wait events are not being timed", "SELECT count(*)::text FROM pg_stat_wait_event_timing")
	c.run(t, "SELECT pg_wait_event_capture('stats')")
	c.run(t, sleeps)
	counted(t, c, c.pid())
}

// waitsRestart expects that timing starts again with the server, also after a crash, and that the worker logs it.
func waitsRestart(t *testing.T, s *site) {
	for restarts, restart := range []func(){
		func() { s.Restart("fast") },
		func() {
			if err := syscall.Kill(s.connect(t, s.User, "postgres").pid(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
	} {
		restart()
		pgtest.Wait(t, "the timing of the new server", func() bool {
			logs := strings.Split(s.worker.text(), "wait events are counted from zero again")
			return len(logs) == restarts+2 && strings.Contains(logs[restarts+1], "timing wait events")
		})
		var c *session
		pgtest.Wait(t, "the server", func() bool {
			conn, err := pgx.Connect(t.Context(), s.DSN(s.User, "postgres"))
			if err != nil {
				return false
			}
			_ = conn.Close(t.Context())
			return true
		})
		c = s.connect(t, s.User, "postgres")
		c.run(t, sleeps)
		c.told()
		counted(t, c, c.pid())
		notices := c.told() // one for each query that counted has needed
		if len(notices) == 0 || slices.ContainsFunc(notices, func(n said) bool { return !restartNotice.MatchString(n.message) }) {
			t.Errorf("notices after a restart: %v", notices)
		}
	}
	c := s.connect(t, s.User, "postgres")
	c.run(t, "SELECT pg_stat_reset_wait_event_timing_all()")
	c.run(t, "SELECT count(*) FROM pg_stat_wait_event_timing")
	if notices := c.told(); len(notices) != 0 {
		t.Errorf("notices after a reset: %v", notices)
	}
}

//nolint:gochecknoglobals // a constant
var restartNotice = regexp.MustCompile(
	`^wait events are counted from zero since 20\d\d-[\d-]+ [\d:]+\+00, because the server restarted$`)

// TestWaitEventBudget expects a worker whose timing exceeds its cost limit to use a cheaper method.
func TestWaitEventBudget(t *testing.T) {
	s := start(t, pgtest.BinDir(t), pgtest.Options{})
	w := s.workAsRoot(t, "--wait-event-capture", "stats", "--wait-event-budget", "0.000001")
	c := s.connect(t, s.User, "postgres")
	pgtest.Wait(t, "a cheaper method", func() bool {
		for range 200 {
			c.run(t, "SELECT pg_sleep(0.0001)")
		}
		return strings.Contains(w.text(), "costs too much") && strings.Contains(w.text(), `"mechanism":"polling"`)
	})
	if text := c.text(t, "SELECT string_agg(DISTINCT method, ' ') FROM pg_stat_wait_event_timing"); text != "sampled" {
		t.Errorf("method %s", text)
	}
}

// TestWaitEventsWithoutRight expects a worker that was started without wait events to sample them on request.
func TestWaitEventsWithoutRight(t *testing.T) {
	s := start(t, pgtest.BinDir(t), pgtest.Options{})
	s.work(t)
	c := s.connect(t, s.User, "postgres")
	const sampled = "wait events are only sampled: their times are estimates, and they are not counted"
	warned(t, c, "01000", sampled, "SELECT pg_wait_event_capture('stats')")
	refused(t, c, "55000", "SELECT pg_wait_event_capture('trace')")
	c.run(t, "SELECT pg_sleep(0.2)")
	if text := c.text(t, `SELECT string_agg(DISTINCT method || ' ' || (calls IS NULL), ',')
		FROM pg_stat_wait_event_timing`); text != "sampled true" {
		t.Errorf("method %s", text)
	}
}

// TestWaitEventsOnStandby expects the figures of a standby's processes, and that its timing can be changed.
func TestWaitEventsOnStandby(t *testing.T) {
	s := start(t, pgtest.BinDir(t), pgtest.Options{Standby: true, Prepare: func(dsn string) {
		c, err := pgx.Connect(context.Background(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(context.Background()) }()
		if _, err := c.Exec(context.Background(), "CREATE EXTENSION pg_stat_backtrace"); err != nil {
			t.Fatal(err)
		}
	}})
	s.workAsRoot(t, "--wait-event-capture", "stats")
	c := s.connect(t, s.User, "postgres")
	c.run(t, "SELECT pg_sleep(0.05)")
	text := c.text(t, `SELECT string_agg(DISTINCT backend_type, ',' ORDER BY backend_type)
		FROM pg_stat_wait_event_timing WHERE backend_type IN ('startup', 'client backend')`)
	if text != "client backend,startup" {
		t.Errorf("processes: %s", text)
	}
	c.run(t, "SELECT pg_stat_reset_wait_event_timing_all()")
	c.run(t, "SELECT pg_wait_event_capture('off')")
	warned(t, c, "55000", "wait events are not being timed", "SELECT count(*) FROM pg_stat_wait_event_timing")
}
