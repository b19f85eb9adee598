package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
)

const unwelcome = "55000|the pg_stat_backtrace worker takes no requests at the moment||"

const call100 = "SELECT pg_get_backtrace(100)"

const notRunning = "55000|the pg_stat_backtrace worker is not running||"

func pgtestConnect(t *testing.T, dsn string) (*pgx.Conn, error) {
	t.Helper()
	return pgx.Connect(t.Context(), dsn)
}

func pgError(err error) *pgconn.PgError {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return &pgconn.PgError{Where: err.Error()}
	}
	return e
}

func TestSQLFaults(t *testing.T) {
	eachSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		s.Exec(t, "CREATE ROLE plain LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace TO plain")
		t.Run("absent", s.testAbsent)
		t.Run("pid files", s.testPIDFiles)
		t.Run("killed", s.testKilled)
		t.Run("stopped", s.testStopped)
		t.Run("unwritable", s.testUnwritable)
		t.Run("answers removed", s.testAnswersRemoved)
		t.Run("shutdown", s.testShutdown)
		t.Run("restart", s.testRestart)
		t.Run("extension made anew", s.testMadeAnew)
	})
}

// quick makes a call that must fail at once.
func quick(t *testing.T, c *pgx.Conn) string {
	t.Helper()
	began := time.Now()
	got := fails(t, c, call100)
	if took := time.Since(began); took > pgtest.Soon {
		t.Errorf("took %v", took)
	}
	return got
}

func (s *site) testAbsent(t *testing.T) {
	boss, plain := s.Connect(t, s.User, "postgres"), s.Connect(t, "plain", "postgres")
	want := notRunning + "Start it on the server's host, as the server's operating system user or as root: " +
		"pg_stat_backtrace worker -D " + s.DataDir
	if got := quick(t, boss); got != want {
		t.Errorf("got %s", got)
	}
	want = notRunning + "An administrator can start it on the server's host: pg_stat_backtrace worker."
	if got := quick(t, plain); got != want {
		t.Errorf("got %s", got)
	}
}

// testPIDFiles puts files in place that no worker of this cluster wrote.
func (s *site) testPIDFiles(t *testing.T) {
	c := s.Connect(t, "plain", "postgres")
	self, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	start := strings.Fields(string(self[bytes.LastIndexByte(self, ')')+2:]))[19]
	keys := strings.Repeat("00", 64) + "\n" + strings.Repeat("00", 64) + "\n"
	file := func(protocol string, pid int, start, dataDir, dir string) string {
		return fmt.Sprintf("%s\n%d\n%s\n%s\n7.5\n%s\n%s", protocol, pid, start, dataDir, dir, keys)
	}
	version := "55000|the pg_stat_backtrace worker is not of the extension's version|" +
		"The worker (version 7.5) speaks protocol version 2, the extension protocol version 1.|"
	for name, q := range map[string]struct{ text, want string }{
		"empty":                  {"", notRunning},
		"rubbish":                {"\xff\x00\x01 rubbish\n\n\n\n\n", notRunning},
		"large":                  {strings.Repeat("x\n", 1<<20), notRunning},
		"a dead worker":          {file("1", 1<<22+1, "1", s.DataDir, "/dev/shm"), notRunning},
		"a recycled PID":         {file("1", os.Getpid(), "1", s.DataDir, "/dev/shm"), notRunning},
		"no number":              {file("1", -1, "", s.DataDir, "/dev/shm"), notRunning},
		"a copy":                 {file("1", os.Getpid(), start, "/other/data", "/dev/shm"), notRunning},
		"another version":        {file("2", os.Getpid(), start, s.DataDir, ""), version},
		"another version's copy": {file("2", os.Getpid(), start, "/other/data", ""), notRunning},
		"a spool that is gone": {
			file("1", os.Getpid(), start, s.DataDir, "/dev/shm/nonexistent"),
			unwelcome,
		},
	} {
		path := s.DataDir + "/" + pidName
		if err := os.WriteFile(path, []byte(q.text), 0o644); err != nil {
			t.Fatal(err)
		}
		got := quick(t, c)
		if !strings.HasPrefix(got, q.want) || strings.Contains(got, "/dev/shm") || strings.Contains(got, s.DataDir) {
			t.Errorf("%s: %s", name, got)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// testKilled kills the worker before and during a call.
func (s *site) testKilled(t *testing.T) {
	c := s.Connect(t, "plain", "postgres")
	f := s.work(t)
	if got := text(t, c, call100); got != "#0 get 100" {
		t.Error(got)
	}
	calls := make(chan string)
	go func() { // not fails: it is not for this goroutine to end the test
		_, err := query(context.Background(), c, "SELECT pg_get_backtrace($1)", askNever)
		calls <- describe(err)
	}()
	s.asleep(t, c)
	_ = f.end(syscall.SIGKILL)
	select {
	case got := <-calls:
		if !strings.HasPrefix(got, notRunning) {
			t.Error(got)
		}
	case <-time.After(pgtest.Patience):
		t.Error("the call does not notice that the worker has died")
		<-calls
	}
	old, err := Find(s.DataDir)
	if err != nil {
		t.Errorf("a killed worker leaves its pid file: %v", err)
	}
	if got := quick(t, c); !strings.HasPrefix(got, notRunning) {
		t.Error(got)
	}
	f = s.work(t)
	if got := text(t, c, call100); got != "#0 get 100" || exists(old.Dir) {
		t.Errorf("after a restart: %s; old directory there: %v", got, exists(old.Dir))
	}
	if err := f.end(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if got := quick(t, c); !strings.HasPrefix(got, notRunning) {
		t.Error(got)
	}
}

// asleep waits until the call of a session has given up looking without sleeping.
func (s *site) asleep(t *testing.T, c *pgx.Conn) {
	t.Helper()
	watcher := s.Connect(t, s.User, "postgres")
	wait(t, "the call sleeps", func() bool {
		return text(t, watcher, "SELECT wait_event FROM pg_stat_activity WHERE pid = $1", c.PgConn().PID()) == "PgSleep"
	})
}

// testStopped: the worker does not answer.
func (s *site) testStopped(t *testing.T) {
	c, canceller := s.Connect(t, "plain", "postgres"), s.Connect(t, s.User, "postgres")
	f := s.work(t)
	pgtest.Suspend(t, f.Process)
	run(t, c, "SET pg_stat_backtrace.timeout = 200")
	began := time.Now()
	got := fails(t, c, call100)
	if took := time.Since(began); took < 1200*time.Millisecond || took > pgtest.Soon ||
		!strings.HasPrefix(got, "55000|the pg_stat_backtrace worker did not answer within 200 ms||") {
		t.Errorf("after %v: %s", took, got)
	}
	run(t, c, "RESET pg_stat_backtrace.timeout")
	hurried := s.Connect(t, "plain", "postgres") // on a busy machine, RESET may take longer than this limit
	run(t, hurried, "SET statement_timeout = 100")
	if got := quick(t, hurried); !strings.HasPrefix(got, "57014|") {
		t.Error(got)
	}
	calls := make(chan string)
	go func() {
		_, err := query(context.Background(), c, call100)
		calls <- describe(err)
	}()
	s.asleep(t, c)
	began = time.Now()
	run(t, canceller, fmt.Sprintf("SELECT pg_cancel_backend(%d)", c.PgConn().PID()))
	if got := <-calls; !strings.HasPrefix(got, "57014|") || time.Since(began) > pgtest.Soon {
		t.Errorf("cancelled, after %v: %s", time.Since(began), got)
	}
	if err := f.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := text(t, c, call100); got != "#0 get 100" {
		t.Error(got)
	}
	if err := f.end(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// testUnwritable: the request cannot be written, and the worker has not noticed yet.
func (s *site) testUnwritable(t *testing.T) {
	f := s.work(t)
	info, err := Find(s.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	// It would notice at once, if it ran.
	pgtest.Suspend(t, f.Process)
	if err := os.Chmod(info.Dir, 0o500); err != nil {
		t.Fatal(err)
	}
	c := s.Connect(t, "plain", "postgres")
	_, err = query(t.Context(), c, call100)
	got := describe(err) + pgError(err).Where
	switch {
	case strings.Contains(got, info.Dir):
		t.Errorf("the error tells the path: %s", got)
	case s.Major >= 17 && !strings.HasPrefix(got, unwelcome),
		s.Major < 17 && !strings.HasPrefix(got, `42501|could not open file "/proc/self/cwd/pg_stat_tmp/pg_stat_backtrace/`):
		t.Error(got)
	}
	if err := f.end(syscall.SIGKILL); err == nil {
		t.Error("not killed")
	}
	if err := os.RemoveAll(info.Dir); err != nil {
		t.Error(err)
	}
}

// testAnswersRemoved: the worker may remove an answer, to make room for others, after the call has seen it. This test moves each
// answer away and back all the time. The call gets the answer or an error without a path.
func (s *site) testAnswersRemoved(t *testing.T) {
	f := s.work(t)
	info, err := Find(s.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Suspend(t, f.Process)
	c := s.Connect(t, "plain", "postgres")
	run(t, c, "SET pg_stat_backtrace.timeout = 60000")
	const text = "#0 moved"
	for range 100 {
		got := make(chan string, 1)
		go func() {
			answer, err := query(context.Background(), c, call100)
			if err != nil {
				answer = describe(err)
			}
			got <- answer
		}()
		var requests []string
		wait(t, "the request", func() bool {
			requests, _ = filepath.Glob(filepath.Join(info.Dir, "*"+reqSuffix))
			return len(requests) > 0
		})
		answer := strings.TrimSuffix(requests[0], reqSuffix) + repSuffix
		away := answer + ".away"
		if err := os.WriteFile(away, []byte(strings.Repeat("\x1f", 5)+text), 0o644); err != nil {
			t.Fatal(err)
		}
		for done := false; !done; {
			select {
			case result := <-got:
				done = true
				if result != text && result != "53400|too many requests are waiting for the pg_stat_backtrace worker||Try again later." {
					t.Error(result)
				}
			default:
				_ = os.Rename(away, answer)
				_ = os.Rename(answer, away)
			}
		}
		if err := os.Remove(requests[0]); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.end(syscall.SIGKILL); err == nil {
		t.Error("not killed")
	}
	if err := os.RemoveAll(info.Dir); err != nil {
		t.Error(err)
	}
}

// testShutdown ends the worker while callers wait for their answers. These callers must get their answers, and new
// callers an error.
func (s *site) testShutdown(t *testing.T) {
	const callers = 2
	f := s.work(t)
	answers := make(chan string, callers)
	for range callers {
		c := s.Connect(t, "plain", "postgres")
		go func() {
			got, err := query(t.Context(), c, fmt.Sprintf("SELECT pg_get_backtrace(%d)", askLonger))
			if err != nil {
				got = describe(err)
			}
			answers <- got
		}()
	}
	c := s.Connect(t, s.User, "postgres")
	waiting := map[string]bool{}
	wait(t, "all callers wait", func() bool {
		waiting[text(t, c, "SELECT max(pid)::text FROM pg_stat_activity WHERE wait_event = 'PgSleep'")] = true
		waiting[text(t, c, "SELECT min(pid)::text FROM pg_stat_activity WHERE wait_event = 'PgSleep'")] = true
		delete(waiting, "NULL")
		return len(waiting) == callers
	})
	wait(t, "the worker has all requests", func() bool {
		info, err := Find(s.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		left, err := filepath.Glob(filepath.Join(info.Dir, "*"+reqSuffix))
		return err == nil && len(left) == 0
	})
	if err := f.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range callers {
		if got, want := <-answers, fmt.Sprint("#0 get ", askLonger); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if err := f.end(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if got := quick(t, c); !strings.HasPrefix(got, notRunning) {
		t.Errorf("after the end: %s", got)
	}
}

// testRestart restarts the server under the worker.
func (s *site) testRestart(t *testing.T) {
	s.work(t)
	for _, mode := range []string{"fast", "immediate"} {
		s.Restart(mode)
		c := s.Connect(t, "plain", "postgres")
		if got := text(t, c, call100); got != "#0 get 100" {
			t.Errorf("after a restart in mode %s: %s", mode, got)
		}
	}
}

// testMadeAnew: a new extension has a new seal, and sessions that used the old one work with it.
func (s *site) testMadeAnew(t *testing.T) {
	s.Exec(t, "DROP EXTENSION pg_stat_backtrace")
	c := s.Connect(t, s.User, "postgres")
	seals := map[string]bool{}
	for range 5 {
		run(t, c, "CREATE EXTENSION pg_stat_backtrace")
		seals[text(t, c, `SELECT typname FROM pg_type
			WHERE typnamespace = 'backtrace'::regnamespace AND typtype = 'd'`)] = true
		if got := text(t, c, "SELECT count(*)::text FROM pg_namespace WHERE nspname = 'backtrace'"); got != "1" {
			t.Error(got)
		}
		_, _ = query(t.Context(), c, call100)
		run(t, c, "DROP EXTENSION pg_stat_backtrace")
		if got := text(t, c, "SELECT count(*)::text FROM pg_namespace WHERE nspname = 'backtrace'"); got != "0" {
			t.Error("something is left")
		}
	}
	if len(seals) != 5 {
		t.Errorf("%d seals of 5", len(seals))
	}
	run(t, c, `CREATE SCHEMA "Odd name"; CREATE EXTENSION pg_stat_backtrace SCHEMA "Odd name"`)
	got := fails(t, c, `SELECT "Odd name".pg_get_backtrace(pg_backend_pid())`)
	if !strings.HasPrefix(got, "55000|cannot capture") {
		t.Error(got)
	}
}
