package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
)

// said is a message of the server: an error, or a notice in addition to results.
type said struct {
	level, state, message, detail, hint, where string
}

// String shows all but the context.
func (m said) String() string {
	return strings.Join([]string{m.level, m.state, m.message, m.detail, m.hint}, "|")
}

// session is one of a server's sessions, with a record of the server's messages in it.
type session struct {
	*pgx.Conn

	site    *site
	mu      sync.Mutex
	notices []said
}

// connect opens a session; it ends with the test.
func (s *site) connect(t *testing.T, user, database string) *session {
	t.Helper()
	c := &session{site: s}
	config, err := pgx.ParseConfig(s.DSN(user, database))
	if err != nil {
		t.Fatal(err)
	}
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.notices = append(c.notices, said{n.Severity, n.Code, n.Message, n.Detail, n.Hint, n.Where})
	}
	if c.Conn, err = pgx.ConnectConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), pgtest.Soon)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

// pid is the server process of the session.
func (c *session) pid() int { return int(c.PgConn().PID()) }

// told returns the server's messages since the last call, without results.
func (c *session) told() []said {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.notices = nil }()
	return c.notices
}

// run executes SQL, several statements too, which must succeed.
func (c *session) run(t *testing.T, sql string) {
	t.Helper()
	if _, err := c.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// try runs a query. It returns the first value as text ("NULL" for none), and the error's message, which is zero for
// success.
func (c *session) try(ctx context.Context, sql string, arguments ...any) (string, said) {
	var got *string
	err := c.QueryRow(ctx, sql, arguments...).Scan(&got)
	var e *pgconn.PgError
	switch {
	case errors.As(err, &e):
		m := said{e.Severity, e.Code, e.Message, e.Detail, e.Hint, e.Where}
		c.site.note(m)
		return "", m
	case err != nil:
		return "", said{level: "ERROR", message: err.Error()}
	case got == nil:
		return "NULL", said{}
	}
	return *got, said{}
}

// text runs a query that must succeed and returns its value.
func (c *session) text(t *testing.T, sql string, arguments ...any) string {
	t.Helper()
	got, e := c.try(t.Context(), sql, arguments...)
	if e.level != "" {
		t.Fatalf("%s: %v", sql, e)
	}
	return got
}

// fails runs a query that must fail with one of the contract's errors.
func (c *session) fails(t *testing.T, want, sql string) {
	t.Helper()
	got, e := c.try(t.Context(), sql)
	switch {
	case e.level == "":
		t.Errorf("%s: succeeded with %.200q, want %s", sql, got, want)
	case c.site.name(e) != want:
		t.Errorf("%s: %v, which is %q; want %s", sql, e, c.site.name(e), want)
	}
	oneLine(t, e)
}

// oneLine checks the context of an error: nothing, or one short line.
func oneLine(t *testing.T, e said) {
	t.Helper()
	if strings.Contains(e.where, "\n") || len(e.where) > 100 {
		t.Errorf("%v: context %q", e, e.where)
	}
}

// warns runs a query that must return want and warn as the contract says.
func (c *session) warns(t *testing.T, condition, want, sql string) {
	t.Helper()
	c.told()
	got := c.text(t, sql)
	notices := c.told()
	if len(notices) != 1 || c.site.name(notices[0]) != condition || got != want {
		t.Errorf("%s: %q with notices %v; want %q and %s", sql, got, notices, want, condition)
	}
	for _, n := range notices {
		c.site.note(n)
		oneLine(t, n)
	}
}

// later runs a query in the background. The channel gets the answer or the error.
func (c *session) later(sql string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		began := time.Now()
		text, e := c.try(context.Background(), sql)
		done <- outcome{text: text, said: e, took: time.Since(began)}
	}()
	return done
}

// outcome is the result of a query in the background.
type outcome struct {
	said

	text string
	took time.Duration
}

// waits waits until the session sleeps in a wait event of the server.
func (s *site) waits(t *testing.T, pid int, event string) {
	t.Helper()
	watcher := s.connect(t, s.User, "postgres")
	pgtest.Wait(t, fmt.Sprintf("process %d waits for %s", pid, event), func() bool {
		return watcher.text(t, "SELECT coalesce(max(wait_event), '') FROM pg_stat_activity WHERE pid = $1", pid) == event
	})
}

// idle opens an idle session of a role, as a target, and returns its process.
func (s *site) idle(t *testing.T, user string) int {
	t.Helper()
	return s.connect(t, user, "postgres").pid()
}

// stack checks that an answer is the stack of a backend, down to the postmaster's frames.
func stack(t *testing.T, what, got string) {
	t.Helper()
	level := 0
	for line := range strings.SplitSeq(got, "\n") {
		if !strings.HasPrefix(line, "#") {
			continue // the backend's activity, which is shown beside the frames
		}
		if !frame.MatchString(line) || !strings.HasPrefix(line, fmt.Sprintf("#%d ", level)) {
			t.Errorf("%s: line %d is no frame: %q", what, level, line)
		}
		level++
	}
	if !strings.Contains(got, " in PostgresMain+0x") || !strings.Contains(got, " in main+0x") {
		t.Errorf("%s: not a backend's stack:\n%s", what, got)
	}
}

// reconnect opens a session with a configuration, for names that a connection string would have to quote.
func (s *site) reconnect(t *testing.T, config *pgx.ConnConfig) *session {
	t.Helper()
	c := &session{site: s}
	var err error
	if c.Conn, err = pgx.ConnectConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), pgtest.Soon)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

func pgxConnect(t *testing.T, dsn string) (*pgx.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	return pgx.Connect(ctx, dsn)
}

// cmdline is a process's title, "" when it has ended.
func cmdline(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return strings.TrimRight(string(data), "\x00 ")
}
