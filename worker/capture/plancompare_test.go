package capture_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/plan"
)

// comparePlans compares a share of planStatements, all of them in full runs. Then all kinds of nodes must have been
// compared.
func comparePlans(t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer) {
	t.Helper()
	server.Exec(t, statementsSetup)
	foreign := modulesOf(t, server, control)
	var compiles bool
	var version int
	const query = "SELECT pg_jit_available(), current_setting('server_version_num')::int / 10000"
	if err := control.QueryRow(t.Context(), query).Scan(&compiles, &version); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	const share = 6
	selected := figure.Share(t, share)
	for i, one := range planStatements() {
		if one.from > version || one.foreign && !foreign || one.jit && !compiles || !selected(i) {
			continue
		}
		t.Run(one.sql, func(t *testing.T) { comparePlan(t, server, control, c, one, kinds) })
		if pgtest.Full() && compiles && !one.jit {
			one.jit = true
			t.Run("compiled "+one.sql, func(t *testing.T) { comparePlan(t, server, control, c, one, kinds) })
		}
	}
	if !pgtest.Full() {
		return
	}
	for kind := range strings.FieldsSeq(`Result ProjectSet ModifyTable Append MergeAppend RecursiveUnion BitmapAnd BitmapOr SeqScan
		SampleScan Gather GatherMerge IndexScan IndexOnlyScan BitmapIndexScan BitmapHeapScan TidScan TidRangeScan SubqueryScan
		FunctionScan TableFuncScan ValuesScan CteScan NamedTuplestoreScan WorkTableScan NestLoop MergeJoin HashJoin Material
		Memoize Sort IncrementalSort Group Agg WindowAgg Unique Hash SetOp LockRows Limit`) {
		if !kinds[kind] {
			t.Errorf("no statement has a node %s", kind)
		}
	}
	t.Logf("JIT: %t; kinds: %q", compiles, slices.Sorted(maps.Keys(kinds)))
}

// modulesOf makes foreign tables if the server has the modules for them.
func modulesOf(t *testing.T, server *pgtest.Server, control *pgx.Conn) bool {
	t.Helper()
	var n int
	const query = "SELECT count(*) FROM pg_available_extensions WHERE name IN ('file_fdw', 'postgres_fdw')"
	if err := control.QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 2 {
		return false
	}
	server.Exec(t, fmt.Sprintf(foreignSetup, server.SocketDir, server.Port))
	return true
}

// comparePlan runs a statement until it waits, and compares one level with EXPLAIN.
func comparePlan(t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer, one planCase, kinds map[string]bool) {
	t.Helper()
	w := waitingPlans(t, server, control, c, one)
	if len(w.levels) <= one.level {
		t.Fatalf("%d levels: %+v", len(w.levels), w.levels)
	}
	top := w.levels[one.level]
	if got := withoutFunctions(top.Text(false)); got != w.explained || got == "" {
		t.Fatalf("%s\n%s\nEXPLAIN:\n%s", top.Reason, got, w.explained)
	}
	source := one.source
	if source == "" {
		source = one.sql
	}
	if got := strings.Join(strings.Fields(top.Source), " "); got != source {
		t.Errorf("the text is %q", top.Source)
	}
	if w.tree != nil {
		comparison := plan.NewComparison()
		if err := comparison.Tree(top.Top, w.tree); err != nil {
			t.Error(err)
		}
		for _, difference := range comparison.Differences() {
			t.Errorf("differs from EXPLAIN: %s", difference)
		}
	}
	walkPlan(top.Top, func(n *plan.Node) { kinds[n.Kind] = true })
	compareWorkers(t, top, w.workers)
	compareMark(t, top, one.running, w.bare)
}

// compareMark checks that the marked node runs. Otherwise the running node must be below it, and the text must mention
// this. bare means that the server has no call frame information. A missing mark is no error then.
func compareMark(t *testing.T, top *plan.Level, running string, bare bool) {
	t.Helper()
	var marked *plan.Node
	walkPlan(top.Top, func(n *plan.Node) {
		if n.Running {
			marked = n
		}
	})
	if marked == nil {
		if running != "" && !bare {
			t.Errorf("no node is marked: %s\n%s", top.Reason, top.Text(true))
		}
		t.Logf("no node is marked: %s", top.Reason)
		return
	}
	if !marked.Below {
		t.Logf("the running node is %q", marked.Title())
		if !strings.HasPrefix(marked.Title(), running) {
			t.Errorf("the running node is %q, want %q\n%s", marked.Title(), running, top.Text(true))
		}
		return
	}
	t.Logf("the running node is below this one:\n%s", top.Text(true))
	found := false
	walkPlan(marked, func(n *plan.Node) { found = found || strings.HasPrefix(n.Title(), running) })
	if !found {
		t.Errorf("the running node is not below the marked one, want %q", running)
	}
}

// compareWorkers checks that the plan of a parallel worker is the part of the leader's plan below Gather.
func compareWorkers(t *testing.T, top *plan.Level, workers []*capture.Plans) {
	t.Helper()
	var gathers []string
	walkPlan(top.Top, func(n *plan.Node) {
		if n.Kind == "Gather" || n.Kind == "GatherMerge" {
			below := &plan.Level{Top: n.Children[len(n.Children)-1]}
			gathers = append(gathers, below.Text(false))
		}
	})
	for _, w := range workers {
		if len(w.Levels) == 0 || !slices.Contains(gathers, w.Levels[0].Text(false)) {
			t.Errorf("a worker's plan: %+v\n%s\nleader:\n%s", w, w.Levels[0].Text(false), top.Text(false))
		}
	}
}

func walkPlan(n *plan.Node, visit func(*plan.Node)) {
	visit(n)
	for _, c := range n.Children {
		walkPlan(c, visit)
	}
}

// waited is a statement that waited, with the plan of EXPLAIN.
type waited struct {
	levels    []*plan.Level
	workers   []*capture.Plans
	explained string         // the lines with nodes
	tree      map[string]any // EXPLAIN (FORMAT JSON), nil if there is none
	bare      bool           // the server has no call frame information
}

var functionInFrom = regexp.MustCompile(`((?:Table )?Function Scan on )(?:"[^"]*"|\S+) (\S+  \(cost)`)

// withoutFunctions removes the names of functions in FROM, which are not read.
func withoutFunctions(text string) string { return functionInFrom.ReplaceAllString(text, "$1$2") }

// waitingPlans runs a statement that waits, and returns its levels and the lines with nodes of EXPLAIN.
func waitingPlans(t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer, one planCase) *waited {
	t.Helper()
	ctx := context.Background()
	session := server.Connect(t, server.User, "postgres")
	defer session.Close(ctx) // it ends here
	settings := "SET max_parallel_workers_per_gather = 0; SET jit = off"
	if one.jit {
		settings += "; SET jit = on; SET jit_above_cost = 0; SET jit_inline_above_cost = 0; SET jit_optimize_above_cost = 0"
	}
	if one.set != "" {
		settings += "; SET " + one.set
	}
	if _, err := session.PgConn().Exec(ctx, settings).ReadAll(); err != nil {
		t.Fatal(err)
	}
	script := one.explain
	if script == "" {
		script = "EXPLAIN " + one.sql
	}
	w := &waited{}
	for _, line := range lastResult(t, session, script) {
		label := strings.TrimLeft(line, " ")
		if strings.Contains(line, "  (cost=") || strings.HasPrefix(label, "CTE ") || strings.HasPrefix(label, "InitPlan ") ||
			strings.HasPrefix(label, "SubPlan ") {
			w.explained += line + "\n"
		}
	}
	w.explained = withoutFunctions(w.explained)
	if asJSON := strings.Replace(script, "EXPLAIN ", "EXPLAIN (FORMAT JSON) ", 1); asJSON != script {
		var plans []struct{ Plan map[string]any }
		if err := json.Unmarshal([]byte(strings.Join(lastResult(t, session, asJSON), "\n")), &plans); err != nil || len(plans) != 1 {
			t.Fatal(err, plans)
		}
		w.tree = plans[0].Plan
	}
	plans, workers, err, ended := holding(t, session, control, c, one)
	if err != nil {
		t.Fatal(err)
	}
	if len(plans.Levels) < 1 || !plans.Whole {
		t.Fatalf("levels: %+v; the statement ended with %v", plans, ended)
	}
	w.levels, w.workers = plans.Levels, workers
	w.bare = isBare(t, c, int(control.PgConn().PID()))
	return w
}

// isBare reports whether a server, of which pid is an idle session, has no call frame information.
func isBare(t *testing.T, c *capture.Capturer, pid int) bool {
	t.Helper()
	stack := patientPlanStack(t, c, process.Target{PID: pid, UID: -1})
	known := 0
	for _, f := range stack.Frames {
		if f.Start != 0 {
			known++
		}
	}
	return known < len(stack.Frames)/2
}

// lastResult runs statements and returns the lines of the last result with rows.
func lastResult(t *testing.T, session *pgx.Conn, script string) (lines []string) {
	t.Helper()
	results, err := session.PgConn().Exec(context.Background(), script).ReadAll()
	var failed *pgconn.PgError
	if errors.As(err, &failed) && failed.Code == "0A000" {
		t.Skip(failed.Message) // XML, for example
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if len(r.Rows) == 0 {
			continue
		}
		lines = nil
		for _, row := range r.Rows {
			lines = append(lines, string(row[0]))
		}
	}
	return lines
}

// Conditions for holding: the statement of process $1 waits.
const (
	// The lock has its waiter before the process sleeps, and a statement can wait for other locks before this one.
	waitsForLock = `SELECT count(*) > 0 FROM pg_stat_activity a JOIN pg_locks l USING (pid)
		WHERE pid = $1 AND a.wait_event_type = 'Lock' AND a.wait_event = 'advisory' AND l.locktype = 'advisory' AND NOT l.granted`
	// Each process sleeps an hour in its first row. So the leader takes a row as well, or waits because there is none left.
	sleepsInRow = `SELECT count(*) FILTER (WHERE leader_pid = $1 AND wait_event = 'PgSleep') > 0 AND
		count(*) FILTER (WHERE pid = $1 AND wait_event IN ('PgSleep', 'ExecuteGather')) = 1
		FROM pg_stat_activity WHERE pid = $1 OR leader_pid = $1`
	// With a row for each process.
	allSleepInRow = `SELECT count(*) FILTER (WHERE leader_pid = $1 AND wait_event = 'PgSleep') > 0 AND
		count(*) FILTER (WHERE pid = $1 AND wait_event = 'PgSleep') = 1 FROM pg_stat_activity WHERE pid = $1 OR leader_pid = $1`
	waitsElsewhere = "SELECT count(*) > 0 FROM pg_locks WHERE pid <> $1 AND locktype = 'advisory' AND NOT granted"
)

// holding runs a statement until it waits, reads its plans and those of its parallel workers that sleep, and cancels it.
func holding(
	t *testing.T, session, control *pgx.Conn, c *capture.Capturer, one planCase,
) (plans *capture.Plans, workers []*capture.Plans, err, ended error) {
	t.Helper()
	ctx := context.Background()
	if _, err := control.Exec(ctx, "SELECT pg_advisory_lock(1)"); err != nil {
		t.Fatal(err)
	}
	// Also after a failure: the next statements would wait for this lock without end.
	defer control.Exec(ctx, "SELECT pg_advisory_unlock(1)") //nolint:errcheck // a session that is broken holds no lock
	done := make(chan error, 1)
	go func() {
		_, err := session.PgConn().Exec(ctx, one.sql).ReadAll()
		done <- err
	}()
	pid := int(session.PgConn().PID())
	condition := waitsForLock
	switch {
	case one.elsewhere:
		condition = waitsElsewhere
	case one.sleeps && one.running != "":
		condition = allSleepInRow
	case one.sleeps:
		condition = sleepsInRow
	}
	pgtest.Wait(t, "sleep until the lock is free", func() bool {
		select {
		case ended = <-done:
			done <- ended
			return true
		default:
		}
		var waits bool
		err := control.QueryRow(ctx, condition, pid).Scan(&waits)
		stat, failed := process.ReadStat(pid)
		return err == nil && waits && failed == nil && stat.State == 'S'
	})
	if ended == nil {
		plans, err = patientPlans(t, c, pid)
		otherLayouts(t, c, pid)
		if err == nil {
			withoutStarts(t, c, pid, plans.Levels)
		}
		workers = plansOfWorkers(t, control, c, pid)
	} else {
		err = ended
	}
	if _, failed := control.Exec(ctx, "SELECT pg_cancel_backend($1)", pid); failed == nil {
		ended = <-done
	}
	return plans, workers, err, ended
}

// patientPlans reads the plans of a process that waits. It repeats what a machine without a free processor did not do within the
// limits of a request.
func patientPlans(t *testing.T, c *capture.Capturer, pid int) (plans *capture.Plans, err error) {
	t.Helper()
	pgtest.Wait(t, "a read of the plans in time", func() bool {
		plans, err = c.Plans(context.Background(), process.Target{PID: pid, UID: -1}, false)
		return !tooSlow(err)
	})
	return plans, err
}

// patientPlanStack reads what the plans of a process are read from, like patientPlans.
func patientPlanStack(t *testing.T, c *capture.Capturer, target process.Target) (stack *plan.Stack) {
	t.Helper()
	pgtest.Wait(t, "a stack in time", func() bool {
		var err error
		stack, err = c.PlanStack(context.Background(), target)
		if err != nil && !tooSlow(err) {
			t.Fatal(err)
		}
		return err == nil
	})
	return stack
}

// patientReadPlans reads the plans that a stack has, like patientPlans.
func patientReadPlans(t *testing.T, pid int, stack *plan.Stack) (levels []*plan.Level) {
	t.Helper()
	pgtest.Wait(t, "a read of the plans in time", func() bool {
		var err error
		levels, err = capture.ReadPlans(pid, stack)
		if err != nil && !tooSlow(err) {
			t.Fatal(err)
		}
		return err == nil
	})
	return levels
}

// tooSlow reports whether an error says that a limit of a request was reached.
func tooSlow(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, process.ErrUnreachable)
}

// plansOfWorkers returns the plans of the parallel workers that sleep in their plan.
func plansOfWorkers(t *testing.T, control *pgx.Conn, c *capture.Capturer, leader int) (out []*capture.Plans) {
	t.Helper()
	const query = "SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity WHERE leader_pid = $1 AND wait_event = 'PgSleep'"
	var pids []int
	if err := control.QueryRow(context.Background(), query, leader).Scan(&pids); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		plans, err := patientPlans(t, c, pid)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, plans)
	}
	return out
}
