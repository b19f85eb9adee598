package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/pg/cluster"
)

// retryAfter is the pause between attempts while a test has all slots.
const retryAfter = 200 * time.Millisecond

// mostSlots is the number of slots of such a server, without those of walsenders.
const mostSlots = 8

// fewSlots is a server whose slots a test can take.
func fewSlots() pgtest.Options {
	return pgtest.Options{Conf: []string{
		fmt.Sprint("max_connections = ", mostSlots), "superuser_reserved_connections = 1", "max_wal_senders = 2",
	}}
}

// takeSlots opens sessions of the superuser until the server refuses one. The test has one session already. Others, which have been
// closed, may not have given their slots back yet.
func takeSlots(t *testing.T, s *pgtest.Server) (taken []*pgx.Conn) {
	t.Helper()
	for end := time.Now().Add(pgtest.Patience); len(taken) < mostSlots && time.Now().Before(end); {
		conn, err := pgx.Connect(t.Context(), s.DSN("postgres", "postgres"))
		if err != nil {
			var refusal *pgconn.PgError
			if !errors.As(err, &refusal) || refusal.Code != "53300" {
				t.Fatal(err)
			}
			if len(taken) == mostSlots-1 {
				return taken
			}
			continue
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		taken = append(taken, conn)
	}
	t.Fatalf("%d sessions, and the server has refused none", len(taken))
	return nil
}

// release gives slots back: the last free one is reserved.
func release(taken []*pgx.Conn) {
	for _, conn := range taken[:2] {
		_ = conn.Close(context.Background())
	}
}

// TestFallback takes all slots of a server, and gives one back.
func TestFallback(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		t.Parallel()
		server := pgtest.Lend(t, binDir, fewSlots())
		server.Exec(t, "CREATE ROLE worker LOGIN; CREATE ROLE spare LOGIN REPLICATION")
		taken := takeSlots(t, server)
		first := taken[0]
		c, err := cluster.ByDataDir(server.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		s := supervise(t, cluster.ConnOptions{
			MinBackoff: retryAfter, MaxBackoff: retryAfter, PingInterval: 10 * time.Millisecond,
			ConnString: server.DSN("worker", "postgres"), Cluster: &c, Check: c.Welcome,
			Fallback: &cluster.Fallback{ConnString: "user=spare replication=database", Check: c.Verify},
		})
		if state := s.await(t, true); !state.Fallback || state.Version != server.Major || !strings.Contains(state.Err.Error(), "53300") {
			t.Errorf("%+v", state)
		}
		checkFallback(t, s, int(first.PgConn().PID()))
		control, err := cluster.ReadControl(c.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		system, err := s.Identify(t.Context())
		if err != nil || system.ID != control.ID() || system.Timeline != 1 || system.Position < control.Checkpoint {
			t.Errorf("%+v, %v; the control file has %+v", system, err, control)
		}
		release(taken[1:])
		if state := s.await(t, true); state.Fallback {
			t.Errorf("%+v after a slot was free", state)
		}
		if got, err := s.query(t.Context(), "SELECT session_user::text"); got != "worker" {
			t.Errorf("%q, %v", got, err)
		}
		senders := func() (n int) {
			if err := first.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		pgtest.Wait(t, "the fallback connection is given back", func() bool { return senders() == 0 })
		if system, err := s.Identify(t.Context()); err != nil || system.ID != control.ID() {
			t.Errorf("beside an ordinary session: %+v, %v", system, err)
		}
		pgtest.Wait(t, "the connection for IDENTIFY_SYSTEM is closed", func() bool { return senders() == 0 })
	})
}

// checkFallback checks which queries the fallback connection can run.
func checkFallback(t *testing.T, s *supervised, pid int) {
	t.Helper()
	ctx := t.Context()
	look := authz.Lookup{Server: s}
	for _, pids := range [][]int{{pid}, {pid, pid}} {
		if found, err := look.LookAll(ctx, pids, 10); err != nil || !found[pid].Found || found[pid].Role != 10 || !found[pid].CallerSuperuser {
			t.Errorf("permission for %d processes: %+v, %v", len(pids), found, err)
		}
	}
	err := s.Query(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		for query, want := range map[string]bool{
			"LISTEN x": false, "PREPARE x AS SELECT 1": true, "SELECT 1; SELECT 2": true, "-- ping": true, "SELECT 1": true,
			"CREATE TABLE x ()": false,
		} {
			if _, err := conn.Exec(ctx, query); err == nil != want {
				t.Errorf("%s: %v", query, err)
			}
		}
		if _, err := conn.Exec(ctx, "SELECT $1::int", pgx.QueryExecModeExec, 1); err == nil {
			t.Error("the extended query protocol works")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	err = s.Ordinary().Query(ctx, func(context.Context, *pgx.Conn) error { return nil })
	if !errors.Is(err, cluster.ErrNoServer) {
		t.Errorf("an ordinary session: %v", err)
	}
}

// TestFallbackRefused has failures that a fallback cannot mend, and fallbacks that fail.
func TestFallbackRefused(t *testing.T) {
	t.Parallel()
	server := pgtest.Lend(t, pgtest.BinDir(t), fewSlots())
	server.Exec(t, "CREATE ROLE worker LOGIN; CREATE ROLE spare LOGIN REPLICATION; CREATE ROLE plain LOGIN; CREATE ROLE gone")
	var opened atomic.Int32
	check := func(context.Context, *pgx.Conn) error { opened.Add(1); return nil } //nolint:unparam // as the field is
	try := func(user, fallback string) error {
		s := supervise(t, cluster.ConnOptions{
			ConnString: server.DSN(user, "postgres"), Fallback: &cluster.Fallback{ConnString: fallback, Check: check},
		})
		return s.await(t, false).Err
	}
	if err := try("gone", "user=spare"); err == nil || strings.Contains(err.Error(), "fallback") || opened.Load() != 0 {
		t.Errorf("role without LOGIN: %v, %d sessions", err, opened.Load())
	}
	taken := takeSlots(t, server)
	if err := try("worker", "user=plain"); err == nil || !strings.Contains(err.Error(), "53300") || !strings.Contains(err.Error(), "fallback") {
		t.Errorf("fallback without REPLICATION: %v", err)
	}
	s := supervise(t, cluster.ConnOptions{
		MinBackoff: retryAfter, MaxBackoff: retryAfter, ConnString: server.DSN("worker", "postgres"), Fallback: &cluster.Fallback{ConnString: "user=spare", Check: check},
	})
	if state := s.await(t, true); !state.Fallback {
		t.Fatalf("%+v", state)
	}
	if _, err := taken[0].Exec(t.Context(), "ALTER ROLE worker NOLOGIN"); err != nil {
		t.Fatal(err)
	}
	release(taken[1:])
	var err error
	pgtest.Wait(t, "the fallback is given back when the role may not log in", func() bool {
		_, err = s.query(t.Context(), "SELECT ''")
		return err != nil && strings.Contains(err.Error(), "28000")
	})
}

// TestFallbackReserved has a superuser. The server would give this role a reserved slot.
func TestFallbackReserved(t *testing.T) {
	t.Parallel()
	server := pgtest.Lend(t, pgtest.BinDir(t), fewSlots())
	server.Exec(t, "CREATE ROLE spare LOGIN REPLICATION")
	taken := takeSlots(t, server)
	pid := int(taken[0].PgConn().PID())
	_ = taken[0].Close(t.Context())
	pgtest.Wait(t, "the end of a session", func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
	s := supervise(t, cluster.ConnOptions{
		ConnString: server.DSN("postgres", "postgres"), Check: cluster.CheckSlots, Fallback: &cluster.Fallback{ConnString: "user=spare"},
	})
	if state := s.await(t, true); !state.Fallback || !errors.Is(state.Err, cluster.ErrScarce) {
		t.Fatalf("%+v", state)
	}
}

// TestFallbackSettings has connection strings of a fallback, beside those of the worker.
func TestFallbackSettings(t *testing.T) {
	t.Parallel()
	for over, want := range map[string]string{
		"user=spare":                         "",
		"user=spare replication=database":    "",
		"postgresql://spare@?sslmode=prefer": "",
		"user=spare replication=true":        "replication must be database",
		"user=spare replication=off":         "replication must be database",
		"nonsense":                           "missing",
		"user=spare port=x keepalives=y":     "integer",
	} {
		err := cluster.CheckFallback(over, "user=worker password=secret")
		if got := fmt.Sprint(err); want == "" != (err == nil) || !strings.Contains(got, want) {
			t.Errorf("%s: %v", over, err)
		}
	}
}
