package runningplan

import (
	"context"
	"fmt"
	"strings"
)

// Settings that leave the planner only one kind of plan.
const (
	onlyHashJoin  = "enable_mergejoin = off; enable_nestloop = off"
	onlyMergeJoin = "enable_hashjoin = off; enable_nestloop = off"
	onlyNestLoop  = "enable_hashjoin = off; enable_mergejoin = off"
	onlyIndexes   = "enable_seqscan = off; enable_bitmapscan = off; enable_sort = off"
	noIndexOnly   = "enable_indexonlyscan = off"
	onlyBitmaps   = "enable_seqscan = off; enable_indexscan = off; enable_indexonlyscan = off"
	parallel      = "parallel_setup_cost = 0; parallel_tuple_cost = 1; min_parallel_table_scan_size = 0; " +
		"enable_indexonlyscan = off; max_parallel_workers_per_gather = 2"
)

// row is a row of a catalog.
type row struct {
	tid string
	// before is the number of rows before this row in the order of a sequential scan, block the number of the row's block, and
	// blocks the number of blocks of the catalog.
	before, block, blocks int64
	distinct              int64 // number of blocks with rows up to and with block
}

// rows returns up to three rows of a catalog: the first rows of different blocks, without block 0.
func (r *calibration) rows(ctx context.Context, catalog string) ([]row, error) {
	const query = `WITH r AS MATERIALIZED (SELECT ctid, row_number() OVER (ORDER BY ctid) - 1 AS before,
		(ctid::text::point)[0]::bigint AS block FROM %[1]s)
		SELECT * FROM (SELECT min(ctid)::text, min(before), block, row_number() OVER (ORDER BY block),
			pg_relation_size('%[1]s') / current_setting('block_size')::bigint
			FROM r GROUP BY block) b WHERE block > 0 ORDER BY block LIMIT 3`
	found, err := r.holder.Query(ctx, fmt.Sprintf(query, catalog))
	if err != nil {
		return nil, err
	}
	var out []row
	for found.Next() {
		var one row
		if err := found.Scan(&one.tid, &one.before, &one.block, &one.distinct, &one.blocks); err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, found.Err()
}

// exercises returns all exercises. It replaces "{condition}" in their statements, see waiting.
func (r *calibration) exercises(ctx context.Context) ([]exercise, error) {
	out := append(scans(), joins()...)
	out = append(out, others()...)
	for catalog, key := range map[string]string{"pg_catalog.pg_proc": "oid", "pg_catalog.pg_attribute": "attrelid"} {
		rows, err := r.rows(ctx, catalog)
		if err != nil {
			return nil, err
		}
		for _, one := range rows {
			out = append(out, exercise{
				sql: fmt.Sprintf("SELECT {p.ctid = '%s'} FROM %s p", one.tid, catalog), running: "SeqScan", kind: "SeqScan",
				known:    map[string]any{"Scan Block": one.block + 1, "Scan Blocks Total": one.blocks},
				returned: one.before,
			}, exercise{
				settings: onlyBitmaps, sql: fmt.Sprintf("SELECT {p.ctid = '%s'} FROM %s p WHERE %s > 1", one.tid, catalog, key),
				running: "BitmapHeapScan", kind: "BitmapHeapScan", known: map[string]any{"Exact Heap Blocks": one.distinct},
			}, exercise{
				settings: "enable_seqscan = off", sql: fmt.Sprintf("SELECT {true} FROM %s WHERE ctid = '%s'", catalog, one.tid), running: "TidScan",
			})
		}
	}
	for i := range out {
		out[i].sql = r.waiting(out[i].sql)
		if len(out[i].known) == 0 || out[i].kind != "SeqScan" {
			out[i].returned = -1
		}
	}
	return out, nil
}

// waiting replaces each "{condition}" in a statement by an expression that waits for the advisory lock in a row for which the
// condition is true.
func (r *calibration) waiting(sql string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(sql, "{")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		condition, after, _ := strings.Cut(rest, "}")
		fmt.Fprintf(&b, "CASE WHEN %s THEN pg_advisory_xact_lock(%d) IS NULL END", condition, r.lock)
		sql = after
	}
}

// scans returns exercises with all kinds of scans.
func scans() []exercise {
	return []exercise{
		{settings: onlyIndexes + "; " + noIndexOnly, sql: "SELECT {true}, relname FROM pg_class WHERE oid = 1259", running: "IndexScan"},
		{settings: onlyIndexes + "; " + noIndexOnly, sql: "SELECT {oid = 16}, typname FROM pg_type t ORDER BY oid DESC", running: "IndexScan"},
		{settings: onlyIndexes, sql: "SELECT {oid = 1259}, oid FROM pg_class WHERE oid > 1000 ORDER BY oid", running: "IndexOnlyScan"},
		{settings: onlyIndexes, sql: "SELECT {oid = 1242}, oid FROM pg_proc ORDER BY oid DESC", running: ""},
		{settings: onlyBitmaps, sql: "SELECT {oid = 1259}, relname FROM pg_class x WHERE oid < 2000 OR oid = 2619", running: "BitmapHeapScan"},
		{settings: "enable_seqscan = off", sql: "SELECT {true} FROM pg_proc WHERE ctid >= '(0,0)' AND ctid < '(30,0)'", running: "TidRangeScan"},
		{sql: "SELECT {true} FROM pg_proc TABLESAMPLE SYSTEM (100)", running: "SampleScan"},
		{sql: "SELECT {g = 3} FROM (VALUES (1), (2), (3)) v(g)", running: "ValuesScan"},
		{sql: "SELECT {true}", running: "Result"},
		{sql: "SELECT {g = 5} FROM generate_series(1, 10) g", running: "FunctionScan"},
		{sql: "SELECT generate_series(1, 3), {true}", running: ""},
		{sql: "SELECT * FROM XMLTABLE('/a/b' PASSING '<a><b>1</b></a>' COLUMNS c int PATH '.') x, LATERAL (SELECT {true} OFFSET 0) y", running: ""},
	}
}

// joins returns exercises with all kinds of joins, and with nodes that prepare their inputs.
func joins() []exercise {
	const namespaces = "pg_class c %s JOIN pg_namespace n ON n.oid = c.relnamespace"
	join := func(settings, kind, running string) exercise {
		return exercise{settings: settings, sql: "SELECT {true}, n.nspname, c.relname FROM " + fmt.Sprintf(namespaces, kind), running: running}
	}
	hashed := func(memory string, outer, inner int, condition string, batch bool) exercise {
		sql := fmt.Sprintf("SELECT {%s} FROM generate_series(1, %d) x LEFT JOIN (SELECT g FROM generate_series(1, %d) g OFFSET 0) y ON y.g = x",
			condition, outer, inner)
		if batch { // wait at the last row, which is in the last batch
			sql = fmt.Sprintf("SELECT {n = %d} FROM (SELECT row_number() OVER () AS n FROM generate_series(1, %d) x "+
				"LEFT JOIN (SELECT g FROM generate_series(1, %d) g OFFSET 0) y ON y.g = x) s", outer, outer, inner)
		}
		return exercise{
			settings: onlyHashJoin + "; work_mem = '" + memory + "'", sql: sql, kind: "Hash",
			last: func(node map[string]any) map[string]any {
				out := map[string]any{"Hash Rows": actualRows(node), "Hash Batches": node["Hash Batches"], "Hash Buckets": node["Hash Buckets"]}
				if batches, _ := node["Hash Batches"].(float64); batches == 1 {
					out["Hash Memory Usage"], out["Peak Memory Usage"] = node["Peak Memory Usage"], node["Peak Memory Usage"]
					out["Hash Batch"] = batches
				} else if batch {
					out["Hash Batch"] = batches
				}
				return out
			},
		}
	}
	// shared returns an exercise with a hash table in shared memory. No worker is launched, so the leader builds the whole table.
	// Objects of users are excluded, since their number and the size of the temporary files would have no bound.
	shared := func(catalog, key, name, memory string) exercise {
		return exercise{
			settings: parallel + "; parallel_tuple_cost = 0; enable_indexscan = off; enable_bitmapscan = off; " + onlyHashJoin + "; work_mem = '" + memory + "'",
			sql: fmt.Sprintf("SELECT {true}, x.%[3]s, y.%[3]s FROM %[1]s x JOIN %[1]s y ON x.%[2]s::bigint = y.%[2]s::bigint "+
				"WHERE x.oid < 16384 AND y.oid < 16384", catalog, key, name), kind: "Hash",
			last: func(node map[string]any) map[string]any {
				out := map[string]any{
					"Shared Hash Batches": node["Hash Batches"], "Shared Hash Buckets": node["Hash Buckets"], "Shared Hash Rows": actualRows(node),
				}
				if batches, _ := node["Hash Batches"].(float64); batches == 1 {
					out["Hash Batch"] = batches
				}
				return out
			},
		}
	}
	return []exercise{
		shared("pg_proc", "oid", "proname", "4MB"), shared("pg_proc", "oid", "proname", "64kB"), shared("pg_class", "oid", "relname", "4MB"),
		join(onlyHashJoin, "", "HashJoin"), join(onlyHashJoin, "LEFT", "HashJoin"), join(onlyHashJoin, "FULL", "HashJoin"),
		join(onlyMergeJoin, "", "MergeJoin"), join(onlyMergeJoin, "LEFT", "MergeJoin"),
		join(onlyNestLoop, "", "NestLoop"), join(onlyNestLoop, "LEFT", "NestLoop"),
		{settings: onlyNestLoop + "; enable_material = on; enable_memoize = off", sql: "SELECT {true} FROM pg_namespace a, pg_namespace b", running: "NestLoop"},
		{settings: onlyHashJoin, sql: "SELECT {true} FROM pg_namespace n WHERE EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid)"},
		{settings: onlyHashJoin, sql: "SELECT {true} FROM pg_class c WHERE NOT EXISTS (SELECT FROM pg_index i WHERE i.indexrelid = c.oid)"},
		hashed("4MB", 5000, 3000, "x = 50", false), hashed("4MB", 500, 300, "x = 20", false),
		hashed("64kB", 3500, 3000, "", true), hashed("64kB", 7000, 6000, "", true),
	}
}

// actualRows returns the number of rows of the first input of a node in EXPLAIN ANALYZE; nil: the node has no input.
func actualRows(node map[string]any) any {
	inputs, _ := node["Plans"].([]any)
	if len(inputs) == 0 {
		return nil
	}
	input, _ := inputs[0].(map[string]any)
	return input["Actual Rows"]
}

// others returns exercises with aggregates, sorts, set operations, and nodes with several inputs.
func others() []exercise {
	sorted := func(memory string, rows int) exercise {
		return exercise{
			settings: "work_mem = '" + memory + "'", kind: "Sort", running: "SubqueryScan",
			sql: fmt.Sprintf("SELECT {g = %[1]d} FROM (SELECT g FROM generate_series(1, %[1]d) g ORDER BY g DESC OFFSET 0) s", rows),
			last: func(node map[string]any) map[string]any {
				if node["Sort Space Type"] == "Disk" {
					return map[string]any{"Sort Phase": "sorted on disk", "Sort Disk": node["Sort Space Used"]}
				}
				return map[string]any{
					"Sort Phase": "sorted in memory", "Sort Memory": node["Sort Space Used"], "Sort Rows": int64(rows),
				}
			},
		}
	}
	collects := func(at int) exercise {
		return exercise{
			kind: "Sort", running: "FunctionScan",
			sql:   fmt.Sprintf("SELECT g, w FROM (SELECT g, {g = %d} AS w FROM generate_series(1, 2000) g OFFSET 0) s ORDER BY w, g", at),
			known: map[string]any{"Sort Phase": "collects rows in memory", "Sort Rows": int64(at - 1)},
		}
	}
	groups := func(at int) exercise {
		return exercise{
			kind: "Agg", known: map[string]any{"HashAgg Groups": int64(at - 1)}, settings: "enable_sort = off",
			sql: fmt.Sprintf("SELECT g, count(w) FROM (SELECT g, {g = %d} AS w FROM generate_series(1, 1000) g OFFSET 0) s GROUP BY g", at),
		}
	}
	loops := func(settings string) exercise {
		return exercise{
			settings: onlyNestLoop + settings, instrumented: true,
			sql:  "SELECT {a = 3 AND b = 2} FROM (SELECT a FROM generate_series(1, 5) a OFFSET 0) x JOIN LATERAL generate_series(1, 4 + a - a) b ON true",
			rows: map[string][2]int64{"a": {3, 1}, "b": {10, 3}},
		}
	}
	return []exercise{
		sorted("4MB", 2000), sorted("4MB", 500), sorted("64kB", 6000), sorted("64kB", 9000),
		collects(777), collects(1234), groups(651), groups(300), loops(""),
		{
			sql: "SELECT {g = 70} FROM generate_series(1, 100) g", running: "FunctionScan", instrumented: true,
			rows: map[string][2]int64{"g": {69, 1}},
		},
		{sql: "SELECT bool_or({true}) FROM pg_namespace", running: ""},
		{settings: "enable_hashagg = off", sql: "SELECT nspowner, bool_or({true}) FROM pg_namespace n GROUP BY nspowner", running: ""},
		{sql: "SELECT relkind, relpersistence, {true} FROM pg_class GROUP BY relkind, relpersistence", running: ""},
		{settings: parallel, sql: "SELECT {n > 0} FROM (SELECT count(*) AS n FROM pg_attribute OFFSET 0) s", running: "SubqueryScan", kind: "Gather", known: map[string]any{"Workers Planned": int64(2)}},
		{settings: parallel + "; max_parallel_workers_per_gather = 1", sql: "SELECT {n > 0} FROM (SELECT count(*) AS n FROM pg_proc OFFSET 0) s", running: "SubqueryScan", kind: "Gather", known: map[string]any{"Workers Planned": int64(1)}},
		{settings: parallel + "; parallel_tuple_cost = 0", sql: "SELECT {true}, oid FROM pg_proc ORDER BY proname", running: ""},
		{
			sql:  "SELECT relname FROM pg_class UNION ALL SELECT typname FROM pg_type UNION ALL SELECT CASE WHEN {true} THEN nspname END FROM pg_namespace",
			kind: "Append", known: map[string]any{"Subplan": int64(3), "Subplans": int64(3)},
		},
		{
			sql:  "SELECT CASE WHEN {true} THEN relname END FROM pg_class UNION ALL SELECT typname FROM pg_type",
			kind: "Append", known: map[string]any{"Subplan": int64(1), "Subplans": int64(2)},
		},
		{settings: onlyIndexes, sql: "SELECT {true} FROM (SELECT oid FROM pg_class UNION ALL SELECT oid FROM pg_type ORDER BY oid OFFSET 0) s", running: "SubqueryScan"},
		// The parent of a UNION ALL takes its name first, as a partitioned table does. EXPLAIN then numbers the names of the
		// children.
		{sql: "SELECT {true} FROM (SELECT oid FROM pg_class UNION ALL SELECT oid FROM pg_class) AS pg_class", running: ""},
		{settings: onlyIndexes, sql: "SELECT {true} FROM (SELECT oid FROM pg_type UNION ALL SELECT oid FROM pg_type) AS pg_type ORDER BY oid", running: ""},
		{sql: "WITH c AS MATERIALIZED (SELECT oid, {true} AS w FROM pg_namespace) SELECT * FROM c x, c y", running: "SeqScan"},
		{sql: "WITH d AS MATERIALIZED (SELECT oid FROM pg_namespace) SELECT {true} FROM d, d e", running: ""},
		{sql: "WITH RECURSIVE q AS (SELECT 1 AS n UNION ALL SELECT n + CASE WHEN {n = 3} THEN 1 ELSE 1 END FROM q WHERE n < 5) SELECT * FROM q", running: "WorkTableScan"},
		{sql: "SELECT nspname, (SELECT bool_or({true}) FROM pg_class c WHERE c.relnamespace = n.oid) FROM pg_namespace n", running: ""},
		{sql: "SELECT {true}, (SELECT count(*) FROM pg_class) AS a, (SELECT count(*) FROM pg_type) AS b FROM pg_namespace n", running: "SeqScan"},
		{sql: "SELECT {true} FROM (SELECT relnamespace FROM pg_class INTERSECT SELECT oid FROM pg_namespace) s", running: ""},
		{settings: "enable_hashagg = off", sql: "SELECT {true} FROM (SELECT oid FROM pg_class EXCEPT ALL SELECT oid FROM pg_type) s", running: ""},
		{settings: "enable_hashagg = off", sql: "SELECT {true} FROM (SELECT oid FROM pg_class INTERSECT ALL SELECT relfilenode FROM pg_class) s", running: ""},
		{sql: "SELECT {true} FROM (SELECT oid FROM pg_class EXCEPT SELECT oid FROM pg_type) s", running: ""},
		{sql: "SELECT row_number() OVER (PARTITION BY relkind ORDER BY oid), {true} FROM pg_class", running: "WindowAgg"},
		{settings: "enable_hashagg = off", sql: "SELECT {true} FROM (SELECT DISTINCT relkind FROM pg_class OFFSET 0) s", running: "SubqueryScan"},
		{sql: "SELECT {true}, oid FROM pg_class LIMIT 3", running: "SeqScan"},
		{settings: "enable_hashagg = off", sql: "SELECT {relkind = 'r'}, relkind FROM pg_class GROUP BY relkind", running: "Group"},
		{settings: onlyIndexes + "; " + noIndexOnly, sql: "SELECT {true} FROM (SELECT * FROM pg_class ORDER BY oid, relname LIMIT 5) s", running: ""},
		{settings: "enable_sort = on; enable_seqscan = off", sql: "SELECT {true} FROM (SELECT relname, relkind FROM pg_class ORDER BY relname, relkind LIMIT 5 OFFSET 1) s", running: ""},
	}
}
