package capture_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	nonstop "pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// waiting lists the states in which backends are captured. Each waits for an event that does not occur. The empty one
// is idle.
var waiting = []struct{ name, sql string }{
	{"idle", ""},
	{"idle in transaction", "BEGIN; SELECT 1"},
	{"pg_sleep", "SELECT pg_sleep(3600)"},
	{"advisory lock", "SELECT pg_advisory_lock(1)"},
	{"table lock", "SELECT * FROM nonstop_locked"},
	{"row lock in plpgsql", "DO $$ BEGIN UPDATE nonstop_row SET x = x + 1; END $$"},
	{"sleep in plpgsql", "SELECT nonstop_nap(5)"},
	{"COPY FROM STDIN", "COPY nonstop_row FROM STDIN"},
	{"parallel query", "SELECT count(pg_sleep(3600)) FROM nonstop_big"},
}

const waitingSchema = `
CREATE TABLE nonstop_locked (x int);
CREATE TABLE nonstop_row AS SELECT 1 AS x;
CREATE TABLE nonstop_big AS SELECT x FROM generate_series(1, 10000) x;
ALTER TABLE nonstop_big SET (parallel_workers = 2);
CREATE FUNCTION nonstop_nap(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	IF n > 0 THEN RETURN nonstop_nap(n - 1) + 1; END IF;
	PERFORM pg_sleep(3600);
	RETURN 0;
END $$`

// TestNonStopPostgres captures all processes of real servers without a stop while they sleep, and compares the stacks
// with those of a stop.
func TestNonStopPostgres(t *testing.T) {
	pgtest.One(t, func(t *testing.T, binDir string) {
		if testing.Short() {
			t.Skip("takes long: not with -short")
		}
		server := pgtest.Start(t, binDir, pgtest.Options{Conf: []string{
			"logging_collector = on", "archive_mode = on", "archive_command = 'true'", "wal_level = logical",
			"parallel_setup_cost = 0", "parallel_tuple_cost = 0", "parallel_leader_participation = off",
			"max_parallel_workers = 4", "autovacuum_naptime = 1d", // its workers come and go
		}})
		server.Exec(t, waitingSchema)
		names := waitInServer(t, server)
		c := capturer(t)
		total, whole, equal, recovered, unstopped := 0, 0, 0, 0, 0
		var without, with []time.Duration
		postmaster := server.PostmasterPID()
		children, err := process.Children(postmaster)
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range append([]int{postmaster}, children...) {
			name := names[pid]
			if name == "" {
				if _, err := process.ReadStat(pid); errors.Is(err, process.ErrExited) {
					continue // it refused a connection before the server was ready
				}
				name = processTitle(pid)
			}
			r := compareEngines(t, c, pid, name)
			total++
			whole += b2i(r.whole)
			equal += b2i(r.equal)
			recovered += b2i(r.recovered)
			unstopped += b2i(r.equal && preferNonStop(t, c, pid, name))
			without, with = append(without, r.without), append(with, r.with)
		}
		slices.Sort(without)
		slices.Sort(with)
		figure.Printf(t, "%s: %d sleeping processes: %d whole without a stop (%d by a recovered frame pointer), %d as by a "+
			"stop, their levels, queries and wait events too; median %v without, %v by a stop; %d not stopped with PreferNonStop",
			filepath.Dir(binDir), total, whole, recovered, equal, without[total/2], with[total/2], unstopped)
		if 100*unstopped < 95*total {
			t.Errorf("%d of %d sleeping processes are not stopped, want 95 %%", unstopped, total)
		}
		if equal != total || t.Failed() {
			t.Errorf("%d of %d processes have another stack without a stop", total-equal, total)
		}
	})
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// engines is the result of comparing the engines.
type engines struct {
	whole, equal, recovered bool
	sameFacts               bool // the same for PostgreSQL's own levels, query and wait event
	without, with           time.Duration
}

// compareEngines captures a process without a stop, between two stops that show the same stack.
func compareEngines(t *testing.T, c *capture.Capturer, pid int, name string) engines {
	t.Helper()
	var last string
	for range 50 {
		before, err1 := captureOnce(t, c, pid, false)
		awaitState(t, pid, 'S') // after a stop it waits for a processor
		seen, err2 := captureOnce(t, c, pid, true)
		after, err3 := captureOnce(t, c, pid, false)
		if err := errors.Join(err1, err2, err3); errors.Is(err, nonstop.ErrNotObserved) {
			last = err.Error() // a busy machine
			continue
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if addresses(before) != addresses(after) || seen.Engine != snapshot.EngineBlocked {
			last = "it does not sleep for long enough"
			continue
		}
		th := &seen.Threads[0]
		r := engines{
			whole: th.Whole, equal: addresses(seen) == addresses(before),
			sameFacts: serverFacts(before) == serverFacts(after) && serverFacts(seen) == serverFacts(before),
			without:   seen.Total, with: after.Total,
		}
		for i := range th.Frames {
			r.recovered = r.recovered || strings.Contains(th.Frames[i].Note, "recovered")
		}
		if r.equal && r.sameFacts {
			return r
		}
		if r.equal {
			last = fmt.Sprintf("%s\nwithout a stop:\n%sby a stop:\n%s", name, serverFacts(seen), serverFacts(before))
			continue
		}
		last = fmt.Sprintf("%s\nwithout a stop:\n%s%s\nby a stop:\n%s", name, addresses(seen), th.Stop, addresses(before))
		if !isPrefix(addresses(seen), addresses(before)) {
			continue // it was elsewhere meanwhile, or this is wrong: then it is so every time
		}
		t.Logf("incomplete: %s", last)
		return r
	}
	t.Errorf("%s: %s", name, last)
	return engines{}
}

// preferNonStop captures a process that sleeps most of the time until it is captured without a stop. The stack must be as by
// a stop. It returns false if each of many captures stops the process.
func preferNonStop(t *testing.T, c *capture.Capturer, pid int, name string) bool {
	t.Helper()
	last := ""
	for range 50 {
		before, err1 := captureOnce(t, c, pid, false)
		awaitState(t, pid, 'S')
		seen, err2 := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{PreferNonStop: true})
		after, err3 := captureOnce(t, c, pid, false)
		if err := errors.Join(err1, err2, err3); errors.Is(err, nonstop.ErrNotObserved) {
			continue // a busy machine
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if seen.Engine != snapshot.EngineBlocked || addresses(before) != addresses(after) {
			time.Sleep(20 * time.Millisecond) // it runs, for longer on a busy machine
			continue
		}
		if seen.Pause != 0 || !seen.Threads[0].Whole {
			t.Errorf("%s: pause %v, whole %t, without a stop", name, seen.Pause, seen.Threads[0].Whole)
		}
		if addresses(seen) == addresses(before) && serverFacts(seen) == serverFacts(before) {
			return true
		}
		last = addresses(seen) + serverFacts(seen) + "by a stop:\n" + addresses(before) + serverFacts(before)
	}
	if last != "" {
		t.Errorf("%s, without a stop:\n%s", name, last)
	}
	return false
}

func isPrefix(a, b string) bool { return strings.HasPrefix(b, a) }

func captureOnce(t *testing.T, c *capture.Capturer, pid int, nonStop bool) (*backtrace.Trace, error) {
	t.Helper()
	return c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{NonStop: nonStop})
}

// addresses is a stack to compare and to print.
func addresses(tr *backtrace.Trace) string {
	var b strings.Builder
	for i := range tr.Threads[0].Frames {
		f := &tr.Threads[0].Frames[i]
		fmt.Fprintf(&b, "%#x %s\n", f.Address, f.Name())
	}
	return b.String()
}

// serverFacts returns PostgreSQL's own facts in a trace: levels, query and wait event.
func serverFacts(tr *backtrace.Trace) string {
	var b strings.Builder
	for i := range tr.Threads[0].Frames {
		for _, l := range tr.Threads[0].Frames[i].Levels {
			fmt.Fprintf(&b, "%d %+v\n", i, l)
		}
	}
	fmt.Fprintf(&b, "%d %q %v\n", tr.QueryFrame, tr.Query, tr.Wait)
	return b.String()
}

func processTitle(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "?"
	}
	return strings.TrimRight(strings.ReplaceAll(string(text), "\x00", " "), " ")
}

// waitInServer starts a backend for each element of waiting. It returns their names by process id.
func waitInServer(t *testing.T, server *pgtest.Server) map[int]string {
	t.Helper()
	holder := server.Connect(t, server.User, "postgres")
	_, err := holder.Exec(t.Context(), `BEGIN; SELECT pg_advisory_lock(1);
		LOCK TABLE nonstop_locked; UPDATE nonstop_row SET x = x + 1`)
	if err != nil {
		t.Fatal(err)
	}
	names := map[int]string{int(holder.PgConn().PID()): "holder of locks"}
	var busy []int
	for _, w := range waiting {
		conn := server.Connect(t, server.User, "postgres")
		pid := int(conn.PgConn().PID())
		names[pid] = w.name
		if w.sql == "" {
			continue
		}
		busy = append(busy, pid)
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		t.Cleanup(func() { cancel(); <-done })
		go func() {
			defer close(done)
			if strings.HasPrefix(w.sql, "COPY") {
				_, _ = conn.PgConn().CopyFrom(ctx, silence(ctx.Done()), w.sql)
				return
			}
			_ = conn.PgConn().Exec(ctx, w.sql).Close()
		}()
	}
	watch := server.Connect(t, server.User, "postgres")
	names[int(watch.PgConn().PID())] = "watcher"
	pgtest.Wait(t, "all backends wait", func() bool {
		var pids []int32
		err := watch.QueryRow(t.Context(), `SELECT array_agg(pid) FROM pg_stat_activity
			WHERE wait_event IS NOT NULL AND query <> ''`).Scan(&pids)
		return err == nil && !slices.ContainsFunc(busy, func(pid int) bool { return !slices.Contains(pids, int32(pid)) })
	})
	return names
}

// silence is a reader that yields nothing until it is closed.
type silence <-chan struct{}

func (s silence) Read([]byte) (int, error) {
	<-s
	return 0, io.EOF
}
