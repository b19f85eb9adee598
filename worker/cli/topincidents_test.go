package cli

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
)

// topIncident is an incident and the way to its cause on the screen.
type topIncident struct {
	name string
	// sessions are the statements of each session. The test waits for all but the last of each.
	sessions [][]string
	// ready is a text in the output of activity before the command starts.
	ready string
	// steps are texts on the screen, each with the keys that are sent when it is there. The last one is the cause.
	steps []topStep
	conf  []string
	full  bool // take all connections
}

type topStep struct{ await, keys string }

func topIncidents() []topIncident {
	const first = "active sessions (now"
	return []topIncident{
		{name: "lock forest", ready: "Lock:relation", sessions: [][]string{
			{"BEGIN; LOCK TABLE t", "SELECT pg_sleep(3000)"}, {"SELECT 1", "SELECT * FROM t"}, {"SELECT 1", "SELECT * FROM t"},
		}, steps: []topStep{{await: "blocks 2 sessions"}}},
		{name: "looping PL/pgSQL", ready: "spin()", sessions: [][]string{{"SELECT 1", "SELECT spin()"}},
			steps: []topStep{{first, "\r"}, {await: "runs PL/pgSQL code"}}},
		{name: "slow commits", ready: "IPC:SyncRep", conf: []string{"synchronous_standby_names = 'gone'"},
			sessions: [][]string{{"SELECT 1", "INSERT INTO u VALUES (1)"}},
			steps:    []topStep{{await: "synchronous standby"}}},
		{name: "idle in transaction", ready: "Lock:transactionid", sessions: [][]string{
			{"BEGIN; UPDATE t SET i = 2", "SELECT 1"}, {"SELECT 1", "UPDATE t SET i = 3"},
		}, steps: []topStep{{await: "idle in transaction for"}}},
		{name: "full connections", ready: "idle", full: true, steps: []topStep{{await: "connections are in use"}}},
		{name: "memory growth", ready: "Timeout:PgSleep", sessions: [][]string{
			{"SELECT 1", "DO $$ DECLARE a text := repeat('x', 100000000); BEGIN PERFORM pg_sleep(3000), length(a); END $$"},
		}, steps: []topStep{{first, "\r"}, {await: "MB  SPI Proc"}}},
		{name: "stuck vacuum", ready: "BufferPin:BufferPin", sessions: [][]string{
			{"BEGIN; DECLARE c CURSOR FOR SELECT * FROM t; FETCH c", "SELECT 1"}, {"SELECT 1", "VACUUM (FREEZE) t"},
		}, steps: []topStep{{await: "waits until no other session uses a page"}}},
		{name: "bad plan", ready: "u a", sessions: [][]string{{
			"SET enable_hashjoin = off; SET enable_mergejoin = off; SET max_parallel_workers_per_gather = 0",
			"SELECT count(*) FROM u a, u b, u c WHERE a.i < b.i AND b.i < c.i",
		}}, steps: []topStep{{first, "\r"}, {await: "->  Nested Loop"}}},
	}
}

// TestTopIncidents prints the keys and the seconds until the screen shows the cause.
func TestTopIncidents(t *testing.T) {
	if !pgtest.Full() {
		t.Skip("a test of make check-full")
	}
	for _, incident := range topIncidents() {
		t.Run(incident.name, func(t *testing.T) { findCause(t, &incident) })
	}
}

// findCause makes an incident and goes to its cause.
func findCause(t *testing.T, incident *topIncident) {
	t.Helper()
	conf := append([]string{
		"max_connections = 6", "superuser_reserved_connections = 0", "max_wal_senders = 1", "autovacuum = off", "jit = off",
	}, incident.conf...)
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Conf: conf})
	setup := s.Connect(t, s.User, "postgres")
	execute(t, setup, `SET synchronous_commit = local; CREATE TABLE t AS SELECT 1 i;
		CREATE TABLE u AS SELECT i FROM generate_series(1, 20000) i;
		CREATE FUNCTION spin() RETURNS void LANGUAGE plpgsql AS $$
		DECLARE n bigint := 0;
		BEGIN
			LOOP
				n := n + 1;
			END LOOP;
		END $$`)
	if err := setup.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, statements := range incident.sessions {
		c := s.Connect(t, s.User, "postgres")
		execute(t, c, statements[0])
		sent := make(chan struct{})
		go func() {
			close(sent)
			_, _ = c.PgConn().Exec(t.Context(), statements[1]).ReadAll()
		}()
		<-sent
		if statements[1] == "SELECT 1" { // the session is idle in its transaction
			waitIdle(t, s)
		}
	}
	if incident.full {
		fill(t, s)
	}
	pgtest.Wait(t, incident.ready, func() bool { return strings.Contains(activity(t, "-D", s.DataDir), incident.ready) })

	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	x := openTerminal(t)
	x.size(t, 160, 45)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	program := exec.CommandContext(ctx, exe)
	program.Env = append(os.Environ(), topVariable+"="+strings.Join([]string{"top", "-D", s.DataDir}, "\n"), "TERM=xterm-256color",
		"LC_ALL=C.UTF-8", "NO_COLOR=")
	program.Stdin, program.Stdout, program.Stderr = x.slave, x.slave, x.slave
	program.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	began := time.Now()
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = program.Wait() }()
	const most = 4
	keys := 0
	for _, step := range incident.steps {
		x.await(t, step.await)
		x.send(t, step.keys)
		keys += len(step.keys)
	}
	if keys > most {
		t.Errorf("%d keys, more than %d", keys, most)
	}
	t.Logf("| %s | %d | %.1f |", incident.name, keys, time.Since(began).Seconds())
}

// waitIdle waits until the server has a session that is idle in its transaction.
func waitIdle(t *testing.T, s *pgtest.Server) {
	t.Helper()
	pgtest.Wait(t, "an idle session", func() bool { return strings.Contains(activity(t, "-D", s.DataDir), "idle in transaction") })
}
