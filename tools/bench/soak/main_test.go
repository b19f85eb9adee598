package main

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker"
)

// The worker of the test is this test program, run as the server's user.
const workerEnv = "PGSB_SOAK_WORKER"

func TestMain(m *testing.M) { os.Exit(pgtest.RunOr(m, workerEnv, serve)) }

// serve is the worker.
func serve(dsn string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg := worker.Config{ConnString: dsn, KeepRows: 1_000_000, Log: zerolog.New(os.Stderr).Level(zerolog.WarnLevel)}
	if os.Getenv("PGSB_SOAK_KEEP") != "" {
		cfg.KeepRows = 100
	}
	return worker.Run(ctx, cfg)
}

// newOptions starts a server with the extension.
func newOptions(t *testing.T) options {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a server; left out by -short")
	}
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Conf: []string{"max_connections = 60"}})
	c := s.Connect(t, s.User, "postgres")
	if _, err := c.Exec(t.Context(), "CREATE EXTENSION pg_stat_backtrace"); err != nil {
		t.Skipf("the extension is not installed in this server: %v", err)
	}
	program := s.Self(t)
	return options{
		DSN: s.DSN(s.User, "postgres"), Sessions: 10,
		Worker: func(keepRows int) *exec.Cmd {
			w := s.AsServerUser(exec.Command(program))
			w.Env = append(w.Env, workerEnv+"="+s.DSN(s.User, "postgres"))
			if keepRows < 1000 {
				w.Env = append(w.Env, "PGSB_SOAK_KEEP=1")
			}
			return w
		},
	}
}

// Each of 2,000 requests by ten sessions ends exactly once, while the worker is killed at least three times.
func TestSoak(t *testing.T) {
	o := newOptions(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	l, err := newLoad(ctx, o, 2000)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close(ctx)
	// As soon as some requests have been answered, so that there are kills on a fast machine and answers on a slow one.
	for kills := range 3 {
		k := startKiller(ctx, func() *exec.Cmd { return o.Worker(1_000_000) }, 0)
		l.total = 500 * (kills + 1)
		half := make(chan error, 1)
		go func() { half <- l.queue(ctx) }()
		pgtest.Wait(t, "answers", func() bool { n, _ := l.counts(); return n >= 500*kills+100 })
		k.kill()
		again := startKiller(ctx, func() *exec.Cmd { return o.Worker(1_000_000) }, 0)
		if err := <-half; err != nil {
			t.Error(err)
		}
		if _, err := again.end(); err != nil {
			t.Error(err)
		}
		l.next.Store(int64(l.total))
	}
	k := startKiller(ctx, func() *exec.Cmd { return o.Worker(1_000_000) }, 0)
	l.total = 2000
	if err := l.queue(ctx); err != nil {
		t.Error(err)
	}
	if err := l.check(ctx); err != nil {
		t.Error(err)
	}
	if _, err := k.end(); err != nil {
		t.Error(err)
	}
}

// The table stays small: the worker removes the oldest rows.
func TestWatch(t *testing.T) {
	o := newOptions(t)
	var out strings.Builder
	o.Out, o.Duration, o.Report, o.Rate, o.KeepRows = &out, 8*time.Second, time.Second, 300, 100
	if err := watch(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(t.Context(), o.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	var rows int
	if err := c.QueryRow(t.Context(), "SELECT count(*) FROM backtrace.request").Scan(&rows); err != nil {
		t.Fatal(err)
	}
	// It prunes when a thousand rows were written.
	if rows > 1500 || !regexp.MustCompile(`(?m)^ +\ds +\d+ +\d+ +0 `).MatchString(out.String()) {
		t.Errorf("%d rows\n%s", rows, out.String())
	}
}
