package runningplan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/plan"
	"pg_stat_backtrace/worker/report/units"
)

// Bounds of a calibration.
const (
	calibrationTime = 60 * time.Second
	// sharedTime replaces calibrationTime for a calibration that makes pauses (Calibrator.Share).
	sharedTime       = 15 * time.Minute
	statementTimeout = 15 * time.Second
	waitPause        = time.Millisecond
)

// Calibration is the result of comparing the plans of a server's build with EXPLAIN. Build is the build-id of the server's program.
type Calibration struct {
	Build string
	Major int
	Proof *plan.Proof
	// Differences are the fields that differed, and the statements in which they differed.
	Differences []string
	// Skipped are the statements that failed, with the reasons. Fields that occur only in these statements are not proven.
	Skipped []string
	// Cost is the processor time of the two sessions; 0: not known.
	Cost time.Duration
}

// Calibrator runs a fixed list of read-only statements in its own session, reads their plans from the memory of that session's
// process, and compares the plans with EXPLAIN.
type Calibrator struct {
	Capturer *capture.Capturer
	// Connect opens a session. Two sessions are open during a calibration.
	Connect func(ctx context.Context) (*pgx.Conn, error)
	// Contains returns the process of a session by the process id that the server sees.
	Contains func(pid int) (process.Target, error)
	// Share is the largest share of one processor that the sessions may take on average, from 0 to 1. Run makes pauses between the
	// statements for this. 0 makes no pauses.
	Share float64
	// Read reads the plans of a process. If it is nil, Capturer reads them.
	Read func(ctx context.Context, target process.Target) (*capture.Plans, error)

	observed func(o *observation) // for tests
}

// Run runs the calibration. Each statement waits for an advisory lock at a known row, and a second session holds the lock until Run
// has read the plan. So no statement is cancelled, and nothing appears in the server's log. Run fails if most statements fail.
func (c *Calibrator) Run(ctx context.Context) (*Calibration, error) {
	limit := calibrationTime
	if c.Share > 0 {
		limit = sharedTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r := &calibration{Calibrator: c, comparison: plan.NewComparison(), lock: rand.Int64()} //nolint:gosec // no secret
	var err error
	if r.runner, err = c.Connect(ctx); err != nil {
		return nil, err
	}
	defer r.runner.Close(context.WithoutCancel(ctx)) // ignore the error: the session has only read
	if r.holder, err = c.Connect(ctx); err != nil {
		return nil, err
	}
	defer r.holder.Close(context.WithoutCancel(ctx)) // ignore the error: the session has only read
	for _, session := range []*pgx.Conn{r.runner, r.holder} {
		if _, err := session.PgConn().Exec(ctx, quietly).ReadAll(); err != nil {
			return nil, err
		}
	}
	if r.target, err = c.Contains(int(r.runner.PgConn().PID())); err != nil {
		return nil, err
	}
	defer r.target.Held.Release()
	holder, err := c.Contains(int(r.holder.PgConn().PID()))
	if err != nil {
		return nil, err
	}
	defer holder.Held.Release()
	spent := newCost(c.Share, r.target.PID, holder.PID)
	all, err := r.exercises(ctx)
	if err != nil {
		return nil, err
	}
	var skipped []string
	for i := range all {
		differ := r.comparison.Differs()
		err := r.exercise(ctx, &all[i])
		if r.comparison.Differs() > differ {
			r.differing = append(r.differing, all[i].sql)
		}
		switch {
		case err == nil:
		case errors.Is(err, plan.ErrOtherTree), ctx.Err() != nil, r.runner.IsClosed(), r.holder.IsClosed():
			return nil, fmt.Errorf("%s: %w", all[i].sql, err)
		default: // this server may not have the feature
			skipped = append(skipped, fmt.Sprintf("%s: %v", all[i].sql, err))
		}
		if err := spent.add(ctx); err != nil {
			return nil, err
		}
	}
	if len(skipped) > len(all)/2 {
		return nil, fmt.Errorf("most statements failed, the last one so: %s", skipped[len(skipped)-1])
	}
	return &Calibration{
		Build: r.build, Major: r.major, Proof: r.comparison.Proof(), Differences: append(r.comparison.Differences(), r.differing...),
		Skipped: skipped, Cost: spent.used,
	}, nil
}

// calibration is a run of a Calibrator.
type calibration struct {
	*Calibrator

	runner, holder *pgx.Conn      // runner runs the statements, holder holds the lock
	target         process.Target // the process of runner
	comparison     *plan.Comparison
	lock           int64
	build          string
	differing      []string
	major          int
}

// exercise is a statement that waits at a known row.
type exercise struct {
	settings, sql string
	// running is the kind of the node that waits; empty: not compared.
	running string
	// kind is a kind of node, and known has the expected progress of the first node of this kind in the plan, by name.
	kind  string
	known map[string]any
	// last, if not nil, replaces known: it returns the expected progress from the node in EXPLAIN ANALYZE of the same statement.
	last func(explained map[string]any) map[string]any
	// returned is the expected number of returned rows; -1: not compared.
	returned int64
	// instrumented runs the statement by EXPLAIN ANALYZE. rows has the expected rows and loops of nodes by alias.
	instrumented bool
	rows         map[string][2]int64
}

const commonSettings = `SET LOCAL statement_timeout = '15s'; SET LOCAL lock_timeout = 0; SET LOCAL jit = off;
SET LOCAL synchronize_seqscans = off; SET LOCAL max_parallel_workers = 0; SET LOCAL max_parallel_workers_per_gather = 0;
SET LOCAL enable_material = off; SET LOCAL work_mem = '4MB'; SET LOCAL hash_mem_multiplier = 1; SET LOCAL search_path = pg_catalog;
SET LOCAL idle_in_transaction_session_timeout = '30s'; SET LOCAL client_min_messages = warning`

// quietly keeps the statements out of the server's log and of its statistics, and bounds their temporary files. It does nothing if
// the role is not a superuser.
const quietly = `SELECT pg_catalog.set_config(s.name, s.value, false) FROM (VALUES ('log_statement', 'none'),
	('log_min_duration_statement', '-1'), ('log_min_duration_sample', '-1'), ('log_duration', 'off'), ('log_temp_files', '-1'),
	('log_min_error_statement', 'panic'), ('log_lock_waits', 'off'), ('temp_file_limit', '1MB')) AS s (name, value)
	WHERE pg_catalog.current_setting('is_superuser') = 'on'
UNION ALL SELECT pg_catalog.set_config(s.name, s.setting, false)
	FROM (VALUES ('auto_explain.log_min_duration', '-1'), ('pg_stat_statements.track', 'none')) AS s (name, setting)
	JOIN pg_catalog.pg_settings USING (name) WHERE pg_catalog.current_setting('is_superuser') = 'on'`

// exercise runs the statement of an exercise in a transaction, and compares its plan.
func (r *calibration) exercise(ctx context.Context, e *exercise) error {
	begin := "BEGIN READ ONLY; " + commonSettings
	for setting := range strings.SplitSeq(e.settings, ";") {
		if setting = strings.TrimSpace(setting); setting != "" {
			begin += "; SET LOCAL " + setting
		}
	}
	if _, err := r.runner.PgConn().Exec(ctx, begin).ReadAll(); err != nil {
		return err
	}
	err := r.compare(ctx, e)
	// Nothing was written, so COMMIT is as good as ROLLBACK. A ROLLBACK would be counted in pg_stat_database.
	_, failed := r.runner.PgConn().Exec(ctx, "COMMIT").ReadAll()
	return errors.Join(err, failed)
}

// compare explains and runs the statement of an exercise, and compares the plan that was read from memory.
func (r *calibration) compare(ctx context.Context, e *exercise) error {
	explained, err := r.explain(ctx, "EXPLAIN (FORMAT JSON) ", e.sql)
	if err != nil {
		return err
	}
	sql := e.sql
	if e.instrumented {
		sql = "EXPLAIN (ANALYZE, TIMING OFF) " + sql
	}
	plans, err := r.hold(ctx, sql)
	if err != nil {
		return err
	}
	want := e.known
	if e.last != nil {
		analyzed, err := r.explain(ctx, "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) ", e.sql)
		if err != nil {
			return err
		}
		want = lastFigures(e, analyzed)
	}
	r.build, r.major = plans.Build, plans.Major
	o := &observation{exercise: e, sql: sql, explained: explained, want: want}
	if r.observed != nil {
		r.observed(o)
	}
	return o.compare(r.comparison, plans.Levels)
}

// observation is an exercise with the results of EXPLAIN.
type observation struct {
	*exercise

	sql             string         // the statement that ran
	explained, want map[string]any // the plan of EXPLAIN, and the expected progress of the node of kind
}

// compare compares the plan that was read from memory with EXPLAIN. It returns plan.ErrOtherTree if the trees of nodes differ.
// Differences of fields are no error: comparison has them.
func (o *observation) compare(comparison *plan.Comparison, levels []*plan.Level) error {
	if len(levels) != 1 {
		return fmt.Errorf("%w: %s", plan.ErrOtherTree, units.Count(len(levels), "statement"))
	}
	level := levels[0]
	if level.Top == nil {
		return fmt.Errorf("%w: %s", plan.ErrOtherTree, level.Reason)
	}
	if err := comparison.Tree(level.Top, o.explained); err != nil {
		return fmt.Errorf("%w:\n%s", err, level.Text(false))
	}
	if level.Source != "" { // not every way to find the statement finds its text
		comparison.Add(plan.QueryText, level.Source, o.sql)
	}
	running := ""
	visit(level.Top, func(n *plan.Node) {
		if n.Running && !n.Below {
			running = n.Kind
		}
	})
	if running != "" && o.running != "" {
		comparison.Add(plan.RunningNode, running, o.running)
	}
	if o.returned >= 0 && level.Returned != nil {
		comparison.Add(plan.RowsReturned, *level.Returned, o.returned)
	}
	o.figures(comparison, level.Top)
	return nil
}

// figures compares the progress and the rows of the nodes.
func (o *observation) figures(comparison *plan.Comparison, top *plan.Node) {
	found := false
	visit(top, func(n *plan.Node) {
		alias, _ := n.Properties[plan.Alias].(string)
		if rows, ok := o.rows[alias]; ok && n.Actual != nil {
			comparison.Add(plan.RowsSoFar, n.Actual.Rows, rows[0])
			comparison.Add(plan.LoopsSoFar, n.Actual.Loops, rows[1])
		}
		if n.Kind != o.kind || found {
			return
		}
		found = true
		for _, figure := range n.Progress {
			if value, ok := o.want[figure.Name]; ok {
				comparison.Add(plan.FigureKey(n.Kind, figure.Name), figure.Value, value)
			}
		}
	})
}

// lastFigures returns the result of e.last for the first node of the kind e.kind in EXPLAIN ANALYZE; nil: there is no such node.
func lastFigures(e *exercise, node map[string]any) map[string]any {
	if node["Node Type"] == e.kind {
		return e.last(node)
	}
	children, _ := node["Plans"].([]any)
	for _, child := range children {
		m, _ := child.(map[string]any)
		if found := lastFigures(e, m); found != nil {
			return found
		}
	}
	return nil
}

func visit(n *plan.Node, f func(*plan.Node)) {
	if n == nil {
		return
	}
	f(n)
	for _, c := range n.Children {
		visit(c, f)
	}
}

// explain returns the plan of a statement. how is the EXPLAIN command before the statement.
func (r *calibration) explain(ctx context.Context, how, sql string) (map[string]any, error) {
	results, err := r.runner.PgConn().Exec(ctx, how+sql).ReadAll()
	if err != nil {
		return nil, err
	}
	var plans []struct{ Plan map[string]any }
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return nil, errors.New("EXPLAIN returned no plan")
	}
	if err := json.Unmarshal(results[0].Rows[0][0], &plans); err != nil { //nolint:musttag // the name is PostgreSQL's
		return nil, fmt.Errorf("decode EXPLAIN: %w", err)
	}
	if len(plans) != 1 {
		return nil, errors.New("EXPLAIN returned no plan")
	}
	return plans[0].Plan, nil
}

// hold runs a statement until it waits for the lock, reads its plan, and releases the lock, so that the statement ends.
func (r *calibration) hold(ctx context.Context, sql string) (plans *capture.Plans, err error) {
	lock := strconv.FormatInt(r.lock, 10)
	if _, err := r.holder.PgConn().Exec(ctx, "SELECT pg_catalog.pg_advisory_lock("+lock+")").ReadAll(); err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		_, err := r.runner.PgConn().Exec(ctx, sql).ReadAll()
		done <- err
	}()
	ended := false
	for plans == nil && err == nil && !ended {
		var waits bool
		err = r.holder.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks WHERE NOT granted AND locktype = 'advisory' AND pid = $1)",
			int(r.runner.PgConn().PID())).Scan(&waits)
		switch {
		case err != nil:
		case waits:
			plans, err = r.read(ctx)
		default:
			select {
			case err = <-done:
				ended = true
			case <-time.After(waitPause):
			}
		}
	}
	_, failed := r.holder.PgConn().Exec(ctx, "SELECT pg_catalog.pg_advisory_unlock("+lock+")").ReadAll()
	if !ended {
		err = errors.Join(err, <-done)
	} else if err == nil {
		err = errors.New("the statement ended without waiting")
	}
	return plans, errors.Join(err, failed)
}

func (r *calibration) read(ctx context.Context) (*capture.Plans, error) {
	if r.Read != nil {
		return r.Read(ctx, r.target)
	}
	return r.Capturer.Plans(ctx, r.target, false)
}
