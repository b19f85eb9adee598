package moment_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
)

// one is a situation of one session that repeats statements.
func one(name string, statements ...string) situation {
	return situation{name: name, sessions: [][]string{statements}}
}

// with is a situation of one session after a setup.
func with(name, setup string, statements ...string) situation {
	return situation{name: name, setup: setup, sessions: [][]string{statements}}
}

const data = `
CREATE TABLE big (id int, k int, grp int, txt text);
INSERT INTO big SELECT g, (g * 7919) % 100000, g % 1000, md5(g::text) || md5((g + 1)::text) FROM generate_series(1, 200000) g;
CREATE INDEX big_id ON big (id); CREATE INDEX big_k ON big (k); CREATE INDEX big_grp ON big (grp);
CREATE TABLE small (id int PRIMARY KEY, v text, n int);
INSERT INTO small SELECT g, md5(g::text), 0 FROM generate_series(1, 1000) g;
CREATE TABLE parts (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (50000);
CREATE TABLE parts2 PARTITION OF parts FOR VALUES FROM (50000) TO (100001);
INSERT INTO parts SELECT g, md5(g::text) FROM generate_series(1, 100000) g;
CREATE INDEX parts_id ON parts (id);
CREATE TABLE docs (id int, body tsvector, words text[], j jsonb);
INSERT INTO docs SELECT g, to_tsvector('simple', md5(g::text) || ' ' || md5((g*2)::text)), ARRAY[md5(g::text), (g%100)::text],
  jsonb_build_object('a', g, 'b', md5(g::text)) FROM generate_series(1, 20000) g;
CREATE TABLE points (p point); INSERT INTO points SELECT point(random()*1000, random()*1000) FROM generate_series(1, 50000);
CREATE EXTENSION pg_trgm; CREATE EXTENSION pgcrypto; CREATE EXTENSION postgres_fdw; CREATE EXTENSION dblink; CREATE EXTENSION file_fdw;
CREATE EXTENSION pg_prewarm; CREATE EXTENSION amcheck; CREATE EXTENSION pgstattuple; CREATE EXTENSION bloom; CREATE EXTENSION tablefunc; CREATE EXTENSION hstore;
VACUUM ANALYZE;`

const only1 = "@SET enable_seqscan=off; SET enable_hashjoin=off; SET enable_mergejoin=off; SET max_parallel_workers_per_gather=0; SET jit=off"
const serial = "@SET max_parallel_workers_per_gather=0"

var serverSets = []serverSet{
	{
		name: "main",
		options: pgtest.Options{Conf: []string{"shared_buffers=8MB", "fsync=on", "autovacuum=off", "max_wal_size=4GB", "max_connections=60",
			"max_worker_processes=16", "max_parallel_workers=16", "deadlock_timeout=1s", "max_prepared_transactions=10", "wal_level=logical", "checkpoint_timeout=1h"}},
		setup:      data,
		situations: mainSituations,
	},
	{
		name: "archive",
		options: pgtest.Options{Conf: []string{"archive_mode=on", "archive_command='sleep 0.05'", "fsync=on", "autovacuum=on", "autovacuum_naptime=1s",
			"autovacuum_vacuum_cost_delay=2ms", "autovacuum_vacuum_threshold=10", "autovacuum_vacuum_scale_factor=0", "autovacuum_analyze_threshold=10", "autovacuum_analyze_scale_factor=0", "bgwriter_delay=10ms", "bgwriter_lru_maxpages=1000",
			"shared_buffers=4MB", "max_wal_size=64MB", "checkpoint_timeout=30s", "wal_level=logical", "max_logical_replication_workers=8", "max_worker_processes=16", "wal_writer_delay=10ms", "checkpoint_flush_after=256kB", "bgwriter_flush_after=64kB"}},
		setup:      data + "CREATE DATABASE sub;",
		situations: archiveSituations,
	},
	{
		name: "standby",
		options: pgtest.Options{Conf: []string{"fsync=on", "autovacuum=off", "shared_buffers=8MB", "wal_level=replica", "hot_standby=on", "synchronous_commit=local", "max_wal_size=4GB", "wal_keep_size=1GB",
			"max_prepared_transactions=10"}},
		setup:      data,
		standby:    true,
		situations: standbySituations,
	},
	{
		name:       "crash",
		options:    pgtest.Options{Conf: []string{"autovacuum=off", "shared_buffers=16MB", "max_wal_size=8GB", "checkpoint_timeout=1h"}},
		setup:      data,
		situations: crashSituations,
	},
	{
		name: "password",
		options: pgtest.Options{HBA: []string{"local all slow scram-sha-256", "local all all trust"},
			Conf: []string{"authentication_timeout=60s", "log_connections=on"}},
		setup:      "CREATE ROLE slow LOGIN PASSWORD 'x'; CREATE TABLE t (a int)",
		situations: startSituations,
	},
}

var mainSituations = []situation{
	one("seqscan", serial, "SELECT count(*) FROM big WHERE k % 7 = 3"),
	one("seqscan-filter", serial, "SELECT count(*) FROM small, generate_series(1, 500) WHERE small.n = 3"),
	one("indexscan", only1, "SELECT sum(length(txt)) FROM generate_series(1, 200000, 7) g JOIN big ON big.id = g"),
	one("indexonlyscan", only1, "@SET enable_bitmapscan=off", "SELECT count(id) FROM big WHERE id > 5"),
	one("bitmapscan", only1, "@SET enable_indexscan=off", "SELECT sum(length(txt)) FROM big WHERE k BETWEEN 1 AND 30000"),
	one("bitmapscan-lossy", only1, "@SET enable_indexscan=off; SET work_mem='64kB'", "SELECT sum(length(txt)) FROM big WHERE k BETWEEN 1 AND 60000"),
	one("bitmapand", only1, "@SET enable_indexscan=off", "SELECT sum(length(txt)) FROM big WHERE k BETWEEN 1 AND 30000 AND grp < 400"),
	one("bitmapor", only1, "@SET enable_indexscan=off", "SELECT sum(length(txt)) FROM big WHERE k BETWEEN 1 AND 30000 OR grp < 400"),
	one("tidscan", "SELECT count(*) FROM big WHERE ctid = ANY (ARRAY(SELECT ctid FROM big WHERE id < 50000))"),
	one("tidrangescan", "@SET enable_seqscan=off", "SELECT count(*) FROM big WHERE ctid > '(1,1)'"),
	one("samplescan", "SELECT count(*) FROM big TABLESAMPLE BERNOULLI (50)"),
	one("sort-memory", serial, "@SET work_mem='300MB'", "SELECT count(*) FROM (SELECT txt FROM big ORDER BY txt DESC OFFSET 0) s"),
	one("sort-int", serial, "@SET work_mem='300MB'", "SELECT count(*) FROM (SELECT k FROM big ORDER BY k % 1000, grp DESC OFFSET 0) s"),
	one("sort-disk", serial, "@SET work_mem='1MB'", "SELECT count(*) FROM (SELECT txt FROM big ORDER BY txt DESC OFFSET 0) s"),
	one("sort-disk-many", serial, "@SET work_mem='64kB'", "SELECT count(*) FROM (SELECT * FROM big ORDER BY txt DESC OFFSET 0) s"),
	one("sort-topn", serial, "@SET work_mem='4MB'", "SELECT txt FROM big ORDER BY txt DESC LIMIT 100"),
	one("sort-incremental", serial, "@SET enable_seqscan=off; SET work_mem='4MB'; SET random_page_cost=0.1", "SELECT count(*) FROM (SELECT grp, txt FROM big ORDER BY grp, txt OFFSET 0) s"),
	one("hashjoin-memory", serial, "@SET work_mem='300MB'; SET enable_mergejoin=off; SET enable_nestloop=off", "SELECT count(*) FROM big a JOIN big b ON a.id = b.k"),
	one("hashjoin-disk", serial, "@SET work_mem='256kB'; SET enable_mergejoin=off; SET enable_nestloop=off", "SELECT count(*), max(a.txt) FROM big a JOIN big b ON a.id = b.k WHERE a.txt <> b.txt"),
	one("mergejoin", serial, "@SET work_mem='300MB'; SET enable_hashjoin=off; SET enable_nestloop=off; SET enable_seqscan=off; SET enable_sort=on", "SELECT count(*) FROM big a JOIN big b ON a.id = b.id WHERE a.k + b.grp > 10"),
	one("nestloop", serial, "@SET enable_material=off", "SELECT count(*) FROM small a, small b WHERE a.n + b.n > 10"),
	one("nestloop-material", serial, "SELECT count(*) FROM small a, small b WHERE a.n + b.n > 10"),
	one("material-disk", serial, "@SET work_mem='64kB'; SET enable_hashjoin=off; SET enable_mergejoin=off; SET enable_memoize=off; SET enable_indexscan=off; SET enable_bitmapscan=off", "SELECT count(*) FROM generate_series(1, 20) g LEFT JOIN (SELECT k, txt FROM big OFFSET 0) b ON b.k > g"),
	one("hashagg-memory", serial, "@SET work_mem='300MB'; SET enable_sort=off", "SELECT count(*) FROM (SELECT txt, count(*) FROM big GROUP BY txt OFFSET 0) s"),
	one("hashagg-disk", serial, "@SET work_mem='256kB'; SET hash_mem_multiplier=1; SET enable_sort=off", "SELECT count(*) FROM (SELECT txt, count(*) FROM big GROUP BY txt OFFSET 0) s"),
	one("groupagg", serial, "@SET enable_hashagg=off; SET enable_seqscan=off; SET enable_sort=off", "SELECT count(*) FROM (SELECT id, count(*), sum(k), max(txt) FROM big GROUP BY id OFFSET 0) s"),
	one("agg-distinct", serial, "SELECT count(DISTINCT txt) FROM big", "SELECT string_agg(txt, ',' ORDER BY k) FROM big WHERE id < 50000"),
	one("agg-plain", serial, "SELECT sum(k), avg(grp), min(id), max(k), stddev(k) FROM big"),
	one("agg-array", serial, "SELECT length(string_agg(txt, ',')), array_length(array_agg(txt), 1), json_agg(k) IS NULL FROM big"),
	one("groupingsets", serial, "SELECT count(*) FROM (SELECT grp, k % 10, count(*) FROM big GROUP BY CUBE (grp, k % 10)) s"),
	one("window", serial, "SELECT max(a), max(b) FROM (SELECT sum(k) OVER (PARTITION BY grp ORDER BY id ROWS 5 PRECEDING) a, rank() OVER (ORDER BY grp) b FROM big OFFSET 0) s"),
	one("setop", serial, "SELECT count(*) FROM (SELECT id FROM big EXCEPT SELECT k FROM big) s", "SELECT count(*) FROM (SELECT id FROM big INTERSECT SELECT k FROM big) s"),
	one("unique", serial, "@SET enable_hashagg=off", "SELECT count(*) FROM (SELECT DISTINCT k FROM big) s"),
	one("recursive", "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 200000) SELECT count(*) FROM r"),
	one("recursive-union", "WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT (n * 7 + 1) % 100003 FROM r) SELECT count(*) FROM r"),
	one("cte", serial, "WITH c AS MATERIALIZED (SELECT id, k FROM big) SELECT count(*) FROM c a WHERE a.k > 5 AND a.id > 7"),
	one("memoize", serial, "@SET enable_hashjoin=off; SET enable_mergejoin=off; SET enable_seqscan=on; SET enable_material=off", "SELECT count(*), max(s.v) FROM big b JOIN small s ON s.id = b.grp"),
	one("functionscan", "SELECT count(*) FROM generate_series(1, 1000000) g"),
	one("functionscan-disk", "@SET work_mem='64kB'", "SELECT count(*) FROM generate_series(1, 1000000) g"),
	one("result-srf", "SELECT count(*) FROM (SELECT generate_series(1, 1000000) OFFSET 0) g"),
	one("unnest", "SELECT count(*) FROM (SELECT unnest(ARRAY(SELECT k FROM big)) OFFSET 0) g", "SELECT count(*) FROM (SELECT regexp_split_to_table(repeat('a,b,', 100000), ',') OFFSET 0) g"),
	one("append", serial, "SELECT count(*) FROM parts WHERE v > 'a'"),
	one("mergeappend", serial, "@SET enable_seqscan=off; SET enable_sort=off; SET enable_bitmapscan=off", "SELECT count(*) FROM (SELECT * FROM parts UNION ALL SELECT id, txt FROM big ORDER BY id OFFSET 0) s"),
	one("subplan", serial, "SELECT count((SELECT max(n) FROM small s WHERE s.n = b.id)) FROM big b WHERE b.id < 2000"),
	one("subplan-hashed", serial, "SELECT count(*) FROM big b WHERE b.id NOT IN (SELECT k FROM big)"),
	with("foreignscan", `CREATE SERVER IF NOT EXISTS me FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '%SOCKET%', port '%PORT%', dbname 'postgres');;
		CREATE USER MAPPING IF NOT EXISTS FOR postgres SERVER me;;CREATE FOREIGN TABLE IF NOT EXISTS far (id int, k int, grp int, txt text) SERVER me OPTIONS (table_name 'big')`,
		"SELECT count(*) FROM far WHERE txt || 'a' > random()::text", "SELECT count(*) FROM far JOIN big ON far.id = big.id WHERE far.k + random() > 1", "SELECT pg_sleep(0.1) FROM far LIMIT 1"),
	with("foreignmodify", "CREATE TABLE IF NOT EXISTS farw (id int, v text);;CREATE FOREIGN TABLE IF NOT EXISTS farwf (id int, v text) SERVER me OPTIONS (table_name 'farw')",
		"INSERT INTO farwf SELECT g, 'x' FROM generate_series(1, 300) g"),
	one("dblink", "SELECT * FROM dblink('host=%SOCKET% port=%PORT% dbname=postgres user=postgres', 'SELECT count(*) FROM big, generate_series(1, 3)') AS t(n bigint)"),
	with("filefdw", "CREATE SERVER IF NOT EXISTS files FOREIGN DATA WRAPPER file_fdw;;COPY big TO '%DATA%/big.csv' (FORMAT csv);;CREATE FOREIGN TABLE IF NOT EXISTS csv (id int, k int, grp int, txt text) SERVER files OPTIONS (filename '%DATA%/big.csv', format 'csv')",
		"SELECT count(*) FROM csv"),
	one("gather", "@SET parallel_setup_cost=0; SET parallel_tuple_cost=0; SET min_parallel_table_scan_size=0; SET max_parallel_workers_per_gather=2", "SELECT count(*) FROM big WHERE md5(txt) > 'a'", "SELECT id FROM big WHERE txt > 'a'"),
	one("gathermerge", "@SET parallel_setup_cost=0; SET parallel_tuple_cost=0; SET min_parallel_table_scan_size=0; SET max_parallel_workers_per_gather=2; SET work_mem='64MB'", "SELECT count(*) FROM (SELECT txt FROM big ORDER BY txt OFFSET 0) s"),
	one("parallelhash", "@SET parallel_setup_cost=0; SET parallel_tuple_cost=0; SET min_parallel_table_scan_size=0; SET max_parallel_workers_per_gather=2; SET work_mem='64MB'; SET enable_mergejoin=off; SET enable_nestloop=off", "SELECT count(*) FROM big a JOIN big b ON a.id = b.k"),
	one("parallelhash-disk", "@SET parallel_setup_cost=0; SET parallel_tuple_cost=0; SET min_parallel_table_scan_size=0; SET max_parallel_workers_per_gather=2; SET work_mem='128kB'; SET enable_mergejoin=off; SET enable_nestloop=off", "SELECT count(*), max(a.txt) FROM big a JOIN big b ON a.id = b.k"),
	one("parallelbitmap", "@SET parallel_setup_cost=0; SET parallel_tuple_cost=0; SET min_parallel_table_scan_size=0; SET max_parallel_workers_per_gather=2; SET enable_seqscan=off; SET enable_indexscan=off", "SELECT count(txt) FROM big WHERE k < 50000"),
	one("parallel-start", "@SET parallel_setup_cost=0; SET parallel_tuple_cost=0; SET min_parallel_table_scan_size=0; SET max_parallel_workers_per_gather=4; SET debug_parallel_query=on; SET force_parallel_mode=on", "SELECT count(*) FROM small", "SELECT max(id) FROM small"),
	with("insert", "CREATE TABLE IF NOT EXISTS ins (id int, v text);;TRUNCATE ins", "INSERT INTO ins SELECT g, md5(g::text) FROM generate_series(1, 100000) g"),
	with("insert-index", "CREATE TABLE IF NOT EXISTS insi (id int, v text);;CREATE INDEX IF NOT EXISTS insi_v ON insi (v)", "INSERT INTO insi SELECT g, md5(random()::text) FROM generate_series(1, 50000) g"),
	with("insert-unique", "CREATE TABLE IF NOT EXISTS insu (id uuid PRIMARY KEY)", "INSERT INTO insu SELECT gen_random_uuid() FROM generate_series(1, 50000) g"),
	with("insert-gin", "CREATE TABLE IF NOT EXISTS insg (w text[]);;CREATE INDEX IF NOT EXISTS insg_w ON insg USING gin (w) WITH (fastupdate=off)", "INSERT INTO insg SELECT ARRAY[md5(g::text), (g%100)::text] FROM generate_series(1, 20000) g"),
	with("insert-gin-pending", "CREATE TABLE IF NOT EXISTS insgp (w text[]);;CREATE INDEX IF NOT EXISTS insgp_w ON insgp USING gin (w) WITH (fastupdate=on, gin_pending_list_limit=64)", "INSERT INTO insgp SELECT ARRAY[md5(random()::text), (g%100)::text] FROM generate_series(1, 20000) g"),
	with("insert-gist", "CREATE TABLE IF NOT EXISTS insp (p point);;CREATE INDEX IF NOT EXISTS insp_p ON insp USING gist (p)", "INSERT INTO insp SELECT point(random(), random()) FROM generate_series(1, 20000) g"),
	with("insert-spgist", "CREATE TABLE IF NOT EXISTS inss (p point);;CREATE INDEX IF NOT EXISTS inss_p ON inss USING spgist (p)", "INSERT INTO inss SELECT point(random(), random()) FROM generate_series(1, 20000) g"),
	with("insert-hash", "CREATE TABLE IF NOT EXISTS insh (v text);;CREATE INDEX IF NOT EXISTS insh_v ON insh USING hash (v)", "INSERT INTO insh SELECT md5(random()::text) FROM generate_series(1, 20000) g"),
	with("insert-brin", "CREATE TABLE IF NOT EXISTS insb (v int);;CREATE INDEX IF NOT EXISTS insb_v ON insb USING brin (v) WITH (pages_per_range=1, autosummarize=off)", "INSERT INTO insb SELECT g FROM generate_series(1, 20000) g"),
	with("insert-toast", "CREATE TABLE IF NOT EXISTS instoast (v text);;TRUNCATE instoast", "INSERT INTO instoast SELECT string_agg(md5(g::text || i::text), '') FROM generate_series(1, 400) g, generate_series(1, 30) i GROUP BY i"),
	with("insert-compress", "CREATE TABLE IF NOT EXISTS inscomp (v text);;TRUNCATE inscomp", "INSERT INTO inscomp SELECT repeat('abcdefghij' || g, 20000) FROM generate_series(1, 30) g"),
	with("toast-fetch", "CREATE TABLE IF NOT EXISTS toasted (v text, w text);;ALTER TABLE toasted ALTER w SET STORAGE external;;INSERT INTO toasted SELECT repeat('abcdefghij' || g, 20000), string_agg(md5(i::text), '') FROM generate_series(1, 30) g, generate_series(1, 2000) i GROUP BY g", "SELECT sum(length(v)), sum(length(w)) FROM toasted, generate_series(1, 10)"),
	with("update", "CREATE TABLE IF NOT EXISTS upd (id int PRIMARY KEY, n int, v text);;TRUNCATE upd;;INSERT INTO upd SELECT g, 0, 'x' FROM generate_series(1, 20000) g", "UPDATE upd SET n = n + 1"),
	with("delete", "CREATE TABLE IF NOT EXISTS del (id int PRIMARY KEY, v text)", "INSERT INTO del SELECT g, 'x' FROM generate_series(1, 20000) g", "DELETE FROM del"),
	with("upsert", "CREATE TABLE IF NOT EXISTS ups (id int PRIMARY KEY, n int)", "INSERT INTO ups SELECT g, 0 FROM generate_series(1, 20000) g ON CONFLICT (id) DO UPDATE SET n = ups.n + 1"),
	with("merge", "CREATE TABLE IF NOT EXISTS mrg (id int PRIMARY KEY, n int)", "MERGE INTO mrg USING (SELECT g FROM generate_series(1, 20000) g) s ON mrg.id = s.g WHEN MATCHED THEN UPDATE SET n = n + 1 WHEN NOT MATCHED THEN INSERT VALUES (s.g, 1)"),
	with("fk-insert", "CREATE TABLE IF NOT EXISTS child (id int, p int REFERENCES small);;TRUNCATE child", "INSERT INTO child SELECT g, 1 + g % 1000 FROM generate_series(1, 30000) g"),
	with("fk-delete", "CREATE TABLE IF NOT EXISTS pare (id int PRIMARY KEY);;CREATE TABLE IF NOT EXISTS chil (p int REFERENCES pare ON DELETE CASCADE)", "BEGIN", "INSERT INTO pare SELECT generate_series(1, 1000)", "INSERT INTO chil SELECT generate_series(1, 1000)", "DELETE FROM pare", "ROLLBACK"),
	with("fk-update", "CREATE TABLE IF NOT EXISTS pare2 (id int PRIMARY KEY);;CREATE TABLE IF NOT EXISTS chil2 (p int REFERENCES pare2)", "BEGIN", "INSERT INTO pare2 SELECT generate_series(1, 1000)", "INSERT INTO chil2 SELECT generate_series(1, 500)", "DELETE FROM pare2 WHERE id > 500", "UPDATE pare2 SET id = -id WHERE id > 501", "ROLLBACK"),
	with("trigger", `CREATE TABLE IF NOT EXISTS trg (id int, n int);;CREATE OR REPLACE FUNCTION trgf() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.n := NEW.n + 1; RETURN NEW; END $$;;
		CREATE OR REPLACE FUNCTION trga() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM 1 FROM small WHERE small.id = NEW.id; RETURN NULL; END $$;;DROP TRIGGER IF EXISTS b ON trg;;DROP TRIGGER IF EXISTS a ON trg;;
		CREATE TRIGGER b BEFORE INSERT ON trg FOR EACH ROW EXECUTE FUNCTION trgf();;CREATE TRIGGER a AFTER INSERT ON trg FOR EACH ROW EXECUTE FUNCTION trga()`, "INSERT INTO trg SELECT g, 1 FROM generate_series(1, 10000) g"),
	one("lockrows", "BEGIN", "SELECT count(*) FROM (SELECT id FROM small FOR UPDATE) s", "ROLLBACK"),
	with("copy-from", "CREATE TABLE IF NOT EXISTS cpy (id int, k int, grp int, txt text);;COPY big TO '%DATA%/big.tsv';;TRUNCATE cpy", "COPY cpy FROM '%DATA%/big.tsv'", "TRUNCATE cpy"),
	one("copy-to", "COPY big TO '/dev/null'"),
	one("copy-query", "COPY (SELECT id, txt FROM big WHERE k > 5) TO '/dev/null' (FORMAT csv)"),
	one("send-rows", "SELECT * FROM big"),
	{name: "send-blocked", act: func(r *recording) {
		r.silent("postgres", "SELECT * FROM big")
		r.silent("postgres", "COPY big TO STDOUT")
	}},
	{name: "copy-client", act: copyFromSlowClient},
	{name: "idle", act: func(r *recording) { r.silent("postgres", ""); r.silent("postgres", "BEGIN; SELECT 1") }},
	one("sleep", "SELECT pg_sleep(0.3)"),
	one("numeric", "SELECT sum(((g::numeric ^ 5) / (g + 3.7)) * sqrt(g::numeric)) FROM generate_series(1, 3000) g", "SELECT factorial(2000)"),
	one("regex", "SELECT count(*) FROM small a, generate_series(1, 30) WHERE a.v ~ '(a|b)+c.*[0-9]+(d|e)f'", "SELECT regexp_replace(repeat('abc123', 5000), '([a-c]+)([0-9]+)', '\\2\\1', 'g')"),
	one("regex-compile", "SELECT count(*) FROM generate_series(1, 200) g WHERE 'abc' ~ ('(a|b){1,40}c.*[0-9]+(d|e)f{2,30}' || g)"),
	one("like", serial, "SELECT count(*) FROM big WHERE txt LIKE '%a%b%c%d%e%'"),
	one("json", "SELECT count((j::text)::jsonb) FROM docs", "SELECT count(j->>'b') FROM docs WHERE j @> '{\"a\": 7}'"),
	one("jsonpath", "SELECT count(*) FROM docs WHERE jsonb_path_exists(j, '$.a ? (@ > 7)')"),
	one("tsvector", "SELECT count(to_tsvector('english', txt || ' the quick brown foxes are running')) FROM big WHERE id < 5000"),
	one("tsrank", "SELECT sum(ts_rank(body, to_tsquery('simple', 'a | b:*'))) FROM docs WHERE body @@ to_tsquery('simple', 'a:* | b:*')"),
	one("trgm", "SELECT sum(similarity(txt, 'abcdefabcdef')) FROM big WHERE id < 20000"),
	one("crypt", "SELECT crypt('secret', gen_salt('bf', 8))"),
	one("sha", "SELECT max(sha256(repeat(txt, 20)::bytea)::text) FROM big WHERE id < 20000", "SELECT max(md5(repeat(txt, 20))) FROM big WHERE id < 20000"),
	one("format-date", "SELECT max(to_char(now() + g * interval '1 s', 'YYYY-MM-DD HH24:MI:SS TMDay')) FROM generate_series(1, 50000) g"),
	one("parse-date", "SELECT max(('2024-01-01 00:00:' || (g % 60))::timestamp) FROM generate_series(1, 100000) g"),
	one("collate", serial, "@SET work_mem='300MB'", `SELECT count(*) FROM (SELECT txt FROM big ORDER BY txt COLLATE "en_US.utf8" OFFSET 0) s`, `SELECT count(*) FROM big WHERE txt COLLATE "C.UTF-8" > 'a'`),
	one("array-ops", "SELECT count(*) FROM docs WHERE words && ARRAY['1','2','3']", "SELECT length((array_agg(k) || 5)::text) FROM big"),
	one("bigin", "SELECT count(*) FROM small, generate_series(1, 100) WHERE small.v = ANY (ARRAY['a','b','c','d','e','f','g'])"),
	one("crosstab", "SELECT * FROM crosstab('SELECT grp, k % 3, count(*) FROM big GROUP BY 1, 2 ORDER BY 1, 2') AS t(a int, b bigint, c bigint, d bigint)"),
	with("gin-search", "CREATE INDEX IF NOT EXISTS docs_body ON docs USING gin (body);;CREATE INDEX IF NOT EXISTS docs_words ON docs USING gin (words);;VACUUM ANALYZE docs", "@SET enable_seqscan=off", "SELECT count(*) FROM docs WHERE words @> ARRAY['7'] OR words @> ARRAY['8']", "SELECT count(*) FROM docs WHERE body @@ to_tsquery('simple', 'a:* & b:*')"),
	with("gist-search", "CREATE INDEX IF NOT EXISTS points_p ON points USING gist (p);;VACUUM ANALYZE points", "@SET enable_seqscan=off; SET enable_bitmapscan=off", "SELECT count(*) FROM generate_series(1, 100) g, points WHERE p <@ box(point(g, g), point(g + 100, g + 100))", "SELECT count(*) FROM (SELECT p FROM points ORDER BY p <-> point(500, 500) OFFSET 0) s"),
	with("spgist-search", "CREATE TABLE IF NOT EXISTS spoints AS SELECT * FROM points;;CREATE INDEX IF NOT EXISTS spoints_p ON spoints USING spgist (p);;VACUUM ANALYZE spoints", "@SET enable_seqscan=off", "SELECT count(*) FROM generate_series(1, 100) g, spoints WHERE p <@ box(point(g, g), point(g + 100, g + 100))"),
	with("hash-search", "CREATE TABLE IF NOT EXISTS hsh AS SELECT txt FROM big;;CREATE INDEX IF NOT EXISTS hsh_t ON hsh USING hash (txt);;VACUUM ANALYZE hsh", only1, "SELECT count(*) FROM big JOIN hsh ON hsh.txt = big.txt WHERE big.id < 50000"),
	with("brin-search", "CREATE TABLE IF NOT EXISTS brn AS SELECT id, txt FROM big;;CREATE INDEX IF NOT EXISTS brn_i ON brn USING brin (id) WITH (pages_per_range=1);;VACUUM ANALYZE brn", "@SET enable_seqscan=off", "SELECT count(*) FROM generate_series(1, 300) g, LATERAL (SELECT 1 FROM brn WHERE brn.id BETWEEN g * 50 AND g * 50 + 100 OFFSET 0) s"),
	with("bloom-search", "CREATE TABLE IF NOT EXISTS blm AS SELECT id, k FROM big;;CREATE INDEX IF NOT EXISTS blm_i ON blm USING bloom (id, k);;VACUUM ANALYZE blm", "@SET enable_seqscan=off", "SELECT count(*) FROM blm WHERE id = 7 AND k = 5"),

	with("create-index", "DROP INDEX IF EXISTS ci", serial, "@SET maintenance_work_mem='64MB'; SET max_parallel_maintenance_workers=0", "CREATE INDEX ci ON big (txt)", "DROP INDEX ci"),
	with("create-index-disk", "DROP INDEX IF EXISTS ci", "@SET maintenance_work_mem='1MB'; SET max_parallel_maintenance_workers=0", "CREATE INDEX ci ON big (txt)", "DROP INDEX ci"),
	with("create-index-parallel", "DROP INDEX IF EXISTS ci;;ALTER TABLE big SET (parallel_workers=2)", "@SET maintenance_work_mem='128MB'; SET max_parallel_maintenance_workers=2; SET min_parallel_table_scan_size=0", "CREATE INDEX ci ON big (txt)", "DROP INDEX ci"),
	with("create-index-gin", "ALTER TABLE big RESET (parallel_workers);;DROP INDEX IF EXISTS cig", "@SET maintenance_work_mem='2MB'; SET max_parallel_maintenance_workers=0", "CREATE INDEX cig ON docs USING gin (body)", "DROP INDEX cig"),
	with("create-index-gist", "DROP INDEX IF EXISTS cigi", "CREATE INDEX cigi ON points USING gist (p)", "DROP INDEX cigi"),
	with("create-index-gist-trgm", "DROP INDEX IF EXISTS cigt", "CREATE INDEX cigt ON small USING gist (v gist_trgm_ops)", "DROP INDEX cigt"),
	with("create-index-spgist", "DROP INDEX IF EXISTS cisp", "CREATE INDEX cisp ON points USING spgist (p)", "DROP INDEX cisp"),
	with("create-index-hash", "DROP INDEX IF EXISTS cih", "CREATE INDEX cih ON big USING hash (txt)", "DROP INDEX cih"),
	with("create-index-brin", "DROP INDEX IF EXISTS cib", "@SET max_parallel_maintenance_workers=0", "CREATE INDEX cib ON big USING brin (id) WITH (pages_per_range=1)", "DROP INDEX cib"),
	with("create-index-concurrently", "DROP INDEX IF EXISTS cic", "@SET max_parallel_maintenance_workers=0", "CREATE INDEX CONCURRENTLY cic ON big (txt)", "DROP INDEX cic"),
	{name: "create-index-concurrently-wait", setup: "DROP INDEX IF EXISTS cic", sessions: [][]string{{"BEGIN; INSERT INTO small VALUES (100001, 'a', 1)", "SELECT pg_sleep(0.7)", "ROLLBACK"}, {"@SELECT pg_sleep(0.1)", "CREATE INDEX CONCURRENTLY cic ON small (v)", "DROP INDEX CONCURRENTLY cic"}}, seconds: 3},
	{name: "create-index-concurrently-old", setup: "DROP INDEX IF EXISTS cic", sessions: [][]string{{"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM docs LIMIT 1", "SELECT pg_sleep(0.9)", "ROLLBACK"}, {"@SELECT pg_sleep(0.1)", "CREATE INDEX CONCURRENTLY cic ON small (v)", "DROP INDEX cic"}}, seconds: 3},
	one("reindex", "@SET max_parallel_maintenance_workers=0", "REINDEX TABLE big"),
	one("reindex-concurrently", "@SET max_parallel_maintenance_workers=0", "REINDEX INDEX CONCURRENTLY big_k"),
	with("cluster", "CREATE TABLE IF NOT EXISTS clu AS SELECT * FROM big;;CREATE INDEX IF NOT EXISTS clu_k ON clu (k)", "CLUSTER clu USING clu_k", "@SET enable_indexscan=off", "CLUSTER clu USING clu_k"),
	one("vacuum-full", "VACUUM FULL big"),
	with("alter-rewrite", "CREATE TABLE IF NOT EXISTS alt AS SELECT * FROM big", "ALTER TABLE alt ALTER id TYPE bigint", "ALTER TABLE alt ALTER id TYPE int"),
	with("alter-check", "CREATE TABLE IF NOT EXISTS alt AS SELECT * FROM big", "ALTER TABLE alt ADD CONSTRAINT c CHECK (k >= 0)", "ALTER TABLE alt DROP CONSTRAINT c", "ALTER TABLE alt ALTER k SET NOT NULL", "ALTER TABLE alt ALTER k DROP NOT NULL"),
	with("alter-fk", "CREATE TABLE IF NOT EXISTS altf AS SELECT id, 1 + k % 1000 AS p FROM big", serial, "ALTER TABLE altf ADD CONSTRAINT f FOREIGN KEY (p) REFERENCES small", "ALTER TABLE altf DROP CONSTRAINT f"),
	with("alter-tablespace", "ALTER TABLE big SET LOGGED", "ALTER TABLE big SET TABLESPACE pg_global"),
	with("alter-unlogged", "CREATE TABLE IF NOT EXISTS alu AS SELECT * FROM big", "ALTER TABLE alu SET UNLOGGED", "ALTER TABLE alu SET LOGGED"),
	with("attach-partition", "CREATE TABLE IF NOT EXISTS parts3 AS SELECT id + 200000 AS id, txt AS v FROM big", "ALTER TABLE parts ATTACH PARTITION parts3 FOR VALUES FROM (200000) TO (500000)", "ALTER TABLE parts DETACH PARTITION parts3"),
	one("create-table-as", serial, "CREATE TABLE cta AS SELECT * FROM big", "DROP TABLE cta"),
	with("refresh", "CREATE MATERIALIZED VIEW IF NOT EXISTS mv AS SELECT id, md5(txt) m FROM big", serial, "REFRESH MATERIALIZED VIEW mv"),
	with("refresh-concurrently", "CREATE MATERIALIZED VIEW IF NOT EXISTS mvc AS SELECT id, v FROM small;;CREATE UNIQUE INDEX IF NOT EXISTS mvc_i ON mvc (id)", "REFRESH MATERIALIZED VIEW CONCURRENTLY mvc"),
	with("truncate", "CREATE TABLE IF NOT EXISTS tru (id int PRIMARY KEY, v text)", "INSERT INTO tru SELECT g, 'x' FROM generate_series(1, 10) g", "TRUNCATE tru"),
	one("drop-table", "CREATE TABLE dro (id int PRIMARY KEY, v text)", "DROP TABLE dro"),
	one("create-database", "CREATE DATABASE cdb", "DROP DATABASE cdb"),
	{name: "drop-database-wait", setup: "CREATE DATABASE used", act: func(r *recording) {
		conn, err := pgconn.Connect(r.ctx, r.server.DSN("postgres", "used"))
		if err != nil {
			r.t.Log(err)
			return
		}
		defer conn.Close(context.Background())
		r.loop(r.server, "DROP DATABASE used")
		<-r.ctx.Done()
	}},
	one("create-database-copy", "DROP DATABASE IF EXISTS cdf", "CREATE DATABASE cdf STRATEGY file_copy"),
	one("temp-table", "CREATE TEMP TABLE tmp AS SELECT * FROM big WHERE id < 30000", "SELECT count(*) FROM tmp", "DROP TABLE tmp"),
	one("temp-discard", "CREATE TEMP TABLE tmp (a int)", "DISCARD ALL"),
	one("analyze", "ANALYZE big", "ANALYZE docs"),
	with("vacuum", "CREATE TABLE IF NOT EXISTS vac (id int PRIMARY KEY, k int, txt text);;CREATE INDEX IF NOT EXISTS vac_k ON vac (k)", "TRUNCATE vac", "INSERT INTO vac SELECT id, k, txt FROM big WHERE id < 60000", "DELETE FROM vac WHERE id % 3 = 0", "VACUUM vac"),
	with("vacuum-gin", "CREATE TABLE IF NOT EXISTS vacg (w text[]);;CREATE INDEX IF NOT EXISTS vacg_w ON vacg USING gin (w)", "INSERT INTO vacg SELECT words FROM docs", "DELETE FROM vacg", "VACUUM vacg"),
	with("vacuum-gist", "CREATE TABLE IF NOT EXISTS vacp (p point);;CREATE INDEX IF NOT EXISTS vacp_p ON vacp USING gist (p)", "INSERT INTO vacp SELECT p FROM points LIMIT 20000", "DELETE FROM vacp", "VACUUM vacp"),
	with("vacuum-hash", "CREATE TABLE IF NOT EXISTS vach (v text);;CREATE INDEX IF NOT EXISTS vach_v ON vach USING hash (v)", "INSERT INTO vach SELECT txt FROM big WHERE id < 20000", "DELETE FROM vach", "VACUUM vach"),
	with("vacuum-truncate", "CREATE TABLE IF NOT EXISTS vact (id int, v text)", "TRUNCATE vact", "INSERT INTO vact SELECT id, txt FROM big", "DELETE FROM vact WHERE id > 10", "VACUUM vact"),
	with("vacuum-freeze", "CREATE TABLE IF NOT EXISTS vacf (id int, v text)", "TRUNCATE vacf", "INSERT INTO vacf SELECT id, txt FROM big WHERE id < 60000", "VACUUM FREEZE vacf"),
	one("vacuum-delay", "@SET vacuum_cost_delay=20; SET vacuum_cost_limit=50", "VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) big"),
	with("vacuum-parallel", "CREATE TABLE IF NOT EXISTS vacpar (id int PRIMARY KEY, k int, txt text);;CREATE INDEX IF NOT EXISTS vacpar_k ON vacpar (k);;CREATE INDEX IF NOT EXISTS vacpar_t ON vacpar (txt)", "@SET min_parallel_index_scan_size=0", "INSERT INTO vacpar SELECT id, k, txt FROM big WHERE id < 60000", "DELETE FROM vacpar", "VACUUM (PARALLEL 2) vacpar"),
	{name: "vacuum-pin", setup: "CREATE TABLE IF NOT EXISTS pin (a int);;TRUNCATE pin;;INSERT INTO pin SELECT generate_series(1, 1000);;DELETE FROM pin WHERE a > 500", sessions: [][]string{{"@BEGIN; DECLARE c CURSOR FOR SELECT * FROM pin; FETCH 5 FROM c", "SELECT pg_sleep(1)"}, {"@SELECT pg_sleep(0.3)", "VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) pin"}}, seconds: 2.5},
	one("checkpoint", "INSERT INTO small SELECT g, 'x', 1 FROM generate_series(2000, 12000) g", "CHECKPOINT", "DELETE FROM small WHERE id >= 2000", "CHECKPOINT"),
	with("prune", "CREATE TABLE IF NOT EXISTS pru (id int, n int) WITH (fillfactor=50);;TRUNCATE pru;;INSERT INTO pru SELECT g, 0 FROM generate_series(1, 200) g", "UPDATE pru SET n = n + 1", "SELECT count(*) FROM pru"),
	one("prewarm", "SELECT pg_prewarm('big')", "SELECT pg_prewarm('big', 'prefetch')"),
	one("amcheck", "SELECT bt_index_parent_check('big_k', true)"),
	one("pgstattuple", "SELECT * FROM pgstattuple('big')"),
	one("bufferscan", "SELECT count(*) FROM pg_locks, pg_stat_activity", "SELECT pg_relation_size('big'), pg_total_relation_size('docs'), pg_database_size('postgres')"),

	one("plan", "EXPLAIN SELECT * FROM big a JOIN big b USING (id) JOIN big c USING (id) JOIN small d ON d.id = a.grp JOIN small e ON e.id = b.grp JOIN small f ON f.id = c.grp JOIN docs g ON g.id = a.id JOIN docs h ON h.id = b.id"),
	one("plan-geqo", "@SET geqo_threshold=3; SET join_collapse_limit=20; SET from_collapse_limit=20", "EXPLAIN SELECT * FROM big a JOIN big b USING (id) JOIN big c USING (id) JOIN small d ON d.id = a.grp JOIN small e ON e.id = b.grp JOIN small f ON f.id = c.grp JOIN docs g ON g.id = a.id JOIN docs h ON h.id = b.id"),
	with("plan-partitions", partitioned, "EXPLAIN SELECT * FROM manyparts a JOIN manyparts b USING (id) WHERE a.id > 10", "EXPLAIN UPDATE manyparts SET v = 1 WHERE id = 5"),
	one("plan-prepared", "@PREPARE p AS SELECT * FROM big a JOIN big b USING (id) JOIN small s ON s.id = a.grp WHERE a.k = $1", "@SET plan_cache_mode=force_custom_plan", "EXECUTE p(1)"),
	one("parse", "SELECT "+strings.Repeat("1 + ", 2000)+"1"),
	one("parse-in", "SELECT count(*) FROM small WHERE id IN ("+strings.Repeat("1, ", 5000)+"1)"),
	one("view-rewrite", "SELECT count(*) FROM pg_stat_user_tables", "SELECT count(*) FROM information_schema.columns"),
	one("explain-analyze", "EXPLAIN (ANALYZE, BUFFERS) SELECT count(*) FROM big"),
	one("prepare-transaction", "BEGIN", "INSERT INTO small VALUES (55555, 'x', 1)", "PREPARE TRANSACTION 'p'", "COMMIT PREPARED 'p'", "DELETE FROM small WHERE id = 55555"),
	one("plpgsql-loop", "DO $$ DECLARE a int := 0; BEGIN FOR i IN 1..500000 LOOP a := a + i % 3; END LOOP; END $$"),
	one("plpgsql-sql", "DO $$ DECLARE a int; BEGIN FOR i IN 1..2000 LOOP SELECT n INTO a FROM small WHERE id = i % 1000; END LOOP; END $$"),
	one("plpgsql-cursor", "DO $$ DECLARE r record; s int := 0; BEGIN FOR r IN SELECT id, k FROM big WHERE id < 50000 LOOP s := s + r.k % 3; END LOOP; END $$"),
	one("plpgsql-execute", "DO $$ BEGIN FOR i IN 1..500 LOOP EXECUTE format('SELECT count(*) FROM small WHERE id = %s', i); END LOOP; END $$"),
	one("plpgsql-exception", "DO $$ BEGIN FOR i IN 1..5000 LOOP BEGIN PERFORM 1 / (i % 2); EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$"),
	with("plpgsql-compile", "CREATE OR REPLACE FUNCTION longf() RETURNS int LANGUAGE plpgsql AS $$ DECLARE a int; BEGIN "+strings.Repeat("a := 1; IF a > 2 THEN a := 3; END IF; ", 1500)+" RETURN a; END $$", "CREATE OR REPLACE FUNCTION longf() RETURNS int LANGUAGE plpgsql AS $$ DECLARE a int; BEGIN "+strings.Repeat("a := 1; IF a > 2 THEN a := 3; END IF; ", 1500)+" RETURN a; END $$", "SELECT longf()"),
	with("sql-function", "CREATE OR REPLACE FUNCTION sqlf(int) RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT count(*) FROM small WHERE id > $1'", "SELECT sqlf(g) FROM generate_series(1, 100) g"),
	with("procedure", "CREATE OR REPLACE PROCEDURE pro() LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1..20 LOOP UPDATE small SET n = n WHERE id = i; COMMIT; END LOOP; END $$", "CALL pro()"),
	one("savepoints", "BEGIN", "SAVEPOINT a; INSERT INTO small VALUES (66666, 'x', 1); ROLLBACK TO a; SAVEPOINT b; INSERT INTO small VALUES (66667, 'x', 1); RELEASE b", "ROLLBACK"),
	with("rollback", "CREATE TABLE IF NOT EXISTS rol (a int)", "BEGIN", "CREATE TABLE rol2 AS SELECT id FROM big WHERE id < 20000", "ROLLBACK"),
	one("error", "SELECT 1 / 0"),
	one("log-statement", "@SET log_statement='all'", "SELECT 1"),
	one("cursor", "BEGIN", "DECLARE c SCROLL CURSOR FOR SELECT * FROM big", "FETCH 20000 FROM c", "MOVE BACKWARD 10000 IN c", "ROLLBACK"),
	one("cursor-hold", "BEGIN", "DECLARE c CURSOR WITH HOLD FOR SELECT id, k FROM big", "COMMIT", "CLOSE c"),
	one("largeobject", "SELECT lo_from_bytea(0, repeat('x', 1000000)::bytea)", "SELECT lo_unlink(oid) FROM pg_largeobject_metadata"),
	one("notify", "@LISTEN ch", "NOTIFY ch, 'x'", "SELECT pg_notify('ch', repeat('y', 5000) || g) FROM generate_series(1, 20) g"),
	{name: "listen", sessions: [][]string{{"NOTIFY ch, 'x'"}, {"@LISTEN ch", "SELECT pg_sleep(0.01)"}, {"@LISTEN ch", "SELECT pg_sleep(0.01)"}}},
	with("sequence", "CREATE SEQUENCE IF NOT EXISTS seq", "SELECT max(nextval('seq')) FROM generate_series(1, 100000)"),
	one("create-extension", "CREATE EXTENSION citext", "DROP EXTENSION citext"),
	one("grant", "CREATE ROLE gr; GRANT SELECT ON ALL TABLES IN SCHEMA public TO gr; DROP OWNED BY gr; DROP ROLE gr"),
	one("import-schema", "CREATE SCHEMA sch; CREATE TABLE sch.a (i serial PRIMARY KEY, v text UNIQUE); CREATE VIEW sch.b AS SELECT * FROM sch.a", "DROP SCHEMA sch CASCADE"),

	one("commit", "UPDATE small SET n = n + 1 WHERE id = 1"),
	{name: "commit-many", sessions: [][]string{{"UPDATE small SET n = n + 1 WHERE id = 1"}, {"UPDATE small SET n = n + 1 WHERE id = 2"}, {"UPDATE small SET n = n + 1 WHERE id = 3"}, {"UPDATE small SET n = n + 1 WHERE id = 4"}, {"UPDATE small SET n = n + 1 WHERE id = 5"}, {"UPDATE small SET n = n + 1 WHERE id = 6"}}, seconds: 2},
	one("commit-delay", "@SET commit_delay=100000; SET commit_siblings=0", "UPDATE small SET n = n + 1 WHERE id = 1"),
	one("walswitch", "SELECT pg_switch_wal()", "SELECT pg_create_restore_point('x')"),
	one("logical-message", "SELECT pg_logical_emit_message(false, 'x', repeat('y', 100000))"),
	with("decode", "SELECT pg_create_logical_replication_slot('dec', 'test_decoding');;CREATE TABLE IF NOT EXISTS dc (id int, v text);;INSERT INTO dc SELECT g, 'x' FROM generate_series(1, 50000) g", "SELECT count(*) FROM pg_logical_slot_peek_changes('dec', NULL, NULL)"),
	with("decode-spill", "INSERT INTO dc SELECT g, 'x' FROM generate_series(1, 50000) g", "@SET logical_decoding_work_mem='64kB'", "SELECT count(*) FROM pg_logical_slot_peek_changes('dec', NULL, NULL)"),
	{name: "decode-start", setup: "SELECT pg_drop_replication_slot('dec')", sessions: [][]string{{"BEGIN; INSERT INTO small VALUES (88888, 'x', 1)", "SELECT pg_sleep(0.8)", "ROLLBACK"}, {"@SELECT pg_sleep(0.1)", "SELECT pg_create_logical_replication_slot('dec2', 'test_decoding')", "SELECT pg_drop_replication_slot('dec2')"}}, seconds: 3},
	{name: "slot-physical", sessions: [][]string{{"SELECT pg_create_physical_replication_slot('phy', true)", "SELECT pg_drop_replication_slot('phy')"}}},

	{name: "row-wait", act: rowWait(1)},
	{name: "row-queue", act: rowWait(3)},
	{name: "row-wait-select", sessions: blockedBy("BEGIN; UPDATE small SET n = 1 WHERE id = 5", "SELECT * FROM small WHERE id = 5 FOR UPDATE")},
	{name: "row-wait-delete", sessions: blockedBy("BEGIN; UPDATE small SET n = 1 WHERE id = 5", "DELETE FROM small WHERE id = 5")},
	{name: "unique-wait", setup: "CREATE TABLE IF NOT EXISTS uw (id int PRIMARY KEY)", sessions: blockedBy("BEGIN; INSERT INTO uw VALUES (1)", "INSERT INTO uw VALUES (1)")},
	{name: "unique-wait-delete", setup: "CREATE TABLE IF NOT EXISTS uwd (id int PRIMARY KEY);;TRUNCATE uwd;;INSERT INTO uwd VALUES (1)", sessions: blockedBy("BEGIN; DELETE FROM uwd WHERE id = 1", "INSERT INTO uwd VALUES (1)")},
	{name: "upsert-wait", setup: "CREATE TABLE IF NOT EXISTS uw (id int PRIMARY KEY)", sessions: blockedBy("BEGIN; INSERT INTO uw VALUES (1)", "INSERT INTO uw VALUES (1) ON CONFLICT (id) DO NOTHING")},
	{name: "spec-wait", setup: "CREATE TABLE IF NOT EXISTS spec (id int PRIMARY KEY);;" +
		"CREATE OR REPLACE FUNCTION slow(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM pg_sleep(0.6); RETURN $1; END';;" +
		"CREATE INDEX IF NOT EXISTS spec_slow ON spec (slow(id))", sessions: [][]string{
		{"BEGIN", "INSERT INTO spec VALUES (1) ON CONFLICT (id) DO NOTHING", "ROLLBACK"},
		{"@SELECT pg_sleep(0.2)", "BEGIN", "INSERT INTO spec VALUES (1) ON CONFLICT (id) DO NOTHING", "ROLLBACK"}}, seconds: 6},
	{name: "frozenid-wait", setup: "CREATE TABLE IF NOT EXISTS fro (a int)", sessions: [][]string{
		{"@BEGIN; LOCK TABLE pg_database IN SHARE MODE", "SELECT pg_sleep(1)"}, {"@SELECT pg_sleep(0.2)", "VACUUM fro"}, {"@SELECT pg_sleep(0.4)", "VACUUM small"}}, seconds: 6},
	{name: "page-wait", setup: "CREATE TABLE IF NOT EXISTS pagew (w text[]);;" +
		"CREATE INDEX IF NOT EXISTS pagew_w ON pagew USING gin (w) WITH (gin_pending_list_limit=65536)",
		sessions: [][]string{{fillPending, emptyPending}, {fillPending, emptyPending}, {fillPending, emptyPending}}, seconds: 8},
	{name: "slot-wait", sessions: [][]string{
		{"BEGIN; SELECT pg_current_xact_id()", "SELECT pg_sleep(0.9)", "ROLLBACK"},
		{"@SELECT pg_sleep(0.2)", "SELECT pg_create_logical_replication_slot('waits', 'pgoutput')", "SELECT pg_drop_replication_slot('waits')"}}, seconds: 6},
	{name: "fk-wait", setup: "CREATE TABLE IF NOT EXISTS child (id int, p int REFERENCES small)", sessions: blockedBy("BEGIN; DELETE FROM small WHERE id = 900", "INSERT INTO child VALUES (1, 900)")},
	{name: "exclusion-wait", setup: "CREATE TABLE IF NOT EXISTS exc (p box, EXCLUDE USING gist (p WITH &&))", sessions: blockedBy("BEGIN; INSERT INTO exc VALUES (box(point(0,0), point(1,1)))", "INSERT INTO exc VALUES (box(point(0,0), point(1,1)))")},
	{name: "relation-wait", sessions: blockedBy("BEGIN; LOCK TABLE small", "SELECT * FROM small")},
	{name: "relation-wait-lock", sessions: blockedBy("BEGIN; LOCK TABLE small IN ROW EXCLUSIVE MODE", "LOCK TABLE small")},
	{name: "relation-wait-alter", sessions: blockedBy("BEGIN; SELECT 1 FROM small LIMIT 1", "ALTER TABLE small ADD COLUMN zz int")},
	{name: "relation-wait-drop", sessions: blockedBy("BEGIN; SELECT 1 FROM docs LIMIT 1", "DROP TABLE docs")},
	{name: "object-wait", sessions: blockedBy("BEGIN; COMMENT ON DATABASE postgres IS 'a'", "COMMENT ON DATABASE postgres IS 'b'")},
	{name: "relation-wait-truncate", sessions: blockedBy("BEGIN; SELECT 1 FROM docs LIMIT 1", "TRUNCATE docs")},
	{name: "relation-wait-vacuum", sessions: [][]string{{"@BEGIN; LOCK TABLE small", "SELECT pg_sleep(0.9)"}, {"@SELECT pg_sleep(0.2)", "VACUUM small"}}},
	{name: "relation-wait-index", sessions: blockedBy("BEGIN; INSERT INTO small VALUES (77777, 'x', 1)", "CREATE INDEX ciw ON small (v)")},
	{name: "relation-wait-plan", sessions: blockedBy("BEGIN; LOCK TABLE parts1", "SELECT count(*) FROM parts")},
	{name: "relation-wait-prepared", sessions: [][]string{
		{"@BEGIN; LOCK TABLE small", "SELECT pg_sleep(0.9)", "ROLLBACK", "SELECT pg_sleep(0.05)", "BEGIN; LOCK TABLE small"},
		{"@PREPARE p AS SELECT count(*) FROM small", "EXECUTE p"}}, seconds: 3},
	{name: "advisory-wait", sessions: blockedBy("BEGIN; SELECT pg_advisory_xact_lock(7)", "SELECT pg_advisory_lock(7)")},
	{name: "advisory-wait-xact", sessions: blockedBy("BEGIN; SELECT pg_advisory_xact_lock(7)", "SELECT pg_advisory_xact_lock(7)")},
	{name: "database-wait", setup: "CREATE DATABASE dbw", sessions: [][]string{{"BEGIN; SELECT * FROM pg_database FOR UPDATE; LOCK TABLE pg_database IN ACCESS EXCLUSIVE MODE", "SELECT pg_sleep(0.7)", "ROLLBACK"}, {"@SELECT pg_sleep(0.1)", "ALTER DATABASE dbw SET work_mem='4MB'", "DROP ROLE IF EXISTS absent"}}, seconds: 2},
	{name: "safe-snapshot", sessions: [][]string{{"BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE small SET n = 1 WHERE id = 5", "SELECT pg_sleep(0.7)", "ROLLBACK"}, {"@SELECT pg_sleep(0.1)", "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE; SELECT 1 FROM small LIMIT 1", "ROLLBACK"}}, seconds: 2},
	{name: "serializable", setup: "CREATE TABLE IF NOT EXISTS ser AS SELECT id, n FROM small", sessions: [][]string{{"BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT sum(n) FROM ser; UPDATE ser SET n = 1 WHERE id = 5", "COMMIT"}, {"BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT sum(n) FROM ser; UPDATE ser SET n = 1 WHERE id = 6", "COMMIT"}}},
	{name: "deadlock-check", setup: "ALTER SYSTEM SET deadlock_timeout='1ms';;SELECT pg_reload_conf()", act: manyWaiters, seconds: 3},
	{name: "deadlock", sessions: [][]string{{"BEGIN; UPDATE small SET n = 1 WHERE id = 1; UPDATE small SET n = 1 WHERE id = 2", "COMMIT"}, {"BEGIN; UPDATE small SET n = 1 WHERE id = 2; UPDATE small SET n = 1 WHERE id = 1", "COMMIT"}}},
	{name: "hot-update", setup: "ALTER SYSTEM RESET deadlock_timeout;;SELECT pg_reload_conf()", sessions: repeatSession(8, "SET synchronous_commit=off", "UPDATE small SET n = n + 1 WHERE id = 1"), seconds: 2},
	{name: "hot-insert", setup: "CREATE TABLE IF NOT EXISTS hot (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)", sessions: repeatSession(10, "SET synchronous_commit=off", "INSERT INTO hot (v) SELECT 'abc' FROM generate_series(1, 3000)"), seconds: 2},
	{name: "hot-select", sessions: repeatSession(10, "SET max_parallel_workers_per_gather=0", "SELECT count(*) FROM big WHERE k < 5000"), seconds: 2},
	{name: "hot-read", sessions: repeatSession(6, "SET max_parallel_workers_per_gather=0", "SELECT sum(length(txt)) FROM big WHERE id BETWEEN 1 AND 100000"), seconds: 2},
	{name: "hot-copy", setup: "CREATE TABLE IF NOT EXISTS hotc (id int, k int, grp int, txt text)", sessions: repeatSession(8, "SET synchronous_commit=off", "COPY hotc FROM '%DATA%/big.tsv'"), seconds: 3},
	{name: "hot-subxact", sessions: repeatSession(6, "SET synchronous_commit=off", "DO $$ BEGIN FOR i IN 1..100 LOOP BEGIN UPDATE upd SET n = n + 1 WHERE id = i; EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$"), seconds: 2},
	{name: "mixed", setup: "TRUNCATE hotc", sessions: mixed, seconds: 30},
}

const partitioned = `CREATE TABLE IF NOT EXISTS manyparts (id int, v int) PARTITION BY HASH (id);;DO $$ BEGIN FOR i IN 0..99 LOOP EXECUTE format('CREATE TABLE IF NOT EXISTS manyparts%s PARTITION OF manyparts FOR VALUES WITH (MODULUS 100, REMAINDER %s)', i, i); END LOOP; END $$`

// mixed is the load of the coverage: sessions of a shop, reports, maintenance and a loader.
var mixed = [][]string{
	{"BEGIN", "SELECT n FROM small WHERE id = 17", "UPDATE small SET n = n + 1 WHERE id = 1 + (random() * 9)::int", "INSERT INTO hotc VALUES (1, 2, 3, 'abc')", "COMMIT"},
	{"BEGIN", "UPDATE small SET n = n + 1 WHERE id = 1 + (random() * 9)::int", "SELECT count(*) FROM docs WHERE words && ARRAY['1']", "COMMIT"},
	{"SELECT grp, count(*), max(txt) FROM big GROUP BY grp ORDER BY 2 DESC LIMIT 10", "SELECT count(DISTINCT txt) FROM big", "SELECT count(*) FROM big a JOIN big b ON a.id = b.k"},
	{"CREATE INDEX mixi ON big (txt)", "DROP INDEX mixi", "VACUUM ANALYZE small", "SELECT pg_sleep(0.2)", "REFRESH MATERIALIZED VIEW mv"},
	{"INSERT INTO hotc SELECT * FROM big WHERE id < 20000", "DELETE FROM hotc WHERE id % 2 = 0", "VACUUM hotc", "COPY hotc TO '/dev/null'"},
	{"DO $$ DECLARE r record; BEGIN FOR r IN SELECT * FROM small LIMIT 100 LOOP UPDATE upd SET n = n + 1 WHERE id = r.id; END LOOP; END $$", "CHECKPOINT", "SELECT pg_sleep(0.3)"},
	{"EXPLAIN SELECT * FROM big a JOIN big b USING (id) JOIN big c USING (id) JOIN small d ON d.id = a.grp JOIN small e ON e.id = b.grp", "INSERT INTO insgp SELECT ARRAY[md5(random()::text), 'x'] FROM generate_series(1, 500) g", "INSERT INTO child SELECT g, 1 + g % 1000 FROM generate_series(1, 500) g", "SELECT * FROM big WHERE id < 3000", "SELECT pg_sleep(0.1)"},
}

func repeatSession(n int, first, statement string) [][]string {
	out := make([][]string, n)
	for i := range out {
		out[i] = []string{"@" + first, statement}
	}
	return out
}

// Statements of the situation page-wait.
const (
	fillPending  = "INSERT INTO pagew SELECT ARRAY[md5(random()::text), (g%100)::text] FROM generate_series(1, 10000) g"
	emptyPending = "SELECT gin_clean_pending_list('pagew_w')"
)

// blockedBy is two sessions: the first keeps its lock for the whole situation, the second waits for it.
func blockedBy(holder, waiter string) [][]string {
	return [][]string{{"@" + holder, "SELECT pg_sleep(0.9)", "ROLLBACK", "SELECT pg_sleep(0.05)", holder}, {"@SELECT pg_sleep(0.2)", "BEGIN", waiter, "ROLLBACK"}}
}

func rowWait(waiters int) func(*recording) {
	return func(r *recording) {
		r.loop(r.server, "BEGIN; UPDATE small SET n = 1 WHERE id = 5", "SELECT pg_sleep(0.9)", "ROLLBACK")
		time.Sleep(200 * time.Millisecond)
		for range waiters {
			r.loop(r.server, "UPDATE small SET n = 1 WHERE id = 5")
		}
	}
}

func manyWaiters(r *recording) {
	for range 25 {
		r.loop(r.server, "@SET lock_timeout='30ms'", "UPDATE small SET n = 1 WHERE id IN (5, 6)")
	}
}

func copyFromSlowClient(r *recording) {
	conn, err := pgconn.Connect(r.ctx, r.server.DSN("postgres", "postgres"))
	if err != nil {
		return
	}
	defer conn.Close(context.Background())
	reader, writer := io.Pipe()
	go func() {
		for r.ctx.Err() == nil {
			fmt.Fprintf(writer, "1\tx\n")
			time.Sleep(50 * time.Millisecond)
		}
		writer.Close()
	}()
	_, _ = conn.CopyFrom(r.ctx, reader, "COPY ins FROM STDIN")
}

var archiveSituations = []situation{
	{name: "archive", sessions: [][]string{{"SELECT pg_switch_wal()", "INSERT INTO small SELECT g, 'x', 1 FROM generate_series(2000, 4000) g", "DELETE FROM small WHERE id >= 2000"}}, seconds: 3},
	{name: "checkpoint-load", sessions: [][]string{{"UPDATE big SET k = k + 1 WHERE id < 40000"}, {"UPDATE small SET n = n + 1"}, {"CHECKPOINT"}}, seconds: 6},
	{name: "bgwriter-load", sessions: [][]string{{"SET synchronous_commit=off; UPDATE big SET k = k + 1 WHERE id BETWEEN 40000 AND 60000"}, {"SELECT count(*) FROM big"}}, seconds: 5},
	{name: "autovacuum", sessions: [][]string{{"DELETE FROM small WHERE id > 500", "INSERT INTO small SELECT g, 'x', 1 FROM generate_series(501, 1000) g", "SELECT pg_sleep(0.1)"}, {"UPDATE docs SET id = id + 1", "SELECT pg_sleep(1)"}}, seconds: 12},
	{name: "async-commit", sessions: [][]string{{"SET synchronous_commit=off", "UPDATE small SET n = n + 1 WHERE id < 100"}}, seconds: 3},
	{name: "subscription", act: subscribe, seconds: 12},
}

// subscribe replicates a table to another database of the same server.
func subscribe(r *recording) {
	execAll(r.t, r.server, `CREATE TABLE rep (id int PRIMARY KEY, v text);;INSERT INTO rep SELECT g, 'x' FROM generate_series(1, 300000) g;;CREATE PUBLICATION pub FOR TABLE rep;;SELECT pg_create_logical_replication_slot('sub', 'pgoutput')`)
	conn, err := pgconn.Connect(r.ctx, r.server.DSN("postgres", "sub"))
	if err != nil {
		return
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{"CREATE TABLE rep (id int PRIMARY KEY, v text)",
		fmt.Sprintf("CREATE SUBSCRIPTION sub CONNECTION 'host=%s port=%d dbname=postgres user=postgres' PUBLICATION pub WITH (create_slot=false, slot_name='sub', copy_data=true)", r.server.SocketDir, r.server.Port)} {
		if _, err := conn.Exec(r.ctx, sql).ReadAll(); err != nil {
			r.t.Log(err)
		}
	}
	time.Sleep(3 * time.Second)
	r.loop(r.server, "INSERT INTO rep SELECT g, 'x' FROM generate_series(400001, 410000) g", "UPDATE rep SET v = 'y' WHERE id > 400000", "DELETE FROM rep WHERE id > 400000")
	<-r.ctx.Done()
	other, err := pgconn.Connect(context.Background(), r.server.DSN("postgres", "sub"))
	if err == nil {
		_, _ = other.Exec(context.Background(), "ALTER SUBSCRIPTION sub DISABLE").ReadAll()
		other.Close(context.Background())
	}
}

var standbySituations = []situation{
	{name: "streaming", sessions: [][]string{{"INSERT INTO small SELECT g, 'x', 1 FROM generate_series(2000, 9000) g", "DELETE FROM small WHERE id >= 2000"}, {"UPDATE big SET k = k + 1 WHERE id < 20000"}}, seconds: 5},
	{name: "streaming-idle", seconds: 2},
	{name: "syncrep", sessions: [][]string{{"@SET synchronous_commit=on", "UPDATE small SET n = n + 1 WHERE id = 3"}}, setup: "ALTER SYSTEM SET synchronous_standby_names='missing';;SELECT pg_reload_conf()", seconds: 2},
	{name: "syncrep-apply", sessions: [][]string{{"@SET synchronous_commit=remote_apply", "UPDATE small SET n = n + 1 WHERE id = 3"}}, setup: "ALTER SYSTEM SET synchronous_standby_names='missing';;SELECT pg_reload_conf()", seconds: 2},
	{name: "conflict-lock", setup: "ALTER SYSTEM RESET synchronous_standby_names;;SELECT pg_reload_conf()", act: conflict("TRUNCATE docs", "SELECT 1 FROM docs LIMIT 1"), seconds: 3},
	{name: "conflict-snapshot", setup: "CREATE TABLE IF NOT EXISTS snap AS SELECT g AS a FROM generate_series(1, 1000) g", act: conflict("UPDATE snap SET a = a + 1; VACUUM snap", "SELECT 1 FROM snap LIMIT 1"), seconds: 3},
	{name: "conflict-pin", setup: "CREATE TABLE IF NOT EXISTS snap2 AS SELECT g AS a FROM generate_series(1, 1000) g", act: conflictPin, seconds: 3},
	{name: "conflict-database", setup: "CREATE DATABASE gone", act: conflictDatabase, seconds: 3},
	{name: "replay-paused", act: paused, seconds: 8},
	{name: "standby-query-wait", act: standbyWait, seconds: 3},
}

// conflict keeps a transaction open on the standby while the primary runs statements whose replay it blocks.
func conflict(primary, standby string) func(*recording) {
	return func(r *recording) {
		r.loop(r.other, "@BEGIN ISOLATION LEVEL REPEATABLE READ", "@"+standby, "SELECT pg_sleep(0.5)")
		time.Sleep(500 * time.Millisecond)
		for sql := range strings.SplitSeq(primary, "; ") {
			execAll(r.t, r.server, sql)
		}
	}
}

func conflictPin(r *recording) {
	r.loop(r.other, "@BEGIN", "@DECLARE c CURSOR FOR SELECT * FROM snap2", "@FETCH 1 FROM c", "SELECT pg_sleep(0.5)")
	time.Sleep(500 * time.Millisecond)
	execAll(r.t, r.server, "DELETE FROM snap2 WHERE a > 5;;VACUUM (FREEZE) snap2")
}

func conflictDatabase(r *recording) {
	conn, err := pgconn.Connect(r.ctx, r.other.DSN("postgres", "gone"))
	if err != nil {
		return
	}
	defer conn.Close(context.Background())
	execAll(r.t, r.server, "DROP DATABASE gone")
	<-r.ctx.Done()
}

func paused(r *recording) {
	execAll(r.t, r.other, "SELECT pg_wal_replay_pause()")
	execAll(r.t, r.server, "UPDATE small SET n = n + 1")
	<-r.ctx.Done()
	execAll(r.t, r.other, "SELECT pg_wal_replay_resume()")
}

// standbyWait has a reader of the standby wait for a lock that replay holds.
func standbyWait(r *recording) {
	r.loop(r.server, "@BEGIN; LOCK TABLE docs; SELECT pg_switch_wal()", "SELECT pg_sleep(0.5)")
	time.Sleep(700 * time.Millisecond)
	r.loop(r.other, "SELECT count(*) FROM docs")
}

var crashSituations = []situation{
	{name: "crash-recovery", act: crash(`INSERT INTO big SELECT * FROM big WHERE id < 100000;;UPDATE small SET n = n + 1;;DELETE FROM big WHERE k < 5000;;CREATE INDEX crash_docs ON docs USING gin (words);;INSERT INTO docs SELECT * FROM docs LIMIT 5000;;
		CREATE INDEX crash_points ON points USING gist (p);;INSERT INTO points SELECT * FROM points LIMIT 10000;;CREATE TABLE crash_h AS SELECT txt FROM big LIMIT 20000;;CREATE INDEX crash_hh ON crash_h USING hash (txt);;INSERT INTO crash_h SELECT txt FROM big LIMIT 20000;;
		CREATE TABLE crash_s AS SELECT p FROM points LIMIT 10000;;CREATE INDEX crash_si ON crash_s USING spgist (p);;INSERT INTO crash_s SELECT p FROM points LIMIT 10000;;CREATE TABLE crash_b AS SELECT id FROM big LIMIT 20000;;CREATE INDEX crash_bi ON crash_b USING brin (id) WITH (pages_per_range=1);;INSERT INTO crash_b SELECT id FROM big LIMIT 20000;;
		CREATE SEQUENCE crash_q;;SELECT max(nextval('crash_q')) FROM generate_series(1, 100000);;VACUUM big;;VACUUM FREEZE small;;CREATE DATABASE crashed;;TRUNCATE crash_b;;DO $$ BEGIN FOR i IN 1..3000 LOOP INSERT INTO small VALUES (i + 5000, 'x', 1); COMMIT; END LOOP; END $$`), seconds: 60},
	{name: "fast-shutdown", act: func(r *recording) {
		execAll(r.t, r.server, "UPDATE small SET n = n + 1;;UPDATE big SET k = k + 1 WHERE id < 100000")
		r.server.Stop("fast")
		r.server.Start()
	}, seconds: 8},
}

// crash kills the server after the statements, so that stacks of crash recovery are taken.
func crash(sql string) func(*recording) {
	return func(r *recording) {
		execAll(r.t, r.server, sql)
		r.server.Kill()
		r.server.Start()
		execAll(r.t, r.server, "DROP INDEX IF EXISTS crash_docs")
	}
}

var startSituations = []situation{
	{name: "password-wait", act: func(r *recording) { r.silent("slow", "") }},
	{name: "startup-packet-wait", act: func(r *recording) { r.silent("", "") }},
	{name: "connect", act: connections(4), seconds: 6},
	{name: "relcache", act: func(r *recording) {
		r.loop(r.server, "SELECT pg_sleep(0.1)")
		connections(3)(r)
	}, setup: "CREATE TABLE IF NOT EXISTS t (a int)", seconds: 3},
	{name: "invalidate", act: func(r *recording) {
		r.loop(r.server, "ALTER TABLE t ADD b int", "ALTER TABLE t DROP b")
		r.loop(r.server, "SELECT * FROM t")
		r.loop(r.server, "SELECT count(*) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid")
	}, seconds: 3},
	{name: "temp-sessions", act: func(r *recording) {
		for r.ctx.Err() == nil {
			conn, err := pgconn.Connect(r.ctx, r.server.DSN("postgres", "postgres"))
			if err != nil {
				return
			}
			_, _ = conn.Exec(r.ctx, "CREATE TEMP TABLE a (i int PRIMARY KEY); CREATE TEMP TABLE b (i int PRIMARY KEY)").ReadAll()
			conn.Close(context.Background())
		}
	}, seconds: 3},
}

// connections opens and closes sessions as fast as the server allows.
func connections(n int) func(*recording) {
	return func(r *recording) {
		for range n {
			r.group.Go(func() {
				for r.ctx.Err() == nil {
					conn, err := pgconn.Connect(r.ctx, r.server.DSN("postgres", "postgres"))
					if err != nil {
						continue
					}
					_, _ = conn.Exec(r.ctx, "SELECT 1").ReadAll()
					conn.Close(context.Background())
				}
			})
		}
	}
}
