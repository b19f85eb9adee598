package capture_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/plan"
)

// progressSetup makes a table whose rows have the order of their ids. at(id, n) waits in the row n.
const progressSetup = `
CREATE TABLE big (id int, k int, t text);
INSERT INTO big SELECT i, i % 700, md5(i::text) || repeat('x', 60) FROM generate_series(1, 6000) i;
CREATE INDEX big_k ON big (k);
ANALYZE big;
CREATE FUNCTION restricted(v int) RETURNS int VOLATILE PARALLEL RESTRICTED LANGUAGE plpgsql AS
  'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN v; END';
`

// progressCase is a statement that waits. The query truth returns the figures of the first node of a kind that has
// progress, as JSON. If explained is set, it is the statement whose EXPLAIN ANALYZE has more of them.
type progressCase struct{ set, sql, kind, truth, explained string }

func progressCases() []progressCase {
	const at = "CASE WHEN id = %d THEN hold(id) ELSE id END"
	var out []progressCase
	for _, n := range []int{1, 2000, 3333, 6000} {
		out = append(out, progressCase{
			sql: fmt.Sprintf("SELECT "+at+" FROM big", n), kind: "SeqScan",
			truth: fmt.Sprintf(`SELECT json_build_object('Scan Block', (ctid::text::point)[0] + 1,
				'Scan Blocks Total', pg_relation_size('big') / 8192, 'Rows Returned', id - 1) FROM big WHERE id = %d`, n),
		})
	}
	sorted := func(n int, memory string) progressCase {
		return progressCase{
			set: "work_mem = '" + memory + "'",
			sql: fmt.Sprintf("SELECT hold(id) FROM (SELECT id, t FROM big WHERE id <= %d ORDER BY t OFFSET 0) s", n), kind: "Sort",
			explained: fmt.Sprintf("SELECT id FROM (SELECT id, t FROM big WHERE id <= %d ORDER BY t OFFSET 0) s", n),
		}
	}
	return append(out,
		progressCase{
			sql:  fmt.Sprintf("EXPLAIN (ANALYZE, TIMING OFF) SELECT "+at+" FROM big", 4321),
			kind: "SeqScan", truth: "SELECT '{\"Actual Rows\": 4320, \"Actual Loops\": 1}'::json",
		},
		progressCase{
			set:   "enable_seqscan = off",
			sql:   fmt.Sprintf("SELECT "+at+" FROM big WHERE ctid > '(10,0)' AND ctid < '(30,0)'", 1500),
			kind:  "TidRangeScan",
			truth: "SELECT json_build_object('Scan Block', (ctid::text::point)[0] + 1 - 10) FROM big WHERE id = 1500",
		},
		progressCase{
			set: "enable_seqscan = off; SET enable_indexscan = off", kind: "BitmapHeapScan",
			sql: fmt.Sprintf("SELECT "+at+" FROM big WHERE k = 5", 705+3*700),
			truth: `SELECT json_build_object('Exact Heap Blocks', count(DISTINCT (ctid::text::point)[0]), 'Lossy Heap Blocks', 0)
				FROM big WHERE k = 5 AND id <= 705 + 3 * 700`,
		},
		progressCase{
			set: "enable_mergejoin = off; SET enable_nestloop = off; SET work_mem = '64kB'", kind: "Hash",
			sql:   fmt.Sprintf("SELECT count(h) FROM big LEFT JOIN (SELECT id, "+at+" AS h FROM a OFFSET 0) s ON big.id = s.id", 700),
			truth: `SELECT '{"Hash Rows": 699, "Hash Batch": 1}'::json`,
		},
		progressCase{
			set: "enable_mergejoin = off; SET enable_nestloop = off; SET work_mem = '64kB'", kind: "Hash",
			sql:       "SELECT hold(y.id) FROM big x LEFT JOIN (SELECT id FROM big OFFSET 0) y ON x.k = y.id",
			explained: "SELECT y.id FROM big x LEFT JOIN (SELECT id FROM big OFFSET 0) y ON x.k = y.id",
			truth:     `SELECT '{"Hash Rows": 6000, "Hash Batch": 1}'::json`,
		},
		progressCase{
			kind: "Sort", set: "work_mem = '64MB'",
			sql:   fmt.Sprintf("SELECT * FROM (SELECT "+at+" AS h, t FROM big OFFSET 0) s ORDER BY t", 777),
			truth: `SELECT '{"Sort Rows": 776, "Sort Phase": "collects rows in memory"}'::json`,
		},
		sorted(6000, "64MB"), sorted(500, "64MB"), sorted(6000, "64kB"), sorted(5000, "128kB"),
		progressCase{
			kind: "Agg", sql: fmt.Sprintf("SELECT h %% 1000, count(*) FROM (SELECT "+at+" AS h FROM big OFFSET 0) s GROUP BY 1", 651),
			truth: `SELECT '{"HashAgg Groups": 650}'::json`,
		},
		progressCase{
			kind: "Agg", set: "enable_sort = off; SET work_mem = '64kB'", truth: `SELECT '{"HashAgg Spilled": true}'::json`,
			sql: fmt.Sprintf("SELECT h, count(*) FROM (SELECT "+at+" AS h FROM big OFFSET 0) s GROUP BY 1", 5900),
		},
		progressCase{
			kind: "ModifyTable", sql: fmt.Sprintf("INSERT INTO big SELECT "+at+" FROM big", 3000), truth: `SELECT '{"Rows Processed": 2999}'::json`,
		},
		progressCase{
			kind: "ModifyTable", sql: fmt.Sprintf("DELETE FROM big WHERE id = "+at, 4000), truth: `SELECT '{"Rows Processed": 3999}'::json`,
		},
		progressCase{
			set: "parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; " +
				"SET max_parallel_workers_per_gather = 2; SET enable_sort = on", kind: "GatherMerge",
			sql:   "SELECT restricted(id) FROM (SELECT id, k, t FROM big ORDER BY t OFFSET 0) s",
			truth: `SELECT json_build_object('Workers Planned', 2, 'Workers Launched', %workers%)`,
		},
		progressCase{
			kind: "Append", sql: fmt.Sprintf(`SELECT `+at+` FROM "P q"`, 150), truth: `SELECT '{"Subplan": 2, "Subplans": 2}'::json`,
		},
		progressCase{
			kind: "ModifyTable", sql: fmt.Sprintf("UPDATE big SET k = "+at, 2500), truth: `SELECT '{"Rows Processed": 2499}'::json`,
		},
		progressCase{
			set: "parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; " +
				"SET max_parallel_workers_per_gather = 2", kind: "Gather",
			sql: "SELECT restricted(id) FROM big", truth: `SELECT json_build_object('Workers Planned', 2, 'Workers Launched', %workers%)`,
		})
}

// progressOfPlans compares the progress of statements that wait with the truth.
func progressOfPlans(t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer) {
	t.Helper()
	server.Exec(t, progressSetup)
	t.Run("one moment", func(t *testing.T) { oneMoment(t, server, control, c) })
	t.Run("parallel scan", func(t *testing.T) { parallelScan(t, server, control, c) })
	for _, one := range progressCases() {
		t.Run(one.kind, func(t *testing.T) { compareProgress(t, server, control, c, one) })
	}
}

// oneMoment reads the block and the rows of a scan that runs. Both must be of the same stop: the rows are in the block.
func oneMoment(t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	last := map[int64]int64{0: 0} // by block from 1 on: the rows up to its end
	rows, err := control.Query(ctx, "SELECT (ctid::text::point)[0]::bigint + 1, max(id) FROM big GROUP BY 1")
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var block, id int64
		if err := rows.Scan(&block, &id); err != nil {
			t.Fatal(err)
		}
		last[block] = id
	}
	session := server.Connect(t, server.User, "postgres")
	done := make(chan error, 1)
	go func() {
		const sql = "EXPLAIN (ANALYZE, TIMING OFF) SELECT sum(length(md5(repeat(t, 50)))) FROM big"
		_, err := session.PgConn().Exec(ctx, "SET max_parallel_workers_per_gather = 0; SET jit = off").ReadAll()
		for err == nil {
			_, err = session.PgConn().Exec(ctx, sql).ReadAll()
		}
		done <- err
	}()
	compared := 0
	pgtest.Wait(t, "samples", func() bool {
		plans, err := c.Plans(ctx, process.Target{PID: int(session.PgConn().PID()), UID: -1}, false)
		if err != nil || len(plans.Levels) != 1 || plans.Levels[0].Top == nil || !plans.Figures {
			return false
		}
		walkPlan(plans.Levels[0].Top, func(n *plan.Node) {
			if n.Kind != "SeqScan" || n.Actual == nil || len(n.Progress) == 0 {
				return
			}
			block, _ := n.Progress[0].Value.(int64)
			compared++
			if got := n.Actual.Rows; got < last[block-1] || got > last[block] {
				t.Errorf("%d rows in block %d, which has %d to %d", got, block, last[block-1], last[block])
			}
		})
		return compared >= 20
	})
	cancel()
	<-done
}

// parallelScan stops the two parallel workers of a scan in known rows, ten times. The plan of each has the block of its row, and the
// number of blocks that were given to both.
func parallelScan(t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer) {
	t.Helper()
	ctx := t.Context()
	const set = "SET jit = off; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; " +
		"SET max_parallel_workers_per_gather = 2; SET parallel_leader_participation = off"
	session := server.Connect(t, server.User, "postgres")
	if _, err := session.PgConn().Exec(ctx, set).ReadAll(); err != nil {
		t.Fatal(err)
	}
	pid := int(session.PgConn().PID())
	random := rand.New(rand.NewPCG(1, 2))
	for range 10 {
		rows := []int{1 + random.IntN(3000), 3001 + random.IntN(3000)}
		var blocks []int64
		var all, version int64
		err := control.QueryRow(ctx, `SELECT array_agg(1 + (ctid::text::point)[0]::bigint ORDER BY ctid), pg_relation_size('big') / 8192,
			current_setting('server_version_num')::int / 10000 FROM big WHERE id = ANY($1)`, rows).Scan(&blocks, &all, &version)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := session.PgConn().Exec(context.WithoutCancel(ctx), fmt.Sprintf(
				"SELECT sum(CASE WHEN id IN (%d, %d) THEN slow(id) ELSE id END) FROM big", rows[0], rows[1])).ReadAll()
			done <- err
		}()
		pgtest.Wait(t, "both workers sleep", func() bool {
			var asleep int
			err := control.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE leader_pid = $1 AND wait_event = 'PgSleep'`,
				pid).Scan(&asleep)
			return err == nil && asleep == len(rows)
		})
		var got []int64
		for _, plans := range plansOfWorkers(t, control, c, pid) {
			if len(plans.Levels) == 0 || plans.Levels[0].Top == nil {
				t.Errorf("no plan: %+v", plans)
				continue
			}
			walkPlan(plans.Levels[0].Top, func(n *plan.Node) {
				figures := map[string]any{}
				for _, f := range n.Progress {
					figures[f.Name] = f.Value
				}
				if n.Kind != "SeqScan" {
					return
				}
				block, _ := figures["Scan Block"].(int64)
				given, _ := figures["Scan Blocks Given"].(int64)
				got = append(got, block)
				// Since version 17 a scan reads ahead.
				if ahead := given - blocks[1]; ahead < 0 || version < 17 && ahead > 0 || given > all ||
					figures["Scan Blocks Total"] != all {
					t.Errorf("rows %v in blocks %v of %d:\n%s", rows, blocks, all, plans.Levels[0].Text(true))
				}
			})
		}
		if slices.Sort(got); !slices.Equal(got, blocks) {
			t.Errorf("rows %v are in the blocks %v, the plans have %v", rows, blocks, got)
		}
		if _, err := control.Exec(ctx, "SELECT pg_cancel_backend($1)", pid); err != nil {
			t.Fatal(err)
		}
		<-done
	}
}

func compareProgress(t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer, one progressCase) {
	t.Helper()
	ctx := context.Background()
	session := server.Connect(t, server.User, "postgres")
	set := "SET max_parallel_workers_per_gather = 0; SET jit = off; SET hash_mem_multiplier = 1"
	if one.set != "" {
		set += "; SET " + one.set
	}
	if _, err := session.PgConn().Exec(ctx, set).ReadAll(); err != nil {
		t.Fatal(err)
	}
	plans, _, err, ended := holding(t, session, control, c, planCase{sql: one.sql})
	if err != nil {
		t.Fatal(err)
	}
	if len(plans.Levels) == 0 || plans.Levels[0].Top == nil {
		t.Fatalf("no plan: %+v; the statement ended with %v", plans, ended)
	}
	level := plans.Levels[0]
	got := map[string]any{}
	if level.Returned != nil {
		got["Rows Returned"] = float64(*level.Returned)
	}
	walkPlan(level.Top, func(n *plan.Node) {
		if n.Kind != one.kind || len(got) > 1 {
			return
		}
		for _, f := range n.Progress {
			got[f.Name] = f.Value
			if v, ok := f.Value.(int64); ok {
				got[f.Name] = float64(v)
			}
		}
		if n.Actual != nil {
			got["Actual Rows"], got["Actual Loops"] = float64(n.Actual.Rows), float64(n.Actual.Loops)
		}
	})
	want := map[string]any{}
	if one.truth != "" {
		truth := strings.ReplaceAll(one.truth, "%workers%", fmt.Sprint(got["Workers Launched"]))
		if err := control.QueryRow(ctx, truth).Scan(&want); err != nil {
			t.Fatal(err)
		}
	}
	if one.explained != "" {
		explainedProgress(t, session, one, want)
	}
	if len(want) == 0 || !plans.Figures {
		t.Errorf("nothing to compare; of one stop: %v", plans.Figures)
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %v, want %v\n%s", name, got[name], value, level.Text(true))
		}
	}
	t.Logf("%s\n%s", one.sql, level.Text(true))
}

// explainedProgress adds figures that EXPLAIN ANALYZE has at the end of the statement.
func explainedProgress(t *testing.T, session *pgx.Conn, one progressCase, want map[string]any) {
	t.Helper()
	var text string
	if err := session.QueryRow(context.Background(), "EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) "+one.explained).Scan(&text); err != nil {
		t.Fatal(err)
	}
	var explained []struct{ Plan map[string]any }
	if err := json.Unmarshal([]byte(text), &explained); err != nil {
		t.Fatal(err)
	}
	var visit func(node map[string]any)
	visit = func(node map[string]any) {
		if node["Node Type"] == one.kind {
			for _, name := range []string{"Hash Buckets", "Hash Batches", "Peak Memory Usage"} {
				if v, ok := node[name]; ok {
					want[name] = v
				}
			}
			if space, ok := node["Sort Space Used"]; ok {
				want["Sort "+fmt.Sprint(node["Sort Space Type"])] = space
			}
		}
		children, _ := node["Plans"].([]any)
		for _, child := range children {
			visit(child.(map[string]any))
		}
	}
	visit(explained[0].Plan)
}
