package capture_test

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// positionTables are the tables for the commands of TestPositions. ok runs as long as the test needs.
const positionTables = `
CREATE FUNCTION ok(n int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN true; END';
CREATE DOMAIN checked AS int CHECK (VALUE < 3 OR ok(VALUE));
CREATE TABLE copied ("Das ""b""" checked, txt text);
CREATE TABLE large (n int, txt text) WITH (autovacuum_enabled = off);
INSERT INTO large SELECT g, repeat('x', 400) FROM generate_series(1, 2000) g;
CREATE TABLE cleaned (n int PRIMARY KEY, txt text) WITH (autovacuum_enabled = off, fillfactor = 20);
INSERT INTO cleaned SELECT g, repeat('x', 100) FROM generate_series(1, 200) g;
CREATE TABLE tail (n int, txt text) WITH (autovacuum_enabled = off);
INSERT INTO tail SELECT g, repeat('x', 400) FROM generate_series(1, 2000) g;
DELETE FROM tail WHERE n > 100;
CREATE TABLE locked (n int)`

// position is a command that waits at a certain place, and the level that it has there; empty: it has none.
type position struct {
	command string
	// event is the wait event at that place, with a bar between the names of different versions. It is empty if a version
	// has none for it.
	event string
	level string
	// before makes the command reach that place. hold keeps the command there: another session executes hold in an open
	// transaction.
	before, hold string
}

func positions() []position {
	const makeDead = "UPDATE cleaned SET n = n + 10000"
	return []position{
		{command: "COPY copied FROM STDIN", event: "PgSleep", level: `COPY copied, line 3, column Das "b"`},
		{command: "COPY (SELECT pg_sleep(60)) TO '/dev/null'", event: "PgSleep"},
		{command: "VACUUM large", event: "VacuumDelay", level: `while scanning block `},
		{
			command: "VACUUM (INDEX_CLEANUP ON) cleaned", event: "BufferPin|BufferCleanup", before: makeDead,
			level: `while vacuuming index "cleaned_pkey" of relation "public.cleaned"`,
			// A scan of the index alone keeps its page pinned.
			hold: "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; " +
				"DECLARE c CURSOR FOR SELECT n FROM cleaned ORDER BY n; FETCH c",
		},
		{
			command: "VACUUM (INDEX_CLEANUP ON) cleaned", event: "VacuumDelay", before: makeDead,
			level: `while vacuuming block `,
		},
		{
			command: "VACUUM tail", level: `while truncating relation "public.tail" to 6 blocks`,
			hold: "SELECT FROM tail LIMIT 1",
		},
		{command: "ANALYZE large", event: "VacuumDelay"},
		{command: "VACUUM FULL locked", event: "relation", hold: "SELECT FROM locked"},
		{command: "CREATE INDEX ON locked (n)", event: "relation", hold: "INSERT INTO locked VALUES (1)"},
		{command: "CREATE INDEX ON large (ok(n))", event: "PgSleep", level: "PL/pgSQL function "},
	}
}

// TestPositions checks the levels for a COPY, a VACUUM and the creation of an index. They must equal the CONTEXT of a
// cancelled command. Where PostgreSQL has no CONTEXT line, there must be no level.
func TestPositions(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		o := newObservation(t, binDir)
		o.server.Exec(t, positionTables)
		if _, err := o.backend.Exec(t.Context(), "SET vacuum_cost_delay = 2"); err != nil {
			t.Fatal(err)
		}
		o.exec(t, o.holder, "ROLLBACK") // rows would be none that a VACUUM may remove
		for _, p := range positions() {
			tr, where := o.cancelAt(t, &p)
			got, want := o.texts(t, tr), known(where)
			if !slices.EqualFunc(got, want, sameLevel) || !slices.ContainsFunc(got, p.is) && p.level != "" ||
				p.level == "" && len(got) > 0 {
				t.Errorf("%s: levels:\n%s\nbut CONTEXT:\n%s", p.command, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	})
}

func (p *position) is(level string) bool { return strings.HasPrefix(level, p.level) }

// cancelAt runs the command, and stops and captures it again and again until it is at the place. Then it cancels the
// command there.
func (o *observation) cancelAt(t *testing.T, p *position) (tr *backtrace.Trace, where string) {
	t.Helper()
	// The command may have passed the place before a capture.
	for deadline := time.Now().Add(pgtest.Patience); time.Now().Before(deadline); {
		o.exec(t, o.watch, p.before)
		o.exec(t, o.holder, "BEGIN; "+p.hold)
		result := o.start(p.command)
		tr, err := o.stopAt(t, p, result)
		if tr != nil {
			o.signal(t, syscall.SIGINT)
			o.signal(t, syscall.SIGCONT)
			err = <-result
		}
		o.exec(t, o.holder, "ROLLBACK")
		var pgErr *pgconn.PgError
		switch {
		case tr != nil && errors.As(err, &pgErr) && pgErr.Code == "57014":
			return tr, pgErr.Where
		case err != nil:
			t.Fatalf("%s ended with %v", p.command, err)
		}
	}
	t.Fatalf("%s was never seen waiting for %q, %q", p.command, p.event, p.level)
	return nil, ""
}

// stopAt stops the backend when the command is at the place, and does not resume it. If the command has ended before,
// the trace is nil, and stopAt returns the command's error.
func (o *observation) stopAt(t *testing.T, p *position, result <-chan error) (*backtrace.Trace, error) {
	t.Helper()
	for {
		select {
		case err := <-result:
			return nil, err
		case <-time.After(time.Millisecond):
		}
		o.signal(t, syscall.SIGSTOP)
		pgtest.Wait(t, "the backend to stop", func() bool {
			st, err := process.ReadStat(o.pid)
			return err == nil && st.State == 'T'
		})
		tr, err := o.capturer.Capture(t.Context(), process.Target{PID: o.pid, UID: -1}, capture.Options{Deadline: pgtest.Patience})
		if err != nil {
			o.signal(t, syscall.SIGCONT)
			t.Fatal(err)
		}
		if tr.Query == p.command && (p.event == "" || slices.Contains(strings.Split(p.event, "|"), tr.Wait.Event)) &&
			(p.level == "" || slices.ContainsFunc(o.texts(t, tr), p.is)) {
			return tr, nil
		}
		o.signal(t, syscall.SIGCONT)
	}
}

// exec runs commands without an answer, if there are any.
func (o *observation) exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatal(err)
	}
}
