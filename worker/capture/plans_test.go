package capture_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/process/procfs"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/plan"
)

// plansSetup makes tables, and a function that waits for an advisory lock. It has a cost for which the planner keeps it
// where it is written.
const plansSetup = `
CREATE TABLE a (id int PRIMARY KEY, v int, t text);
CREATE TABLE b (id int PRIMARY KEY, a int, t text);
CREATE INDEX b_a ON b (a);
INSERT INTO a SELECT i, i % 10, 'x' FROM generate_series(1, 1000) i;
INSERT INTO b SELECT i, i % 1000 + 1, 'y' FROM generate_series(1, 1000) i;
CREATE TABLE "P q" (id int, v int) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF "P q" FOR VALUES FROM (0) TO (100);
CREATE TABLE p2 PARTITION OF "P q" FOR VALUES FROM (100) TO (200);
INSERT INTO "P q" SELECT i, i FROM generate_series(0, 199) i;
ANALYZE;
CREATE FUNCTION hold(v anyelement) RETURNS anyelement VOLATILE LANGUAGE plpgsql AS
  'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN v; END';
CREATE TABLE c (id int);
CREATE FUNCTION after() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN PERFORM hold(1); RETURN NULL; END';
CREATE TRIGGER t AFTER INSERT ON c FOR EACH ROW EXECUTE FUNCTION after();
CREATE FUNCTION nested() RETURNS bigint VOLATILE LANGUAGE plpgsql AS
  'DECLARE n bigint; BEGIN SELECT count(hold(v)) INTO n FROM a WHERE id < 10; RETURN n; END';
`

// planCase is a statement that waits in its plan. Running is the beginning of the title of the node that runs.
type planCase struct{ set, sql, running string }

func planCases() []planCase {
	return []planCase{
		{"", "SELECT hold(id) FROM a", "Seq Scan on a"},
		{"", "SELECT hold(id) FROM a x WHERE id = 5", "Index Only Scan using a_pkey on a x"},
		{"enable_seqscan = off", "SELECT hold(id) FROM a WHERE id < 5", "Index Only Scan using a_pkey on a"},
		{"enable_seqscan = off", "SELECT hold(id) FROM a ORDER BY id DESC", "Index"},
		{"enable_indexscan = off; SET enable_seqscan = off", "SELECT hold(t) FROM b WHERE a < 3 OR a = 7", "Bitmap Heap Scan on b"},
		{"", "SELECT * FROM (SELECT hold(v) AS h, t FROM a OFFSET 0) s ORDER BY h", "Seq Scan on a"},
		{"enable_mergejoin = off; SET enable_nestloop = off", "SELECT hold(a.id) FROM a JOIN b ON a.id = b.a", "Hash Join"},
		{"enable_mergejoin = off; SET enable_nestloop = off",
			"SELECT count(*) FROM a LEFT JOIN (SELECT hold(a) AS h FROM b OFFSET 0) s ON a.id = s.h", ""},
		{"enable_hashjoin = off; SET enable_nestloop = off", "SELECT hold(a.v) FROM a JOIN b ON a.id = b.a", "Merge Join"},
		{"enable_hashjoin = off; SET enable_mergejoin = off", "SELECT hold(x.v) FROM a x, a y WHERE x.id = y.v", "Nested Loop"},
		{"", "SELECT v, sum(hold(id)) FROM a GROUP BY v", "HashAggregate"},
		{"enable_hashagg = off", "SELECT v, sum(hold(id)) FROM a GROUP BY v", "GroupAggregate"},
		{"", "SELECT hold(id) FROM a LIMIT 3", "Seq Scan on a"},
		{"", `SELECT hold(id) FROM "P q"`, "Seq Scan on p1"},
		{"", "WITH c AS MATERIALIZED (SELECT hold(id) AS h FROM a) SELECT * FROM c x JOIN c y USING (h)", "Seq Scan on a"},
		{"", "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT hold(n + 1) FROM r WHERE n < 5) SELECT * FROM r", "WorkTable Scan on r"},
		{"", "SELECT v, (SELECT max(hold(b.id)) FROM b WHERE b.a = a.id) FROM a", "Aggregate"},
		{"", "SELECT (SELECT hold(count(*)) FROM b), v FROM a", "Aggregate"},
		{"", "SELECT rank() OVER (PARTITION BY v ORDER BY hold(id)) FROM a", ""},
		{"", "SELECT hold(id) FROM a EXCEPT SELECT a FROM b", ""},
		{"", "SELECT DISTINCT ON (v) hold(id) FROM a ORDER BY v, id", ""},
		{"", "UPDATE a SET v = hold(v) WHERE id < 100", ""},
		{"", "INSERT INTO b SELECT hold(id) + 5000, 1, 'z' FROM a", ""},
		{"", "DELETE FROM \"P q\" WHERE hold(v) = 3", ""},
		{"", "SELECT hold(g) FROM (VALUES (1), (2)) v(g) FOR UPDATE", ""},
		{"", "SELECT hold(id) FROM a FOR UPDATE", "Seq Scan on a"},
		{"", "SELECT hold(x.id) FROM a x TABLESAMPLE SYSTEM (100)", "Sample Scan on a x"},
	}
}

// TestPlans compares the plans of statements that wait for a lock in them with EXPLAIN, on each server.
func TestPlans(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		// The tables and their statistics stay as they are, and a process that waits does not wake up on its own.
		server := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off", "deadlock_timeout = 1h"}})
		server.Exec(t, plansSetup)
		c, err := capture.New(capture.Config{})
		if err != nil {
			t.Fatal(err)
		}
		control := server.Connect(t, server.User, "postgres")
		for _, one := range planCases() {
			t.Run(one.sql, func(t *testing.T) { comparePlan(t, server, control, c, one) })
		}
		t.Run("trigger", func(t *testing.T) { planOfTrigger(t, server, control, c) })
		t.Run("nested", func(t *testing.T) { nestedPlans(t, server, control, c) })
		t.Run("speed", func(t *testing.T) { speedOfPlans(t, server, control, c) })
		t.Run("utility", func(t *testing.T) { utilityProgress(t, server, control) })
		t.Run("progress", func(t *testing.T) { progressOfPlans(t, server, control, c) })
	})
}

// comparePlan runs a statement until it waits, and compares the outermost level.
func comparePlan(t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer, one planCase) {
	t.Helper()
	levels, explained := waitingPlans(t, server, control, c, one)
	top := levels[0]
	if got := top.Text(false); got != explained {
		t.Fatalf("%s\n%s\nEXPLAIN:\n%s", top.Reason, got, explained)
	}
	if top.Source != one.sql {
		t.Errorf("the text is %q", top.Source)
	}
	var marked *plan.Node
	walkPlan(top.Top, func(n *plan.Node) {
		if n.Running {
			marked = n
		}
	})
	if marked == nil {
		t.Fatalf("no node is marked: %s\n%s", top.Reason, top.Text(true))
	}
	if !marked.Below {
		if !strings.HasPrefix(marked.Title(), one.running) {
			t.Errorf("the running node is %q, want %q\n%s", marked.Title(), one.running, top.Text(true))
		}
		return
	}
	t.Logf("the running node is below this one:\n%s", top.Text(true))
	found := false
	walkPlan(marked, func(n *plan.Node) { found = found || strings.HasPrefix(n.Title(), one.running) })
	if !found {
		t.Errorf("the running node is not below the marked one, want %q", one.running)
	}
}

func walkPlan(n *plan.Node, visit func(*plan.Node)) {
	visit(n)
	for _, c := range n.Children {
		walkPlan(c, visit)
	}
}

// waitingPlans runs a statement that waits for the lock, and returns its levels, and the lines with nodes of EXPLAIN.
func waitingPlans(
	t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer, one planCase,
) (levels []*plan.Level, explained string) {
	t.Helper()
	ctx := context.Background()
	session := server.Connect(t, server.User, "postgres")
	if _, err := session.PgConn().Exec(ctx, "SET max_parallel_workers_per_gather = 0; SET jit = off").ReadAll(); err != nil {
		t.Fatal(err)
	}
	if one.set != "" {
		if _, err := session.PgConn().Exec(ctx, "SET "+one.set).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	results, err := session.PgConn().Exec(ctx, "EXPLAIN "+one.sql).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range results[0].Rows {
		line := string(row[0])
		label := strings.TrimLeft(line, " ")
		if strings.Contains(line, "  (cost=") || strings.HasPrefix(label, "CTE ") || strings.HasPrefix(label, "InitPlan ") ||
			strings.HasPrefix(label, "SubPlan ") {
			explained += line + "\n"
		}
	}
	plans, err, ended := holding(t, session, control, c, one.sql)
	_ = session.Close(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(plans.Levels) < 1 || !plans.Whole {
		t.Fatalf("levels: %+v; the statement ended with %v", plans, ended)
	}
	return plans.Levels, explained
}

// holding runs a statement until it waits for the lock, reads its plans, and cancels it.
func holding(t *testing.T, session, control *pgx.Conn, c *capture.Capturer, sql string) (*capture.Plans, error, error) {
	t.Helper()
	ctx := context.Background()
	if _, err := control.Exec(ctx, "SELECT pg_advisory_lock(1)"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := session.PgConn().Exec(ctx, sql).ReadAll()
		done <- err
	}()
	pid := int(session.PgConn().PID())
	// The lock has its waiter before the process sleeps, and a statement can wait for other locks before this one.
	pgtest.Wait(t, "sleep until the lock is free", func() bool {
		var waits bool
		err := control.QueryRow(ctx, `SELECT count(*) > 0 FROM pg_stat_activity a JOIN pg_locks l USING (pid)
			WHERE pid = $1 AND a.wait_event_type = 'Lock' AND a.wait_event = 'advisory' AND l.locktype = 'advisory' AND NOT l.granted`,
			pid).Scan(&waits)
		stat, failed := procfs.ReadStat(pid)
		return err == nil && waits && failed == nil && stat.State == 'S'
	})
	plans, err := c.Plans(ctx, process.Target{PID: pid, UID: -1}, false)
	otherLayouts(t, c, pid)
	var ended error
	if _, failed := control.Exec(ctx, "SELECT pg_cancel_backend($1)", pid); failed == nil {
		ended = <-done
	}
	if _, failed := control.Exec(ctx, "SELECT pg_advisory_unlock(1)"); failed != nil {
		t.Fatal(failed)
	}
	return plans, err, ended
}

// nestedPlans: a function's statement is a separate level, with its own running node.
func nestedPlans(t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer) {
	t.Helper()
	levels, _ := waitingPlans(t, server, control, c, planCase{sql: "SELECT nested() FROM b"})
	var texts []string
	for _, l := range levels {
		texts = append(texts, fmt.Sprintf("%q\n%s%s", l.Source, l.Text(true), l.Reason))
	}
	text := strings.Join(texts, "\n")
	if len(levels) != 3 || levels[1].Top == nil || levels[1].Top.Kind != "Agg" || levels[0].Top == nil ||
		levels[0].Top.Title() != "Seq Scan on b" || levels[2].Top == nil || levels[2].Top.Kind != "Result" {
		t.Errorf("levels:\n%s", text)
	}
}

// planOfTrigger: a statement that runs its AFTER triggers is a level without a running node.
func planOfTrigger(t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer) {
	t.Helper()
	levels, explained := waitingPlans(t, server, control, c, planCase{sql: "INSERT INTO c VALUES (1)"})
	if len(levels) != 3 || levels[0].Text(false) != explained || strings.Contains(levels[0].Text(true), "=>") ||
		!strings.Contains(levels[0].Reason, "AFTER triggers") || levels[1].Source != "SELECT hold(1)" {
		t.Errorf("%d levels, %s\n%s\nEXPLAIN:\n%s", len(levels), levels[0].Reason, levels[0].Text(true), explained)
	}
}

// otherLayouts: with the layout of another version nothing is printed.
func otherLayouts(t *testing.T, c *capture.Capturer, pid int) {
	t.Helper()
	stat, err := procfs.ReadStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	target := process.Target{PID: pid, UID: -1, StartTime: stat.StartTime}
	stack, err := c.PlanStack(context.Background(), target)
	if err != nil {
		t.Fatal(err)
	}
	own := stack.Major
	for stack.Major = 14; stack.Major <= 18; stack.Major++ {
		levels, err := plan.Read(stack, process.NewMemory(pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range levels {
			if l.Top != nil && stack.Major != own {
				t.Errorf("with the layout of version %d:\n%s", stack.Major, l.Text(true))
			}
		}
	}
}
