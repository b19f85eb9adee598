package capture_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/memctx"
)

// contexts reads the memory contexts of a process.
func contexts(t *testing.T, pid int) *capture.MemoryContexts {
	t.Helper()
	m, err := contextCapturer(t).MemoryContexts(t.Context(), process.Target{PID: pid, UID: -1}, memctx.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// rowsOf prints a tree in the form of the view's rows: with the names of a context and its ancestors, and all figures.
func rowsOf(m *capture.MemoryContexts) []string {
	rows := make([]string, len(m.Contexts))
	chains := make([]string, len(m.Contexts))
	for i := range m.Contexts {
		c := &m.Contexts[i]
		if c.Parent >= 0 {
			chains[i] = chains[c.Parent] + "/"
		}
		chains[i] += c.Name
		rows[i] = fmt.Sprintf("%s|%s|%d|%d|%d|%d|%d|%d",
			chains[i], c.Ident, c.Depth, c.Total, c.Blocks, c.Free, c.FreeChunks, c.Used())
	}
	return rows
}

// query runs a statement by the simple protocol and returns the rows of its last result.
func query(t *testing.T, conn *pgx.Conn, sql string) [][]string {
	t.Helper()
	results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for _, r := range results[len(results)-1].Rows {
		row := make([]string, len(r))
		for i := range r {
			row[i] = string(r[i])
		}
		rows = append(rows, row)
	}
	return rows
}

// viewQuery returns a query for the view's rows. Before version 18, the rows go down each branch first. Since then,
// they go level by level, and have the path.
func viewQuery(major int, more string) string {
	path, level := "NULL", "level"
	if major >= 18 {
		path, level = "array_to_string(path, ' ')", "level - 1"
	}
	return "SELECT name, ident, " + level + ", total_bytes, total_nblocks, free_bytes, free_chunks, used_bytes, " +
		path + more + " FROM pg_backend_memory_contexts"
}

// viewRows prints the view's rows in the form of rowsOf.
func viewRows(t *testing.T, rows [][]string, major int) (out []string) {
	t.Helper()
	var branch []string
	byID := make(map[string]string)
	for i, r := range rows {
		depth, err := strconv.Atoi(r[2])
		if err != nil {
			t.Fatal(err)
		}
		chain := r[0]
		if major >= 18 {
			ids := strings.Fields(r[8])
			if ids[len(ids)-1] != strconv.Itoa(i+1) {
				t.Fatalf("row %d has path %s", i+1, r[8])
			}
			if depth > 0 {
				chain = byID[ids[len(ids)-2]] + "/" + chain
			}
			byID[ids[len(ids)-1]] = chain
		} else {
			branch = append(branch[:depth], r[0])
			chain = strings.Join(branch, "/")
		}
		out = append(out, chain+"|"+strings.Join(r[1:8], "|"))
	}
	return out
}

// ofTheQuery reports whether a row is of a context that the query on the view itself uses. The query still allocates
// memory there after the view has counted the context.
func ofTheQuery(row string) bool {
	chain, rest, _ := strings.Cut(row, "|")
	return strings.HasPrefix(chain, "TopMemoryContext/MessageContext") ||
		strings.HasPrefix(chain, "TopMemoryContext/TopPortalContext/PortalContext") &&
			strings.HasPrefix(rest, "<unnamed>|") ||
		strings.HasPrefix(chain, "TopMemoryContext/TopPortalContext/PortalContext/ExecutorState") &&
			!strings.Contains(chain, "Sort")
}

// ofAnyQuery also reports contexts whose free space has changed after the query.
func ofAnyQuery(row string) bool {
	chain, _, _ := strings.Cut(row, "|")
	return ofTheQuery(row) || slices.Contains([]string{
		"TopMemoryContext", "TopMemoryContext/TopTransactionContext", "TopMemoryContext/TopPortalContext",
	}, chain)
}

// difference removes from a the rows that b has as often.
func difference(a, b []string) []string {
	left := slices.Clone(b)
	var only []string
	for _, row := range a {
		if i := slices.Index(left, row); i >= 0 {
			left = slices.Delete(left, i, i+1)
		} else {
			only = append(only, row)
		}
	}
	return only
}

const manyContexts = `
CREATE TEMP TABLE t (n int PRIMARY KEY, txt text);
INSERT INTO t SELECT g, repeat('x', g % 300) FROM generate_series(1, 20000) g;
CREATE FUNCTION pg_temp.f(n int) RETURNS int LANGUAGE plpgsql
	AS 'BEGIN RETURN (SELECT count(*) FROM t WHERE t.n < f.n); END';
SELECT pg_temp.f(10);
PREPARE a AS SELECT 'ä', * FROM t WHERE n = $1;
EXECUTE a(1)`

// TestMemoryContexts compares the contexts read from outside with all rows of pg_backend_memory_contexts. It does so
// while the query on the view sleeps, and when the backend is idle.
func TestMemoryContexts(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		server := pgtest.Lend(t, binDir, pgtest.Options{})
		conn := server.Connect(t, server.User, "postgres")
		pid := int(conn.PgConn().PID())
		major := pgtest.Major(t, binDir)
		query(t, conn, manyContexts)
		query(t, conn, "PREPARE long AS SELECT '"+strings.Repeat("ä", 900)+"'; EXECUTE long")
		query(t, conn, "BEGIN; DECLARE sorted CURSOR FOR SELECT n, txt FROM t ORDER BY txt, n; FETCH 5 FROM sorted")
		query(t, conn, viewQuery(major, "")) // fills the caches

		for seconds := 2; ; seconds *= 2 {
			asleep := make(chan []string, 1)
			go func() {
				sleep := fmt.Sprintf(", (SELECT pg_sleep(%d))", seconds)
				asleep <- viewRows(t, query(t, conn, viewQuery(major, sleep)), major)
			}()
			pgtest.Wait(t, "the query to sleep", func() bool {
				return len(asleep) > 0 || observe(t, pid, capture.Options{}).Wait.Event == "PgSleep"
			})
			m := contexts(t, pid)
			still := observe(t, pid, capture.Options{}).Wait.Event == "PgSleep"
			rows := <-asleep
			if still {
				compareRows(t, "asleep", m, rows, major, ofTheQuery)
				break
			}
			if seconds > 60 { // the machine is too slow
				t.Fatalf("the contexts were not read while the query slept for %d s", seconds)
			}
		}

		want := viewRows(t, query(t, conn, viewQuery(major, "")), major)
		compareRows(t, "idle", contexts(t, pid), want, major, ofAnyQuery)
	})
}

// compareRows compares all rows except those for which others returns true.
func compareRows(
	t *testing.T, state string, m *capture.MemoryContexts, want []string, major int, others func(string) bool,
) {
	t.Helper()
	if !m.Consistent || m.Attempts != 1 || m.LeftOut || m.Major != major {
		t.Errorf("%s: consistent %t after %d readings, %d broken, %d changed, left out %t, version %d",
			state, m.Consistent, m.Attempts, m.Broken, m.Changed, m.LeftOut, m.Major)
	}
	got := rowsOf(m)
	compared := slices.DeleteFunc(slices.Clone(want), others)
	onlyView := slices.DeleteFunc(difference(want, got), others)
	onlyOurs := slices.DeleteFunc(difference(got, want), others)
	if len(onlyView) > 0 || len(onlyOurs) > 0 || len(compared) < 60 {
		t.Errorf("%s: of %d rows\nonly in the view:\n%s\nonly from outside:\n%s", state, len(compared),
			strings.Join(onlyView, "\n"), strings.Join(onlyOurs, "\n"))
	}
	t.Logf("%s: %d of the view's %d rows compared", state, len(compared), len(want))
}

// logged finds the figures of a context in what pg_log_backend_memory_contexts writes.
var logged = regexp.MustCompile(`level: (\d+); (.*): (\d+) total in (\d+) blocks(?: \(\d+ chunks\))?` +
	`(?:; \d+ empty blocks)?; (\d+) free(?: \((\d+) chunks\))?; (\d+) used`)

// loggedRows returns the rows of the last entry in a server's log.
func loggedRows(log string, major int) (rows []string) {
	for _, r := range logged.FindAllStringSubmatch(lastTotal(log), -1) {
		name, _, _ := strings.Cut(r[2], ": ")
		depth, _ := strconv.Atoi(r[1])
		if major >= 18 {
			depth--
		}
		if r[6] == "" {
			r[6] = "0"
		}
		rows = append(rows, fmt.Sprint(depth, "|", name, "|", strings.Join(r[3:8], "|")))
	}
	return rows
}

// TestMemoryContextsOfWalsender compares the contexts of a process that decodes a transaction with the contexts that
// it logs. Such a process has contexts of the kinds Slab and Generation.
func TestMemoryContextsOfWalsender(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		server := pgtest.Start(t, binDir, pgtest.Options{Conf: []string{"wal_level = logical", "wal_sender_timeout = 0"}})
		sender, other := decoding(t, server)
		pid := int(sender.PID())
		var got, want []string
		for range 10 { // it may have decoded something in between
			before := strings.Count(server.Log(), "Grand total")
			query(t, other, fmt.Sprintf("SELECT pg_log_backend_memory_contexts(%d)", pid))
			pgtest.Wait(t, "the contexts in the log", func() bool {
				return strings.Count(server.Log(), "Grand total") > before
			})
			m := contexts(t, pid)
			got, want = logRows(m), loggedRows(server.Log(), m.Major)
			if len(want) > 0 && m.Consistent && len(difference(want, got))+len(difference(got, want)) == 0 {
				break
			}
		}
		only, ours := difference(want, got), difference(got, want)
		if len(want) < 50 || len(only) > 0 || len(ours) > 0 {
			t.Errorf("of %d rows\nonly in the log:\n%s\nonly from outside:\n%s", len(want),
				strings.Join(only, "\n"), strings.Join(ours, "\n"))
		}
		kinds := make(map[string]int)
		for _, c := range contexts(t, pid).Contexts {
			kinds[c.Type]++
			if c.Type == "Slab" && c.Blocks > 0 {
				kinds["filled slab"]++
			}
		}
		if kinds["Slab"] == 0 || kinds["Generation"] == 0 || kinds["filled slab"] == 0 {
			t.Errorf("kinds of contexts: %v", kinds)
		}
		t.Logf("%d rows compared, %v", len(want), kinds)
	})
}

// decoding starts a walsender that decodes a transaction that is still open, and returns another session, too.
func decoding(t *testing.T, server *pgtest.Server) (*pgconn.PgConn, *pgx.Conn) {
	t.Helper()
	conn := server.Connect(t, server.User, "postgres")
	query(t, conn, "CREATE TABLE t (n int, txt text)")
	query(t, conn, "SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
	config, err := pgconn.ParseConfig(conn.Config().ConnString() + " replication=database")
	if err != nil {
		t.Fatal(err)
	}
	sender, err := pgconn.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sender.Close(context.WithoutCancel(t.Context())) })
	sender.Frontend().SendQuery(&pgproto3.Query{String: "START_REPLICATION SLOT s LOGICAL 0/0"})
	if err := sender.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	query(t, conn, "BEGIN; INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 3000) g")
	other := server.Connect(t, server.User, "postgres")
	query(t, other, "INSERT INTO t SELECT g, repeat('y', 50) FROM generate_series(1, 20) g")
	for seen := false; !seen; { // a later commit has been decoded, so the open transaction is queued
		m, err := sender.ReceiveMessage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		data, ok := m.(*pgproto3.CopyData)
		seen = ok && strings.Contains(string(data.Data), "COMMIT")
	}
	return sender, other
}

// lastTotal returns the part of a log after the last but one total.
func lastTotal(log string) string {
	parts := strings.Split(log, "Grand total")
	if len(parts) < 2 {
		return ""
	}
	return parts[len(parts)-2]
}

func logRows(m *capture.MemoryContexts) (rows []string) {
	for i := range m.Contexts {
		c := &m.Contexts[i]
		rows = append(rows, fmt.Sprint(c.Depth, "|", c.Name, "|", c.Total, "|", c.Blocks, "|", c.Free, "|", c.FreeChunks, "|",
			c.Used()))
	}
	return rows
}

// TestMemoryContextsOfStuckProcesses checks that every process of the server can be read, even if it is stopped.
func TestMemoryContextsOfStuckProcesses(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		server := pgtest.Lend(t, binDir, pgtest.Options{})
		conn := server.Connect(t, server.User, "postgres")
		backend := int(conn.PgConn().PID())
		query(t, conn, viewQuery(pgtest.Major(t, binDir), ""))
		pids := append(children(t, server.PostmasterPID()), server.PostmasterPID())
		if !slices.Contains(pids, backend) {
			t.Fatalf("processes %v, backend %d", pids, backend)
		}
		stopped := 0
		for _, pid := range pids {
			err := syscall.Kill(pid, syscall.SIGSTOP)
			if errors.Is(err, syscall.ESRCH) { // it refused a connection before the server was ready, and has ended
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
			ended := false
			pgtest.Wait(t, "the process to stop", func() bool {
				st, err := process.ReadStat(pid)
				ended = errors.Is(err, process.ErrExited) || st.State == 'Z'
				return ended || err == nil && st.State == 'T'
			})
			if ended {
				continue
			}
			stopped++
			m := contexts(t, pid)
			if !m.Consistent || m.Contexts[0].Name != "TopMemoryContext" || m.Contexts[0].Used() <= 0 {
				t.Errorf("process %d: consistent %t, %+v", pid, m.Consistent, m.Contexts[0])
			}
			if st, err := process.ReadStat(pid); err != nil || st.State != 'T' {
				t.Errorf("process %d is in state %c, %v", pid, st.State, err)
			}
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
		if stopped < 5 {
			t.Errorf("%d processes were stopped", stopped)
		}
	})
}

func children(t *testing.T, pid int) (pids []int) {
	t.Helper()
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	for field := range strings.FieldsSeq(string(list)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, child)
	}
	return pids
}

// TestMemoryContextsOfBusyBackend reads a backend that constantly makes and frees contexts. A tree must be consistent
// or be marked as not consistent, and a consistent one must have no contradictions.
func TestMemoryContextsOfBusyBackend(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	conn := server.Connect(t, server.User, "postgres")
	pid := int(conn.PgConn().PID())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = conn.Exec(ctx, `DO $$ DECLARE a text[] := '{}'; BEGIN LOOP FOR i IN 1..300 LOOP a := a || ('x' || i);
			EXECUTE 'SELECT ' || i; END LOOP; a := '{}'; END LOOP; END $$`) // until it is cancelled
	}()
	pgtest.Wait(t, "the backend to work", func() bool {
		st, err := process.ReadStat(pid)
		return err == nil && st.State == 'R'
	})
	c := contextCapturer(t)
	consistent, readings := 0, 0
	const times = 200
	for range times {
		m, err := c.MemoryContexts(t.Context(), process.Target{PID: pid, UID: -1}, memctx.Options{Attempts: 5})
		if err != nil {
			t.Fatal(err)
		}
		readings += m.Attempts
		if m.Consistent == (m.Broken+m.Changed > 0) {
			t.Fatalf("consistent %t with %d broken, %d changed", m.Consistent, m.Broken, m.Changed)
		}
		if !m.Consistent {
			continue
		}
		consistent++
		for i := range m.Contexts {
			if x := &m.Contexts[i]; x.Used() < 0 || x.Total <= 0 || x.Type == "" || x.Name == "" {
				t.Fatalf("%+v", x)
			}
		}
	}
	t.Logf("%d of %d trees consistent, after %d readings", consistent, times, readings)
	if consistent == 0 {
		t.Error("no tree was consistent")
	}
	cancel()
	<-done
}

// TestMemoryContextsRefused checks the errors for a process of another program, for no process, and for a reused
// process id.
func TestMemoryContextsRefused(t *testing.T) {
	c := contextCapturer(t)
	pid := os.Getpid()
	if _, err := c.MemoryContexts(t.Context(), process.Target{PID: pid, UID: -1}, memctx.Options{}); !errors.Is(
		err, capture.ErrNotPostgres) {
		t.Errorf("this process: %v", err)
	}
	if _, err := c.MemoryContexts(t.Context(), process.Target{PID: 1 << 22, UID: -1}, memctx.Options{}); !errors.Is(
		err, process.ErrExited) {
		t.Errorf("no process: %v", err)
	}
	recycled := process.Target{PID: pid, StartTime: 1, UID: -1}
	if _, err := c.MemoryContexts(t.Context(), recycled, memctx.Options{}); !errors.Is(err, process.ErrRecycled) {
		t.Errorf("another process: %v", err)
	}
}

func contextCapturer(t *testing.T) *capture.Capturer {
	t.Helper()
	c, err := capture.New(capture.Config{LinesWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
