package spool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/limits"
)

// The tests in sql_*_test.go run the extension's SQL with this package: real servers, and a worker whose answers
// depend on the requested pid. The worker must run as the server's operating system user. So it is a separate
// process: this test program, copied to a place where that user can execute it.
const fakeEnv = "PGSB_FAKE_WORKER"

// fakeVerbs has the verbs of the fake worker, in addition to those of version 1.0.
const fakeVerbs = "PGSB_FAKE_VERBS"

func TestMain(m *testing.M) { os.Exit(pgtest.RunOr(m, fakeEnv, fakeWorker)) }

func fakeWorker(dataDir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s, err := Open(Config{
		DataDir: dataDir, Version: "0.9", Verbs: strings.Fields(os.Getenv(fakeVerbs)),
		Log: zerolog.New(os.Stderr),
	})
	if err != nil {
		return err
	}
	return errors.Join(s.Serve(ctx, fakeAnswer), s.Close())
}

// The answers of the fake worker.
const (
	askEcho = iota + 1 // the request as JSON
	askError
	askPlainError // without detail and hint
	askDetail
	askHint
	askWarning
	askForeign // characters that not every encoding has
	askLarge
	askNever // no answer before the deadline
	askBadState
	askSlow   // some answer, after a while
	askLonger // some answer, after two seconds
)

const foreign = "#0 é_日本_😀 a\\b 'q' 100%"

func fakeAnswer(ctx context.Context, r Request) Answer {
	e := Answer{Level: "ERROR", SQLState: "42501", Message: "message 100% '", Detail: "Detail.", Hint: "Hint."}
	if rows := fakeRows(r, e); rows.Rows != nil || rows.Level != "" {
		return rows
	}
	switch r.Targets[0] {
	case askEcho:
		r.Deadline = time.Time{}
		text, err := json.Marshal(r)
		if err != nil {
			e.Message = err.Error()
			return e
		}
		return Answer{Text: string(text)}
	case askError:
		return e
	case askPlainError:
		e.Detail, e.Hint = "", ""
		return e
	case askDetail:
		e.Hint = ""
		return e
	case askHint:
		e.Detail = ""
		return e
	case askWarning:
		return Answer{Level: "WARNING", SQLState: "01000", Message: "PID 6 is not a PostgreSQL server process"}
	case askForeign:
		return Answer{Text: foreign}
	case askLarge:
		return Answer{Text: strings.Repeat("x", limits.MaxAnswer)}
	case askNever:
		<-ctx.Done()
		time.Sleep(time.Minute)
		return Answer{}
	case askSlow:
		time.Sleep(time.Second / 4)
	case askLonger:
		time.Sleep(2 * time.Second)
	case askBadState:
		return Answer{Level: "ERROR", SQLState: "bad", Message: "m"}
	}
	return Answer{Text: fmt.Sprint("#0 ", r.Verb, " ", r.Targets[0])}
}

// site is a server with the extension in database postgres.
type site struct {
	*pgtest.Server

	program string // this test program, where the server's user can execute it
}

// eachSite runs test with a fresh server of every version. The parts of a test are subtests that share this server.
func eachSite(t *testing.T, o pgtest.Options, test func(t *testing.T, s *site)) {
	if testing.Short() {
		t.Skip("starts servers; left out by -short")
	}
	pgtest.Each(t, func(t *testing.T, binDir string) {
		s := newSite(t, pgtest.Start(t, binDir, o))
		if !o.Standby {
			s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
		}
		test(t, s)
	})
}

func newSite(t *testing.T, server *pgtest.Server) *site {
	t.Helper()
	if _, err := os.Stat(extensionFile(server.BinDir)); err != nil {
		t.Skipf("the extension is not installed in this server: %v", err)
	}
	return &site{Server: server, program: server.Self(t)}
}

// extensionFile is where a server looks for the control file: beside its programs (relocatable builds), or Debian's
// place.
func extensionFile(binDir string) string {
	const file = "extension/pg_stat_backtrace.control"
	root := filepath.Dir(binDir)
	for _, share := range []string{
		root + "/share/postgresql", root + "/share", // as built; below: Debian, also in a copy
		filepath.Join(root, "../../../share/postgresql", filepath.Base(root)),
		"/usr/share/postgresql/" + filepath.Base(root),
	} {
		if _, err := os.Stat(filepath.Join(share, file)); err == nil {
			return filepath.Join(share, file)
		}
	}
	return filepath.Join(root, "share", file)
}

// fake is a running fake worker.
type fake struct {
	*exec.Cmd

	once sync.Once
	err  error
}

// work starts a fake worker and waits until it is ready; it ends with the test.
func (s *site) work(t *testing.T, verbs ...string) *fake {
	t.Helper()
	f := s.launch(t, verbs...)
	wait(t, "the worker is ready", func() bool {
		info, err := Find(s.DataDir)
		return err == nil && info.PID == f.Process.Pid
	})
	return f
}

func (s *site) launch(t *testing.T, verbs ...string) *fake {
	t.Helper()
	f := &fake{Cmd: s.AsServerUser(exec.Command(s.program))}
	f.Env = append(f.Env, fakeEnv+"="+s.DataDir, fakeVerbs+"="+strings.Join(verbs, " "))
	f.Stderr = os.Stderr
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.end(syscall.SIGTERM) }) // in order, so that it leaves nothing
	return f
}

// end sends a signal and waits for the end of the process.
func (f *fake) end(sig syscall.Signal) error {
	f.once.Do(func() {
		_ = f.Process.Signal(syscall.SIGCONT)
		_ = f.Process.Signal(sig)
		f.err = f.Wait()
	})
	return f.err
}

// text runs a query of one text and returns it.
func text(t *testing.T, c *pgx.Conn, sql string, args ...any) string {
	t.Helper()
	got, err := query(t.Context(), c, sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, describe(err))
	}
	return got
}

func query(ctx context.Context, c *pgx.Conn, sql string, args ...any) (string, error) {
	var got *string
	if err := c.QueryRow(ctx, sql, args...).Scan(&got); err != nil {
		return "", err
	}
	if got == nil {
		return "NULL", nil
	}
	return *got, nil
}

// run executes SQL, several statements too, in the simple protocol.
func run(t *testing.T, c *pgx.Conn, sql string) {
	t.Helper()
	if _, err := c.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, describe(err))
	}
}

// describe shows an error as SQLSTATE|message|detail|hint.
func describe(err error) string {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return fmt.Sprint(err)
	}
	return strings.Join([]string{e.Code, e.Message, e.Detail, e.Hint}, "|")
}

// fails runs a query that must fail and returns the error as describe does.
func fails(t *testing.T, c *pgx.Conn, sql string) string {
	t.Helper()
	got, err := query(t.Context(), c, sql)
	if err == nil {
		t.Errorf("%s: succeeded with %q", sql, got)
		return ""
	}
	return describe(err)
}

// notices connects, and records the messages that the server sends in addition to results.
func (s *site) notices(t *testing.T, user string) (*pgx.Conn, func() []string) {
	t.Helper()
	config, err := pgx.ParseConfig(s.DSN(user, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { got = append(got, n.Severity+" "+n.Code+" "+n.Message) }
	c, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c, func() []string {
		defer func() { got = nil }()
		return got
	}
}

// asked decodes the answer to askEcho.
func asked(t *testing.T, c *pgx.Conn, sql string, args ...any) Request {
	t.Helper()
	var r Request
	if err := json.Unmarshal([]byte(text(t, c, sql, args...)), &r); err != nil {
		t.Fatal(err)
	}
	return r
}
