package queue_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker"
)

// The worker must run as the server's operating system user, and some tests kill it. So it is a separate process:
// this test program, copied to a place where that user can execute it.
const workerEnv = "PGSB_QUEUE_WORKER"

func TestMain(m *testing.M) { os.Exit(pgtest.RunOr(m, workerEnv, serve)) }

// serve is the worker.
func serve(dsn string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg := worker.Config{ConnString: dsn, Version: "test", Log: zerolog.New(os.Stderr).With().Timestamp().Logger()}
	if rows := os.Getenv("PGSB_KEEP_ROWS"); rows != "" {
		_, _ = fmt.Sscan(rows, &cfg.KeepRows)
	}
	if rate := os.Getenv("PGSB_RATE"); rate != "" { // requests a second, and requests at once
		_, _ = fmt.Sscan(rate, &cfg.Limits.PerSecond, &cfg.Limits.Burst)
	}
	return worker.Run(ctx, cfg)
}

// site is a server with the extension in database postgres.
type site struct {
	*pgtest.Server

	program string // this test program, where the server's user can execute it
}

// eachSite runs test with a server of every version, see pgtest.Lend. The parts of a test are subtests that share the
// server.
func eachSite(t *testing.T, o pgtest.Options, test func(t *testing.T, s *site)) {
	t.Helper()
	onSites(t, pgtest.Each, o, test)
}

// oneSite is eachSite for the newest version only, unless pgtest.Full is set. It is for tests of the worker that take
// long.
func oneSite(t *testing.T, o pgtest.Options, test func(t *testing.T, s *site)) {
	t.Helper()
	onSites(t, pgtest.One, o, test)
}

func onSites(
	t *testing.T, versions func(*testing.T, func(*testing.T, string)), o pgtest.Options, test func(t *testing.T, s *site),
) {
	if testing.Short() {
		t.Skip("starts servers; left out by -short")
	}
	t.Parallel() // they mostly wait
	versions(t, func(t *testing.T, binDir string) {
		t.Parallel()
		s := &site{Server: pgtest.Lend(t, binDir, o)}
		s.program = s.Self(t)
		if !o.Standby {
			s.extend(t, "postgres")
		}
		test(t, s)
	})
}

// extend creates the extension. If the server does not have the extension's files, the test is skipped.
func (s *site) extend(t *testing.T, database string) {
	t.Helper()
	c := s.Connect(t, s.User, database)
	_, err := c.Exec(t.Context(), "CREATE EXTENSION pg_stat_backtrace")
	_ = c.Close(t.Context()) // a database that is to be dropped has no session of ours
	var e *pgconn.PgError
	if errors.As(err, &e) && (e.Code == "58P01" || e.Code == "0A000") {
		t.Skipf("the extension is not installed in this server: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// process is a running worker.
type process struct {
	*exec.Cmd

	log  string
	once sync.Once
	err  error
}

// work starts a worker and waits until it serves the queue of database postgres and the spool; it ends with the test.
func (s *site) work(t *testing.T, env ...string) *process {
	t.Helper()
	p := s.launch(t, env...)
	pgtest.Wait(t, "the worker serves the queue and the spool", func() bool { // each of which may be the first
		text := p.text()
		return strings.Contains(text, "serving the queue") && strings.Contains(text, `"message":"ready"`)
	})
	return p
}

func (s *site) launch(t *testing.T, env ...string) *process {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "worker")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p := &process{Cmd: s.AsServerUser(exec.Command(s.program)), log: log.Name()}
	p.Env = append(append(p.Env, workerEnv+"="+s.DSN(s.User, "postgres")), env...)
	p.Stdout, p.Stderr = log, log
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.end(syscall.SIGTERM); err != nil && !strings.Contains(err.Error(), "killed") {
			t.Errorf("the worker: %v", err)
		}
		if t.Failed() {
			t.Logf("worker %d:\n%s", p.Process.Pid, p.text())
		}
	})
	return p
}

func (p *process) text() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// end sends a signal and waits for the end of the process.
func (p *process) end(sig syscall.Signal) error {
	p.once.Do(func() {
		_ = p.Process.Signal(syscall.SIGCONT)
		_ = p.Process.Signal(sig)
		p.err = p.Wait()
	})
	return p.err
}

// suspend stops the worker, and returns when all its threads have stopped.
func (p *process) suspend(t *testing.T) {
	t.Helper()
	pgtest.Suspend(t, p.Process)
}

// run executes SQL, several statements too.
func run(t *testing.T, c *pgx.Conn, sql string) {
	t.Helper()
	if _, err := c.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value runs a query of one value.
func value[T any](t *testing.T, c *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	if err := c.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// code runs a query and returns the SQLSTATE and message of its error, or an empty string.
func code(t *testing.T, c *pgx.Conn, sql string, args ...any) string {
	t.Helper()
	_, err := c.Exec(t.Context(), sql, args...)
	var e *pgconn.PgError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code + " " + e.Message
	}
	t.Fatalf("%s: %v", sql, err)
	return ""
}

// outcome is a row of pg_backtrace_result.
type outcome struct {
	State, Text, SQLState, Message, Detail, Engine string
	Pause                                          float64
	Depth                                          int
}

const outcomeSQL = `SELECT state, coalesce(backtrace, ''), coalesce(sqlstate, ''), coalesce(message, ''),
	coalesce(detail, ''), coalesce(engine, ''), coalesce(pause_us, -1), coalesce(depth, -1) FROM pg_backtrace_result($1)`

// result waits until a request is over and returns what came of it.
func result(t *testing.T, c *pgx.Conn, id int64) (o outcome) {
	t.Helper()
	pgtest.Wait(t, fmt.Sprintf("result of request %d", id), func() bool {
		err := c.QueryRow(t.Context(), outcomeSQL, id).Scan(&o.State, &o.Text, &o.SQLState, &o.Message, &o.Detail,
			&o.Engine, &o.Pause, &o.Depth)
		if err != nil {
			t.Fatalf("result of request %d: %v", id, err)
		}
		return o.State != "queued"
	})
	return o
}

// request makes a request and returns its id.
func request(t *testing.T, c *pgx.Conn, pid int) int64 {
	t.Helper()
	return value[int64](t, c, "SELECT pg_request_backtrace($1::int)", pid)
}

// pid is the server process of a session.
func pid(c *pgx.Conn) int { return int(c.PgConn().PID()) }

// stopSignal ends a worker in order.
const stopSignal = syscall.SIGTERM

// notices connects and records the messages that the server sends in addition to results. Reading the record empties
// it.
func (s *site) notices(t *testing.T) (*pgx.Conn, func() []string) {
	t.Helper()
	config, err := pgx.ParseConfig(s.DSN(s.User, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { got = append(got, n.Severity+" "+n.Message) }
	c, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c, func() []string {
		told := got
		got = nil
		return told
	}
}
