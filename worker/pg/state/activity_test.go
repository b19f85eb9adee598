package state

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
)

// TestRead compares the figures from memory with pg_stat_activity, in every version.
func TestRead(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum_naptime = 1d"}}) // its workers come and go
		c, err := cluster.ByDataDir(s.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		r, err := OpenActivity(c)
		if err != nil {
			t.Fatal(err)
		}
		checkStates(t, s, r)
		checkTypes(t, s, r)
		s.Stop("immediate")
		if _, err := r.Read(); err == nil {
			t.Error("a server that has ended was read")
		}
	})
}

// checkStates compares a session in each state.
func checkStates(t *testing.T, s *pgtest.Server, r *ActivityReader) {
	t.Helper()
	idle := s.Connect(t, s.User, "postgres")
	transaction := s.Connect(t, s.User, "postgres")
	aborted := s.Connect(t, s.User, "postgres")
	sleeper := s.Connect(t, s.User, "postgres")
	exec(t, transaction.PgConn().Exec(t.Context(), "BEGIN").Close())
	exec(t, aborted.PgConn().Exec(t.Context(), "BEGIN").Close())
	_ = aborted.PgConn().Exec(t.Context(), "SELECT 1/0").Close()
	go func() { _ = sleeper.PgConn().Exec(t.Context(), "SELECT pg_sleep(1000)").Close() }()
	want := map[int]string{
		int(idle.PgConn().PID()):        "client backend idle Client ClientRead",
		int(transaction.PgConn().PID()): "client backend idle in transaction Client ClientRead",
		int(aborted.PgConn().PID()):     "client backend aborted Client ClientRead",
		int(sleeper.PgConn().PID()):     "client backend active Timeout PgSleep",
	}
	names := map[State]string{
		Idle: "idle", Active: "active", IdleInTransaction: "idle in transaction", Aborted: "aborted", Other: "other",
	}
	got := map[int]string{}
	pgtest.Wait(t, "all sessions in their states", func() bool {
		processes, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		clear(got)
		for _, p := range processes {
			got[p.PID] = fmt.Sprintf("%s %s %s %s", p.BackendType, names[p.State], p.WaitType, p.WaitEvent)
		}
		for pid, text := range want {
			if got[pid] != text {
				return false
			}
		}
		return true
	})
	checkFigures(t, r, idle, transaction)
}

// checkFigures: a session in a transaction has its start, an idle one has none, and the limit of connections is known.
func checkFigures(t *testing.T, r *ActivityReader, idle, transaction *pgx.Conn) {
	t.Helper()
	processes, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	var began time.Time
	const query = "SELECT xact_start FROM pg_stat_activity WHERE pid = $1"
	if err := idle.QueryRow(t.Context(), query, transaction.PgConn().PID()).Scan(&began); err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		switch p.PID {
		case int(idle.PgConn().PID()):
			if p.Transaction != nil {
				t.Errorf("an idle session has a transaction since %v", p.Transaction)
			}
		case int(transaction.PgConn().PID()):
			if p.Transaction == nil || !p.Transaction.Equal(began) {
				t.Errorf("a transaction since %v was read as %v", began, p.Transaction)
			}
		}
	}
	var limit int
	if err := idle.QueryRow(t.Context(), "SELECT current_setting('max_connections')::int").Scan(&limit); err != nil {
		t.Fatal(err)
	}
	if got := r.MaxConnections(); got != limit {
		t.Errorf("max_connections is %d, and was read as %d", limit, got)
	}
	const reserved = `SELECT sum(setting::int) FROM pg_settings WHERE name IN ('superuser_reserved_connections', 'reserved_connections')`
	var slots int
	if err := idle.QueryRow(t.Context(), reserved).Scan(&slots); err != nil {
		t.Fatal(err)
	}
	if got := r.OrdinarySlots(); got != limit-slots {
		t.Errorf("%d of %d connections are reserved, and %d were read as not reserved", slots, limit, got)
	}
}

// checkTypes compares the types of all processes with the server's own view.
func checkTypes(t *testing.T, s *pgtest.Server, r *ActivityReader) {
	t.Helper()
	conn := s.Connect(t, s.User, "postgres")
	rows, err := conn.Query(t.Context(), `SELECT pid, backend_type FROM pg_stat_activity WHERE pid <> pg_backend_pid()`)
	if err != nil {
		t.Fatal(err)
	}
	types := map[int]string{}
	processes, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		types[p.PID] = p.BackendType
	}
	n := 0
	for rows.Next() {
		var pid int
		var kind string
		if err := rows.Scan(&pid, &kind); err != nil {
			t.Fatal(err)
		}
		if kind == "logical replication launcher" {
			kind = "background worker"
		}
		if types[pid] != kind {
			t.Errorf("process %d is %q, the server says %q", pid, types[pid], kind)
		}
		n++
	}
	if rows.Err() != nil || n < 8 {
		t.Errorf("%d processes, %v", n, rows.Err())
	}
	for _, p := range processes {
		if p.PID == int(conn.PgConn().PID()) || p.WaitEvent == "PgSleep" {
			continue
		}
		if p.BackendType == ClientBackend && p.Active() {
			t.Errorf("an idle session counts as active: %+v", p)
		}
	}
}

func exec(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestParallelWorkers: workers of a parallel query have their own type.
func TestParallelWorkers(t *testing.T) {
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Conf: []string{
		"parallel_setup_cost = 0", "parallel_tuple_cost = 0", "min_parallel_table_scan_size = 0",
	}})
	s.Exec(t, `CREATE TABLE many AS SELECT i FROM generate_series(1, 10000) i;
		CREATE FUNCTION slow(int) RETURNS boolean LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT pg_sleep(10) IS NULL';
		ALTER TABLE many SET (parallel_workers = 2)`)
	c, err := cluster.ByDataDir(s.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := OpenActivity(c)
	if err != nil {
		t.Fatal(err)
	}
	conn := s.Connect(t, s.User, "postgres")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = conn.PgConn().Exec(ctx, "SELECT count(*) FROM many WHERE slow(i)").Close()
	}()
	t.Cleanup(func() { // before the connection is closed
		cancel()
		<-ended
	})
	pgtest.Wait(t, "parallel workers", func() bool {
		processes, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, p := range processes {
			if p.BackendType == ParallelWorker && p.Active() && p.WaitEvent == "PgSleep" {
				n++
			}
		}
		return n > 0
	})
}
