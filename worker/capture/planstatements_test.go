package capture_test

// statementsSetup adds what the statements of planStatements need to the tables of plansSetup.
const statementsSetup = `
CREATE TABLE d (x int, y int, z text);
INSERT INTO d SELECT i % 50, i % 70, repeat('z', 30) FROM generate_series(1, 5000) i;
CREATE INDEX d_x ON d (x);
CREATE INDEX d_y ON d (y);
CREATE TABLE e (id int PRIMARY KEY, v int);
CREATE TABLE h (id int, v int) PARTITION BY HASH (id);
CREATE TABLE h0 PARTITION OF h FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE h1 PARTITION OF h FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO h SELECT i, i % 7 FROM generate_series(1, 400) i;
CREATE INDEX h_id ON h (id);
CREATE TABLE "Order ""1""" (" A" int);
INSERT INTO "Order ""1""" VALUES (1);
CREATE TABLE reached (id int);
CREATE VIEW seen AS SELECT id, v FROM a WHERE v > 2;
CREATE MATERIALIZED VIEW kept AS SELECT id FROM a;
CREATE TABLE explained (n serial, line text);
CREATE FUNCTION held(v int) RETURNS int VOLATILE COST 100000 LANGUAGE sql AS 'SELECT hold($1) FROM b WHERE id < 4 OFFSET 0';
CREATE FUNCTION lines(v int) RETURNS SETOF int VOLATILE LANGUAGE sql ROWS 7 AS 'SELECT hold(id) FROM a WHERE v = $1 OFFSET 0';
CREATE FUNCTION looped() RETURNS int VOLATILE LANGUAGE plpgsql AS
  'DECLARE r record; BEGIN FOR r IN SELECT hold(id) FROM a ORDER BY v LOOP END LOOP; RETURN 1; END';
CREATE FUNCTION executed() RETURNS int VOLATILE LANGUAGE plpgsql AS
  $$BEGIN BEGIN EXECUTE 'SELECT max(hold(id)) FROM b WHERE a < 9'; EXCEPTION WHEN division_by_zero THEN END; RETURN 1; END$$;
CREATE FUNCTION ahead() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := (SELECT hold(count(*)) FROM b); RETURN NEW; END';
CREATE TABLE f (id int);
CREATE TRIGGER t BEFORE INSERT ON f FOR EACH ROW EXECUTE FUNCTION ahead();
CREATE FUNCTION transition() RETURNS trigger LANGUAGE plpgsql AS $$DECLARE l text; BEGIN
  FOR l IN EXPLAIN SELECT hold(n.id) FROM newer n JOIN a ON a.id = n.id LOOP INSERT INTO explained (line) VALUES (l); END LOOP;
  PERFORM hold(n.id) FROM newer n JOIN a ON a.id = n.id; RETURN NULL; END$$;
CREATE TABLE g (id int);
CREATE TRIGGER t AFTER INSERT ON g REFERENCING NEW TABLE AS newer FOR EACH STATEMENT EXECUTE FUNCTION transition();
CREATE FUNCTION remote() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END';
CREATE TABLE far (id int PRIMARY KEY, v int);
INSERT INTO far SELECT i, i FROM generate_series(1, 50) i;
CREATE TRIGGER t BEFORE UPDATE ON far FOR EACH ROW EXECUTE FUNCTION remote();
CREATE FUNCTION slow(v int) RETURNS int VOLATILE PARALLEL SAFE LANGUAGE sql AS 'SELECT $1 FROM pg_sleep(3600)';
`

// foreignSetup makes foreign tables, where the server has the modules. %s is the folder of its socket, %d its port.
const foreignSetup = `
CREATE EXTENSION file_fdw;
CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
CREATE FOREIGN TABLE lines_of_file (line text) SERVER files OPTIONS (filename 'PG_VERSION');
CREATE EXTENSION postgres_fdw;
CREATE SERVER itself FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '%s', port '%d', dbname 'postgres', async_capable 'true');
CREATE USER MAPPING FOR CURRENT_USER SERVER itself;
CREATE FOREIGN TABLE distant (id int, v int) SERVER itself OPTIONS (table_name 'far');
CREATE TABLE mixed (id int, v int) PARTITION BY RANGE (id);
CREATE FOREIGN TABLE mixed1 PARTITION OF mixed FOR VALUES FROM (0) TO (100) SERVER itself OPTIONS (table_name 'far');
CREATE FOREIGN TABLE mixed2 PARTITION OF mixed FOR VALUES FROM (100) TO (200) SERVER itself OPTIONS (table_name 'far');
`

// Settings of planStatements.
const (
	hashOnly   = "enable_mergejoin = off; SET enable_nestloop = off"
	mergeOnly  = "enable_hashjoin = off; SET enable_nestloop = off"
	nestedOnly = "enable_hashjoin = off; SET enable_mergejoin = off"
	indexOnly  = "enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off"
	bitmapOnly = "enable_seqscan = off; SET enable_indexscan = off; SET enable_indexonlyscan = off"
	inParallel = "parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 2"
)

// planStatements has all kinds of nodes of PostgreSQL 14 to 19 except custom scans, for which no module exists in the
// servers, and the ways in which a statement can run. Each is compared with EXPLAIN.
func planStatements() []planCase {
	return []planCase{
		// Scans.
		{sql: "SELECT hold(id) FROM a", running: "Seq Scan on a"},
		{sql: "SELECT hold(id) FROM a x WHERE id = 5", running: "Index Only Scan using a_pkey on a x"},
		{set: "enable_seqscan = off", sql: "SELECT hold(id) FROM a WHERE id < 5", running: "Index Only Scan using a_pkey on a"},
		{set: "enable_seqscan = off", sql: "SELECT hold(id) FROM a ORDER BY id DESC", running: "Index"},
		{set: indexOnly, sql: "SELECT hold(v) FROM a ORDER BY id DESC", running: "Index Scan Backward using a_pkey on a"},
		{set: indexOnly, sql: "SELECT v FROM a WHERE id < 9 AND hold(v) > 0", running: "Index Scan using a_pkey on a"},
		{set: bitmapOnly, sql: "SELECT hold(t) FROM b WHERE a < 3 OR a = 7", running: "Bitmap Heap Scan on b"},
		{set: bitmapOnly, sql: "SELECT hold(z) FROM d WHERE x = 20 AND y = 20", running: "Bitmap Heap Scan on d"},
		{set: bitmapOnly, sql: "SELECT z FROM d q WHERE x IN (1, 2) AND y = (SELECT hold(12)) OR x = 4", running: "Result"},
		{sql: "SELECT hold(id) FROM a WHERE ctid = '(0,3)' OR ctid = '(1,1)'", running: "Tid Scan on a"},
		{sql: "SELECT hold(id) FROM a WHERE ctid > '(0,3)' AND ctid < '(2,1)'", running: "Tid Range Scan on a"},
		{sql: "SELECT hold(x.id) FROM a x TABLESAMPLE SYSTEM (100)", running: "Sample Scan on a x"},
		{sql: "SELECT hold(v.g) FROM (VALUES (1), (2)) v(g)", running: "Values Scan on "},
		{sql: "SELECT hold(g) FROM generate_series(1, 5) g", running: "Function Scan on "},
		{sql: "SELECT hold(x.a) FROM ROWS FROM (generate_series(1, 5), generate_series(1, 3)) WITH ORDINALITY x(a, b, c)", running: "Function Scan on "},
		{sql: "SELECT hold(c) FROM XMLTABLE('/a/b' PASSING '<a><b>1</b></a>' COLUMNS c int PATH '.') x", running: "Table Function Scan on "},
		{from: 17, sql: `SELECT hold(c) FROM JSON_TABLE('[1,2]', '$[*]' COLUMNS (c int PATH '$')) j`, running: "Table Function Scan on "},
		{sql: "SELECT hold(1)", running: "Result"},
		{sql: "SELECT generate_series(1, 3), hold(2)", running: "ProjectSet"},
		{sql: "SELECT hold(generate_series(1, 3))", running: "Result"},
		{sql: "SELECT 1 WHERE hold(1) = 1", running: "Result"},
		{sql: `SELECT hold(" A") FROM "Order ""1""" "é"`, running: `Seq Scan on "Order ""1""" "é"`},
		{sql: "SELECT hold(s.id) FROM seen s", running: "Seq Scan on a"},
		{sql: "SELECT hold(id) FROM kept", running: "Seq Scan on kept"},
		{sql: "SELECT hold(oid::int) FROM pg_catalog.pg_class c WHERE relkind = 'r'", running: "Seq Scan on pg_class c"},
		{sql: "SELECT hold(x.id), (SELECT count(*) FROM a WHERE a.id = x.id), (SELECT max(id) FROM a) FROM a x", running: "Seq Scan on a x"},
		// Joins.
		{set: hashOnly, sql: "SELECT hold(a.id) FROM a JOIN b ON a.id = b.a", running: "Hash Join"},
		{set: hashOnly, sql: "SELECT count(*) FROM a LEFT JOIN (SELECT hold(a) AS h FROM b OFFSET 0) s ON a.id = s.h"},
		{set: hashOnly, sql: "SELECT hold(a.id) FROM a RIGHT JOIN b ON a.id = b.a AND a.v > 3", running: "Hash "},
		{set: hashOnly, sql: "SELECT hold(b.id) FROM a FULL JOIN b ON a.id = b.a", running: "Hash Full Join"},
		{set: hashOnly, sql: "SELECT hold(id) FROM a WHERE EXISTS (SELECT FROM b WHERE b.a = a.v)", running: "Hash "},
		{set: hashOnly, sql: "SELECT hold(id) FROM a WHERE NOT EXISTS (SELECT FROM d WHERE d.x = a.id)", running: "Hash "},
		{set: hashOnly, sql: "SELECT hold(x.x) FROM d x JOIN d y ON x.x = y.y JOIN a ON a.id = y.x JOIN b ON b.id = x.y", running: "Hash Join"},
		{set: mergeOnly, sql: "SELECT hold(a.v) FROM a JOIN b ON a.id = b.a", running: "Merge Join"},
		{set: mergeOnly, sql: "SELECT hold(a.v) FROM a FULL JOIN b ON a.id = b.a", running: "Merge Full Join"},
		{set: mergeOnly, sql: "SELECT hold(x.x) FROM d x JOIN d y ON x.x = y.y", running: "Merge Join"},
		{set: nestedOnly, sql: "SELECT hold(x.v) FROM a x, a y WHERE x.id = y.v", running: "Nested Loop"},
		{set: nestedOnly + "; SET enable_memoize = off", sql: "SELECT hold(x.v) FROM a x LEFT JOIN a y ON x.v > y.id", running: "Nested Loop Left Join"},
		{set: nestedOnly, sql: "SELECT hold(x.x) FROM d x, LATERAL (SELECT id FROM a y WHERE y.id = x.x + 1 OFFSET 0) s", running: "Nested Loop"},
		{set: nestedOnly + "; SET enable_seqscan = off", sql: "SELECT hold(y.v) FROM d x JOIN a y ON y.id = x.x", running: "Nested Loop"},
		{set: "join_collapse_limit = 1", sql: "SELECT hold(p.id) FROM a p JOIN (b q JOIN d r ON r.x = q.id) ON q.a = p.id"},
		// Aggregates, sorts, set operations.
		{sql: "SELECT v, sum(hold(id)) FROM a GROUP BY v", running: "HashAggregate"},
		{set: "enable_hashagg = off", sql: "SELECT v, sum(hold(id)) FROM a GROUP BY v", running: "GroupAggregate"},
		{sql: "SELECT v, t, sum(hold(id)) FROM a GROUP BY CUBE (v, t)", running: "MixedAggregate"},
		{set: "enable_hashagg = off", sql: "SELECT v, t, count(*), hold(1) FROM a GROUP BY GROUPING SETS ((v), (t), ())", running: "GroupAggregate"},
		{sql: "SELECT count(DISTINCT hold(id)), max(v) FILTER (WHERE id > 3) FROM a"},
		{set: "enable_hashagg = off", sql: "SELECT v FROM a GROUP BY v HAVING hold(v) > 3", running: "Group"},
		{set: "enable_partitionwise_aggregate = on", sql: "SELECT v, sum(hold(id)) FROM h GROUP BY v"},
		{set: "enable_partitionwise_join = on; SET enable_partitionwise_aggregate = on", sql: "SELECT x.id, count(hold(y.v)) FROM h x JOIN h y USING (id) GROUP BY 1"},
		{sql: "SELECT * FROM (SELECT hold(v) AS h, t FROM a OFFSET 0) s ORDER BY h", running: "Seq Scan on a"},
		{sql: "SELECT hold(id) FROM (SELECT id FROM a ORDER BY t, v OFFSET 0) s", running: "Subquery Scan on s"},
		{set: "enable_seqscan = off", sql: "SELECT hold(id) FROM (SELECT * FROM a ORDER BY id, t LIMIT 5) s", running: "Subquery Scan on s"},
		{sql: "SELECT DISTINCT ON (v) hold(id) FROM a ORDER BY v, id", running: ""},
		{set: "enable_hashagg = off", sql: "SELECT DISTINCT hold(v) FROM a"},
		{sql: "SELECT rank() OVER (PARTITION BY v ORDER BY hold(id)) FROM a"},
		{sql: "SELECT hold(id), sum(v) OVER w, row_number() OVER (ORDER BY t) FROM a WINDOW w AS (PARTITION BY v ORDER BY id ROWS 3 PRECEDING)", running: "WindowAgg"},
		{sql: "SELECT * FROM (SELECT hold(id), row_number() OVER (ORDER BY id) AS n FROM a) s WHERE n < 5"},
		{sql: "SELECT hold(id) FROM a EXCEPT SELECT a FROM b"},
		{sql: "SELECT a FROM b INTERSECT ALL SELECT hold(id) FROM a"},
		{set: "enable_hashagg = off", sql: "SELECT id FROM a INTERSECT SELECT hold(a) FROM b"},
		{set: "enable_hashagg = off", sql: "SELECT id FROM a EXCEPT ALL SELECT hold(a) FROM b"},
		{sql: "SELECT id FROM a UNION SELECT hold(a) FROM b"},
		{sql: "SELECT hold(id) FROM a LIMIT 3", running: "Seq Scan on a"},
		{sql: "SELECT id FROM a ORDER BY v FETCH FIRST hold(3) ROWS WITH TIES", running: "Limit"},
		// Appends and partitions.
		{sql: `SELECT hold(id) FROM "P q"`, running: "Seq Scan on p1"},
		{sql: `SELECT hold(id) FROM "P q" WHERE id >= 100 UNION ALL SELECT id FROM a`, running: "Seq Scan on p2"},
		{sql: "SELECT 1 AS n UNION ALL SELECT hold(id) FROM a UNION ALL SELECT x FROM d", running: "Seq Scan on a"},
		{set: indexOnly, sql: "SELECT hold(id) FROM (SELECT id FROM a UNION ALL SELECT id FROM b ORDER BY id OFFSET 0) s", running: "Subquery Scan on s"},
		{set: indexOnly, sql: "SELECT hold(id) FROM h ORDER BY id", running: "Result"},
		{
			set: "plan_cache_mode = force_generic_plan", sql: `PREPARE q(int) AS SELECT hold(id) FROM "P q" WHERE id < $1; EXECUTE q(90)`,
			explain: `PREPARE q(int) AS SELECT hold(id) FROM "P q" WHERE id < $1; EXPLAIN EXECUTE q(90); DEALLOCATE q`, running: "Seq Scan on p1",
		},
		{set: nestedOnly, sql: `SELECT hold(y.v) FROM (VALUES (7), (8)) x(id) JOIN h y ON y.id = x.id`, running: "Nested Loop"},
		// WITH, subqueries.
		{sql: "WITH c AS MATERIALIZED (SELECT hold(id) AS h FROM a) SELECT * FROM c x JOIN c y USING (h)", running: "Seq Scan on a"},
		{sql: "WITH c AS MATERIALIZED (SELECT id FROM a) SELECT hold(x.id) FROM c x WHERE id > 3", running: "CTE Scan on c x"},
		{sql: "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT hold(n + 1) FROM r WHERE n < 5) SELECT * FROM r", running: "WorkTable Scan on r"},
		{sql: "WITH RECURSIVE r(n) AS (SELECT 2 UNION SELECT hold(b.id) FROM r JOIN b ON b.a = r.n AND b.id < 50) SELECT count(*) FROM r"},
		{sql: "SELECT v, (SELECT max(hold(b.id)) FROM b WHERE b.a = a.id) FROM a", running: "Aggregate"},
		{sql: "SELECT (SELECT hold(count(*)) FROM b), v FROM a", running: "Aggregate"},
		{sql: "SELECT id FROM a WHERE id NOT IN (SELECT hold(x) FROM d)", running: "Seq Scan on d"},
		{sql: "SELECT id FROM a WHERE v < ALL (SELECT hold(x) FROM d)"},
		{sql: "SELECT id FROM a WHERE v = ANY (ARRAY(SELECT hold(x) FROM d LIMIT 3))"},
		{sql: "WITH gone AS (DELETE FROM e RETURNING id), n AS (INSERT INTO e SELECT hold(id) + 9000, 1 FROM a RETURNING id) SELECT count(*) FROM n", running: "Seq Scan on a"},
		// Modifications.
		{sql: "UPDATE a SET v = hold(v) WHERE id < 100"},
		{sql: "UPDATE a SET v = hold(d.x) FROM d WHERE d.y = a.id"},
		{sql: `UPDATE "P q" SET v = hold(v) WHERE id > 50`},
		{sql: "INSERT INTO b SELECT hold(id) + 5000, 1, 'z' FROM a"},
		{sql: "INSERT INTO a SELECT id, 3 FROM b ON CONFLICT (id) DO UPDATE SET v = hold(a.v)", running: "Insert on a"},
		{sql: "INSERT INTO reached VALUES (1), (2) RETURNING hold(id)", running: "Insert on reached"},
		{sql: `DELETE FROM "P q" WHERE hold(v) = 3`},
		{sql: "DELETE FROM b USING a WHERE a.id = b.a AND hold(a.v) = 20"},
		{sql: "SELECT hold(g) FROM (VALUES (1), (2)) v(g) FOR UPDATE"},
		{sql: "SELECT hold(id) FROM a FOR UPDATE", running: "Seq Scan on a"},
		{sql: "SELECT hold(a.id) FROM a JOIN b ON b.a = a.id FOR SHARE OF a"},
		{from: 15, sql: "MERGE INTO a USING b ON a.id = b.a WHEN MATCHED AND a.v > 2 THEN UPDATE SET v = hold(a.v) WHEN NOT MATCHED THEN INSERT VALUES (b.id, 1)", running: "Merge on a"},
		{from: 17, sql: "MERGE INTO a USING d ON a.id = d.x WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = hold(a.v) RETURNING merge_action()", running: "Merge on a"},
		{
			sql:     "BEGIN; DECLARE c CURSOR FOR SELECT * FROM a FOR UPDATE; FETCH c; UPDATE a SET v = hold(v) WHERE CURRENT OF c",
			explain: "BEGIN; DECLARE c CURSOR FOR SELECT * FROM a FOR UPDATE; FETCH c; EXPLAIN UPDATE a SET v = hold(v) WHERE CURRENT OF c; ROLLBACK",
		},
		// Other ways to run a plan.
		{sql: "BEGIN; DECLARE c CURSOR FOR SELECT hold(id) FROM a; FETCH 2 FROM c", explain: "EXPLAIN DECLARE c CURSOR FOR SELECT hold(id) FROM a", running: "Seq Scan on a"},
		{
			set: "cursor_tuple_fraction = 1", sql: "BEGIN; DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT hold(id) FROM a ORDER BY v; COMMIT",
			explain: "EXPLAIN DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT hold(id) FROM a ORDER BY v",
		},
		{sql: "CREATE TABLE made AS SELECT hold(id) FROM a", explain: "EXPLAIN CREATE TABLE made AS SELECT hold(id) FROM a", running: "Seq Scan on a"},
		{sql: "CREATE MATERIALIZED VIEW made AS SELECT hold(id) FROM a ORDER BY v", explain: "EXPLAIN CREATE MATERIALIZED VIEW made AS SELECT hold(id) FROM a ORDER BY v"},
		{sql: "EXPLAIN (ANALYZE, TIMING OFF) SELECT hold(id) FROM a", explain: "EXPLAIN SELECT hold(id) FROM a", running: "Seq Scan on a"},
		{sql: "COPY (SELECT hold(id) FROM a) TO STDOUT", explain: "EXPLAIN SELECT hold(id) FROM a", running: "Seq Scan on a"},
		{sql: "PREPARE q AS SELECT hold(id) FROM a; EXPLAIN ANALYZE EXECUTE q", explain: "PREPARE q AS SELECT hold(id) FROM a; EXPLAIN EXECUTE q; DEALLOCATE q", running: "Seq Scan on a"},
		{sql: "SELECT nested() FROM b", level: 1, source: "SELECT count(hold(v)) FROM a WHERE id < 10", explain: "EXPLAIN SELECT count(hold(v)) FROM a WHERE id < 10", running: "Aggregate"},
		{sql: "SELECT looped()", level: 1, source: "SELECT hold(id) FROM a ORDER BY v", explain: "EXPLAIN DECLARE c CURSOR FOR SELECT hold(id) FROM a ORDER BY v"},
		{sql: "DO 'BEGIN PERFORM executed(); END'", level: 1, source: "SELECT max(hold(id)) FROM b WHERE a < 9", explain: "EXPLAIN SELECT max(hold(id)) FROM b WHERE a < 9", running: "Aggregate"},
		{sql: "SELECT held(id) FROM a", level: 1, source: "SELECT hold($1) FROM b WHERE id < 4 OFFSET 0", explain: "EXPLAIN SELECT hold(1) FROM b WHERE id < 4 OFFSET 0"},
		{sql: "SELECT * FROM lines(3) l", level: 1, source: "SELECT hold(id) FROM a WHERE v = $1 OFFSET 0", explain: "PREPARE q(int) AS SELECT hold(id) FROM a WHERE v = $1 OFFSET 0; SET plan_cache_mode = force_generic_plan; EXPLAIN EXECUTE q(3); DEALLOCATE q; RESET plan_cache_mode"},
		{sql: "INSERT INTO f VALUES (1)", explain: "EXPLAIN INSERT INTO f VALUES (1)", running: "Insert on f"},
		{
			sql: "INSERT INTO g SELECT id FROM a", level: 1, source: "SELECT hold(n.id) FROM newer n JOIN a ON a.id = n.id",
			explain: "BEGIN; INSERT INTO g SELECT id FROM a; SELECT line FROM explained ORDER BY n; ROLLBACK",
		},
		// Parallel plans: the leader waits like its workers.
		{set: inParallel, sleeps: true, sql: "SELECT slow(x) FROM d", running: "Parallel Seq Scan on d"},
		{set: inParallel, sleeps: true, sql: "SELECT count(slow(x)) FROM d", running: "Partial Aggregate"},
		{set: inParallel + "; SET enable_hashagg = off", sleeps: true, sql: "SELECT x, count(*) FROM d WHERE slow(y) > 0 GROUP BY x", running: "Parallel Seq Scan on d"},
		{set: inParallel + "; SET min_parallel_index_scan_size = 0; " + "SET " + bitmapOnly, sleeps: true, sql: "SELECT slow(x) FROM d WHERE x < 20", running: "Parallel Bitmap Heap Scan on d"},
		{set: inParallel + "; SET " + hashOnly, sleeps: true, sql: "SELECT slow(p.x) FROM d p JOIN d q ON p.x = q.y AND p.z = q.z", running: "Parallel Hash Join"},
		{set: inParallel + "; SET enable_parallel_append = on; SET enable_indexscan = off; SET enable_indexonlyscan = off", sleeps: true, sql: "SELECT slow(id) FROM h"},
		// Compiled expressions.
		{jit: true, sql: "SELECT hold(id) + v * 3 FROM a WHERE id > 4 AND v < 100 AND t = 'x'"},
		{jit: true, sql: "SELECT v, sum(hold(id)) FROM a GROUP BY v"},
		{jit: true, set: hashOnly, sql: "SELECT a.id, b.t FROM a JOIN b ON a.id = b.a AND hold(a.v + b.id) > 3"},
		// Foreign tables.
		{foreign: true, sql: "SELECT hold(line) FROM lines_of_file", running: "Foreign Scan on lines_of_file"},
		{foreign: true, sql: "SELECT hold(id) FROM distant WHERE v > 3", running: "Foreign Scan on distant"},
		{foreign: true, sql: "SELECT hold(x.id) FROM distant x JOIN distant y USING (id)"},
		{foreign: true, sql: "UPDATE distant SET v = hold(v) WHERE id < 3"},
		{foreign: true, elsewhere: true, sql: "UPDATE distant SET v = v + 1", running: "Foreign Update on distant"},
		{foreign: true, sql: "SELECT hold(id) FROM mixed"},
		{foreign: true, set: "enable_partitionwise_aggregate = on", sql: "SELECT count(hold(v)) FROM mixed"},
	}
}
