package queue_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
)

// attackSQL makes roles, and two functions by which a role makes requests without the public functions. The function
// call makes requests without waiting for their answers, and the function answer waits for one answer.
const attackSQL = `
CREATE ROLE loud LOGIN; CREATE ROLE quiet LOGIN; GRANT USAGE, CREATE ON SCHEMA public TO loud, quiet;
GRANT EXECUTE ON FUNCTION pg_get_backtrace(int), pg_log_backtrace(int[]), pg_request_backtrace(int, boolean)
	TO loud, quiet;
CREATE FUNCTION deep(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
	IF n = 0 THEN PERFORM pg_sleep(600); RETURN 0; END IF;
	RETURN 1 + deep(n - 1);
END $$;
CREATE FUNCTION call(verb text, targets int[], times int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE a text[]; BEGIN
	FOR i IN 1..times LOOP a := backtrace.ask(0, verb, targets); END LOOP;
END $$;
CREATE FUNCTION answer(verb text, targets int[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE a text[]; BEGIN
	a := backtrace.ask(0, verb, targets);
	WHILE a[1] = 'wait' AND pg_sleep(a[2]::float8) IS NOT NULL LOOP a := backtrace.ask(0, verb, targets, a); END LOOP;
	RETURN a[1] || ' ' || a[2] || ' ' || length(a[6]);
END $$;
CREATE FUNCTION flood(target int, times int, OUT failed int, OUT refused int) LANGUAGE plpgsql AS $$ BEGIN
	failed := 0; refused := 0;
	FOR i IN 1..times LOOP
		BEGIN
			PERFORM pg_get_backtrace(target);
			failed := failed + 1;
		EXCEPTION WHEN configuration_limit_exceeded THEN refused := refused + 1;
			WHEN invalid_parameter_value THEN failed := failed + 1;
		END;
	END LOOP;
END $$`

// allowed is how many requests a role may make in TestRoleLimits, all at once: more than the rows after which the
// worker removes old rows. The allowance grows too slowly to count, so the numbers do not depend on the machine.
const allowed = 1010

// TestRoleLimits checks that one role cannot block other roles or superusers by any kind of request. The worker must
// need little memory for them, and keep the results of other roles.
func TestRoleLimits(t *testing.T) {
	oneSite(t, pgtest.Options{Conf: []string{"max_connections = 50"}}, func(t *testing.T, s *site) {
		s.Exec(t, attackSQL)
		worker := s.work(t, "PGSB_KEEP_ROWS=300", fmt.Sprint("PGSB_RATE=0.0001 ", allowed))
		s.testVerbs(t)
		s.testEarlyFailures(t, worker)
		if err := worker.end(stopSignal); err != nil {
			t.Fatal(err)
		}
		s.testDeepStacks(t, s.work(t, "PGSB_RATE=1000000 1000000")) // only the bounds of memory limit the requests
	})
}

// testVerbs: the function for one process answers about one.
func (s *site) testVerbs(t *testing.T) {
	c := s.Connect(t, "quiet", "postgres")
	for _, targets := range []string{"'{}'", "ARRAY[NULL]::int[]", "ARRAY[NULL, NULL]::int[]", "ARRAY[1, 2, 3]"} {
		if got := value[string](t, c, "SELECT answer('get', "+targets+")"); got != "ERROR 22023 0" {
			t.Errorf("get %s: %q", targets, got)
		}
	}
	for _, targets := range []string{"'{}'", "ARRAY[NULL]::int[]"} {
		if got := value[string](t, c, "SELECT answer('logs', "+targets+")"); got != "  0" {
			t.Errorf("logs %s: %q", targets, got)
		}
	}
	list := "ARRAY(SELECT g FROM generate_series(1, 5000) g)"
	if got := value[string](t, c, "SELECT answer('logs', "+list+")"); got != "ERROR 53400 0" {
		t.Errorf("logs of 5,000: %q", got)
	}
}

// testEarlyFailures: requests that fail early are counted, and leave few rows and lines.
func (s *site) testEarlyFailures(t *testing.T, worker *process) {
	admin, quiet := s.Connect(t, s.User, "postgres"), s.Connect(t, "quiet", "postgres")
	if o := result(t, quiet, request(t, quiet, pid(quiet))); o.State != "done" {
		t.Errorf("%+v", o)
	}
	before, began := len(worker.text()), time.Now()
	var failed, refused int
	for _, setting := range []string{"''", "repeat('x', 31000)"} {
		c := s.Connect(t, "loud", "postgres")
		run(t, c, "SET client_min_messages = error; SELECT set_config('pg_stat_backtrace.max_frames', "+setting+", false)")
		var f, r int
		if err := c.QueryRow(t.Context(), "SELECT failed, refused FROM flood(1, $1)", allowed*6/10).Scan(&f, &r); err != nil {
			t.Fatal(err)
		}
		failed, refused = failed+f, refused+r
	}
	if failed != allowed || refused != allowed/5 {
		t.Errorf("%d requests failed, %d were refused", failed, refused)
	}
	pgtest.Wait(t, "the refused requests are told of, with their number", func() bool {
		return strings.Contains(worker.text(), `"message":"request refused"`)
	})
	testLines(t, worker.text()[before:], time.Since(began))
	pgtest.Wait(t, "old rows of the loud role are removed", func() bool {
		return value[bool](t, admin, "SELECT max(id) >= $1 AND count(*) < $1 FROM backtrace.request", allowed)
	})
	const done = "SELECT count(*) FROM backtrace.request WHERE kind = 'queued' AND state = 'done'"
	if n := value[int64](t, quiet, done); n != 1 {
		t.Errorf("%d results of another role are left", n)
	}
	longest := "SELECT coalesce(max(length(message)), 0) FROM backtrace.request"
	if n := value[int](t, admin, longest); n > 200 {
		t.Errorf("a message of %d characters", n)
	}
}

// testLines: in a second, the log gets ten lines about the failures of a role and one about its refused requests, and at
// first a hundred more. A part of a second counts as a whole one at both ends.
func testLines(t *testing.T, log string, took time.Duration) {
	t.Helper()
	lines := strings.Split(log, "\n")
	if most := 100 + 11*(int(took.Seconds())+2); len(lines) > most {
		t.Errorf("the log has grown by %d lines in %v, more than %d", len(lines), took, most)
	}
	for _, line := range lines {
		if len(line) > 1000 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
}

// testDeepStacks makes many requests at a time, with deep stacks, and does not fetch the answers.
func (s *site) testDeepStacks(t *testing.T, worker *process) {
	admin := s.Connect(t, s.User, "postgres")
	var targets []string
	var sleepers sync.WaitGroup
	ctx, wake := context.WithCancel(t.Context())
	defer sleepers.Wait()
	defer wake()
	for range 6 {
		c := s.Connect(t, "loud", "postgres")
		targets = append(targets, strconv.Itoa(pid(c)))
		sleepers.Go(func() { _, _ = c.Exec(ctx, "SELECT deep(400)") })
	}
	pgtest.Wait(t, "deep stacks", func() bool {
		return value[int](t, admin, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == len(targets)
	})
	var wg sync.WaitGroup
	rounds := 10
	if pgtest.Full() {
		rounds = 60
	}
	for range 6 {
		c := s.Connect(t, "loud", "postgres")
		run(t, c, "SET pg_stat_backtrace.max_frames = 65536; SET pg_stat_backtrace.timeout = 9000")
		wg.Go(func() {
			list := "{" + strings.Join(targets, ",") + "}"
			if _, err := c.Exec(t.Context(), "SELECT call('logs', $1::int[], $2)", list, rounds); err != nil {
				t.Error(err)
			}
		})
	}
	run(t, admin, "SET pg_stat_backtrace.timeout = 99999")
	for range 10 {
		s.answered(t, admin, "checkpointer")
	}
	wg.Wait()
	pgtest.Wait(t, "no request waits", func() bool { return len(spoolFiles(t, s, ".req")) == 0 })
	pgtest.Wait(t, "at most one unfetched answer for each session", func() bool { return len(spoolFiles(t, s, ".rep")) <= 6 })
	// Without bounds it is more than 1.5 GB. The race detector multiplies the memory of a program.
	kb := peak(t, worker.Process.Pid)
	t.Logf("the worker has had %d kB", kb)
	if kb > 400_000 {
		t.Error("that is too much")
	}
}

// answered asks for the stack of a process of that kind.
func (s *site) answered(t *testing.T, c *pgx.Conn, kind string) {
	t.Helper()
	text := value[string](t, c, "SELECT pg_get_backtrace(pid) FROM pg_stat_activity WHERE backend_type = $1", kind)
	if !strings.HasPrefix(text, "#0 ") {
		t.Errorf("a superuser's answer: %q", text)
	}
}

// peak is the most memory that a process has had, in kB.
func peak(t *testing.T, pid int) (kb int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(after, &kb); err != nil {
		t.Fatal(err)
	}
	return kb
}

// spoolFiles lists the files with that extension in the spool directory of a site's worker.
func spoolFiles(t *testing.T, s *site, extension string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(s.DataDir + "/pg_stat_backtrace.pid")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(strings.Split(string(text), "\n")[5])
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), extension) {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestAllProcessesWithLogger: a request of an ordinary role for all processes does not wait until the logger, which has
// no entry in pg_stat_activity, might end.
func TestAllProcessesWithLogger(t *testing.T) {
	oneSite(t, pgtest.Options{Conf: []string{"logging_collector = on"}}, func(t *testing.T, s *site) {
		s.Exec(t, "CREATE ROLE plain LOGIN; GRANT SELECT ON pg_stat_backtrace TO plain")
		s.work(t)
		boss, plain := s.Connect(t, s.User, "postgres"), s.Connect(t, "plain", "postgres")
		least := map[*pgx.Conn]time.Duration{boss: time.Hour, plain: time.Hour}
		for c := range least {
			run(t, c, "SET pg_stat_backtrace.timeout = 60000")
		}
		// A busy machine delays both calls, so the shortest times of many are compared.
		pgtest.Wait(t, "the ordinary role waits no longer than a superuser", func() bool {
			for c := range least {
				began := time.Now()
				_ = value[int](t, c, "SELECT count(*) FROM pg_stat_backtrace")
				least[c] = min(least[c], time.Since(began))
			}
			return least[plain]-least[boss] < 150*time.Millisecond
		})
		t.Logf("an ordinary role waits for %v, a superuser for %v", least[plain], least[boss])
	})
}
