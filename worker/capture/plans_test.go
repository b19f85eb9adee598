package capture_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/plan"
)

// plansSetup makes tables, and a function that waits for an advisory lock. The cost of the function makes the planner
// keep its call at the place where the query has it.
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

// deepPlans runs a recursive function with one statement in each of its calls. The outermost and the innermost
// statements must be read, and the stack must be followed to its end.
func deepPlans(t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer) {
	t.Helper()
	server.Exec(t, `CREATE FUNCTION deep(n int) RETURNS int VOLATILE LANGUAGE sql AS
		'SELECT CASE WHEN n > 0 THEN deep(n - 1) ELSE (SELECT hold(1) FROM a LIMIT 1) END'`)
	const calls, most = 250, 200
	plans, _, err, _ := holding(t, server.Connect(t, server.User, "postgres"), control, c,
		planCase{sql: fmt.Sprintf("SELECT deep(%d)", calls-1)})
	if err != nil || !plans.Whole || len(plans.Levels) != most+1 {
		t.Fatalf("%+v, %v", plans, err)
	}
	all := 0
	for i, l := range plans.Levels {
		all += max(l.LeftOut, 1)
		if (l.LeftOut > 0) != (i == most/2) || (l.Top == nil) != (i == most/2) {
			t.Errorf("level %d: %d left out, %s", i, l.LeftOut, l.Reason)
		}
	}
	if want := calls + 2; all != want { // with the outermost statement, and the statement of hold
		t.Errorf("%d statements, not %d", all, want)
	}
	if last := plans.Levels[most]; last.Top.Kind != "Result" || !last.Top.Running {
		t.Errorf("the innermost statement:\n%s", last.Text(true))
	}
}

// planCase is a statement that waits in its plan for the lock, in hold.
type planCase struct {
	set, sql string
	// running is the beginning of the title of the node that runs, "" if the test does not say it.
	running string
	// explain is a script whose last result is the plan, by default EXPLAIN of sql.
	explain string
	// level is the statement that is compared, 0 for the outermost. source is its text, by default sql.
	level  int
	source string
	from   int // the first version that has it
	// sleeps is set if the statement waits in pg_sleep, as parallel workers must.
	sleeps bool
	// elsewhere is set if another process waits for the lock, and this one for that process.
	elsewhere    bool
	jit, foreign bool // it needs compiled expressions, or the modules for foreign tables
}

// TestPlans compares the plans of statements that wait for a lock in them with EXPLAIN, on each server.
func TestPlans(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		// The tables and their statistics stay as they are, and a process that waits does not wake up on its own.
		server := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off", "deadlock_timeout = 1h"}})
		server.Exec(t, plansSetup)
		c := capturer(t)
		control := server.Connect(t, server.User, "postgres")
		t.Run("statements", func(t *testing.T) { comparePlans(t, server, control, c) })
		t.Run("trigger", func(t *testing.T) { planOfTrigger(t, server, control, c) })
		t.Run("nested", func(t *testing.T) { nestedPlans(t, server, control, c) })
		t.Run("deep", func(t *testing.T) { deepPlans(t, server, control, c) })
		t.Run("speed", func(t *testing.T) { speedOfPlans(t, server, control, c) })
		t.Run("utility", func(t *testing.T) { utilityProgress(t, server, control) })
		t.Run("progress", func(t *testing.T) { progressOfPlans(t, server, control, c) })
	})
}

// TestPlansAwaitProgram: the first read of the server's program takes longer than the lines of a stack may. That does not mean that
// the process is no PostgreSQL.
func TestPlansAwaitProgram(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		server := pgtest.Start(t, bin, pgtest.Options{})
		session := server.Connect(t, server.User, "postgres")
		c, err := capture.New(capture.Config{LinesWait: time.Nanosecond})
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Wait(t, "the program read", func() bool { // a slow disk may take longer than the limit
			p, err := c.Plans(t.Context(), process.Target{PID: int(session.PgConn().PID()), UID: -1}, false)
			if (err == nil || !errors.Is(err, context.DeadlineExceeded)) && (err != nil || len(p.Levels) != 0 || p.Major == 0) {
				t.Fatalf("%+v, %v", p, err)
			}
			return err == nil
		})
	})
}

// TestAwaitProgram: after the wait, a capture knows the wait event, although it does not wait for the program itself.
func TestAwaitProgram(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		server := pgtest.Start(t, bin, pgtest.Options{})
		pid := int(server.Connect(t, server.User, "postgres").PgConn().PID())
		c, err := capture.New(capture.Config{LinesWait: time.Nanosecond})
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Wait(t, "the program read", func() bool { // a slow disk may take longer than the limit
			err := c.AwaitProgram(t.Context(), pid)
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			return err == nil
		})
		trace, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{NonStop: true})
		if err != nil || trace.Wait.Class+":"+trace.Wait.Event != "Client:ClientRead" {
			t.Errorf("%+v, %v", trace, err)
		}
		if err := c.AwaitProgram(t.Context(), 1<<30); !errors.Is(err, process.ErrExited) {
			t.Errorf("no process: %v", err)
		}
	})
}

// nestedPlans: a function's statement is a separate level, with its own running node.
func nestedPlans(t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer) {
	t.Helper()
	levels := waitingPlans(t, server, control, c, planCase{sql: "SELECT nested() FROM b"}).levels
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
	w := waitingPlans(t, server, control, c, planCase{sql: "INSERT INTO c VALUES (1)"})
	levels, explained := w.levels, w.explained
	if len(levels) != 3 || levels[0].Text(false) != explained || strings.Contains(levels[0].Text(true), "=>") ||
		!strings.Contains(levels[0].Reason, "AFTER triggers") || levels[1].Source != "SELECT hold(1)" {
		t.Errorf("%d levels, %s\n%s\nEXPLAIN:\n%s", len(levels), levels[0].Reason, levels[0].Text(true), explained)
	}
}

// otherLayouts: with the layout of another version nothing is printed.
func otherLayouts(t *testing.T, c *capture.Capturer, pid int) {
	t.Helper()
	stat, err := process.ReadStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	target := process.Target{PID: pid, UID: -1, StartTime: stat.StartTime}
	stack := patientPlanStack(t, c, target)
	own := stack.Major
	for stack.Major = 14; stack.Major <= 19; stack.Major++ {
		levels := patientReadPlans(t, pid, stack)
		for _, l := range levels {
			if l.Top != nil && stack.Major != own {
				t.Errorf("with the layout of version %d:\n%s", stack.Major, l.Text(true))
			}
		}
	}
}

// withoutStarts: without call frame information only the starts of exported functions are known. The trees are the same, and the mark
// is at the node that runs, or above it with a note that it may be below.
func withoutStarts(t *testing.T, c *capture.Capturer, pid int, want []*plan.Level) {
	t.Helper()
	stack := patientPlanStack(t, c, process.Target{PID: pid, UID: -1})
	exported := slices.Collect(maps.Values(stack.Functions))
	for i := range stack.Frames {
		if f := &stack.Frames[i]; !slices.Contains(exported, f.Start) {
			f.Start, f.End = 0, 0
		}
	}
	levels := patientReadPlans(t, pid, stack)
	if len(levels) != len(want) {
		t.Errorf("without call frame information: %d levels, not %d", len(levels), len(want))
		return
	}
	for i, l := range levels {
		if (l.Top == nil) != (want[i].Top == nil) || l.Top != nil && l.Text(false) != want[i].Text(false) {
			t.Errorf("without call frame information:\n%s\nwith it:\n%s", l.Text(true), want[i].Text(true))
			continue
		}
		if l.Top == nil {
			continue
		}
		marked := false
		walkPlan(l.Top, func(n *plan.Node) { marked = marked || n.Running })
		if marked && !markedAbove(l.Top, want[i].Top) {
			t.Errorf("without call frame information:\n%s\nwith it:\n%s", l.Text(true), want[i].Text(true))
		}
	}
}

// markedAbove reports whether the running node of one tree is at the place of the running node of the other tree, or above it.
func markedAbove(one, other *plan.Node) bool {
	if one.Running {
		return other.Running && one.Below == other.Below || one.Below && other.Active
	}
	for i := range one.Children {
		if markedAbove(one.Children[i], other.Children[i]) {
			return true
		}
	}
	return false
}
