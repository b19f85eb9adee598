package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// ask is the call that situations make; PID is the target, an idle session.
const ask = "SELECT pg_get_backtrace(PID)"

// situation is a state of a session, and a call in this state.
type situation struct {
	name, before string
	call         string // "": ask
}

var transactions = []situation{
	{name: "none", before: ""},
	{name: "explicit", before: "BEGIN"},
	{name: "savepoint", before: "BEGIN; SAVEPOINT a; SAVEPOINT b"},
	{name: "rolled back to a savepoint", before: "BEGIN; SAVEPOINT a; CREATE TEMP TABLE x (); ROLLBACK TO a"},
	{name: "exception block", call: "SELECT pg_temp.caught()", before: `
		CREATE FUNCTION pg_temp.caught() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
			BEGIN PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN RETURN pg_get_backtrace(PID); END;
		END $$`},
	{name: "in a subtransaction", call: "SELECT pg_temp.inner_block()", before: `
		CREATE FUNCTION pg_temp.inner_block() RETURNS text LANGUAGE plpgsql AS $$ DECLARE r text; BEGIN
			BEGIN r := pg_get_backtrace(PID); EXCEPTION WHEN others THEN r := SQLERRM; END;
			RETURN r;
		END $$`},
	{name: "after an error that was caught", before: `BEGIN;
		DO $$ BEGIN PERFORM pg_get_backtrace(pg_backend_pid()); EXCEPTION WHEN object_not_in_prerequisite_state THEN NULL;
		END $$`},
	{name: "repeatable read", before: "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class"},
	{name: "serializable", before: "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM pg_class"},
	{name: "serializable read only", before: "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY"},
	{name: "deferrable", before: "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE; SELECT count(*) FROM pg_class"},
	{name: "read only", before: "BEGIN READ ONLY"},
	{name: "read only by default", before: "SET default_transaction_read_only = on"},
	{name: "with a transaction id", before: "BEGIN; SELECT txid_current()"},
	{name: "prepared statement", before: "PREPARE p AS " + ask, call: "EXECUTE p"},
	{name: "cursor", call: "FETCH c",
		before: "BEGIN; DECLARE c CURSOR FOR SELECT pg_get_backtrace(PID) FROM generate_series(1, 3); FETCH c"},
	{name: "cursor past its transaction", call: "FETCH c",
		before: "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT pg_get_backtrace(PID) FROM generate_series(1, 3); COMMIT"},
	{name: "cursor in PL/pgSQL", call: "SELECT pg_temp.fetched()", before: `
		CREATE FUNCTION pg_temp.fetched() RETURNS text LANGUAGE plpgsql AS $$
			DECLARE c CURSOR FOR SELECT pg_get_backtrace(PID) FROM generate_series(1, 2); r text;
		BEGIN OPEN c; FETCH c INTO r; FETCH c INTO r; RETURN r; END $$`},
	{name: "DO", before: "DO $$ BEGIN PERFORM pg_get_backtrace(PID); END $$"},
	{name: "SQL function", call: "SELECT pg_temp.f()",
		before: "CREATE FUNCTION pg_temp.f() RETURNS text LANGUAGE sql AS 'SELECT pg_get_backtrace(PID)'"},
	{name: "definer function", call: "SELECT pg_temp.d()", before: `CREATE FUNCTION pg_temp.d() RETURNS text LANGUAGE sql
		SECURITY DEFINER SET search_path = public AS 'SELECT pg_get_backtrace(PID)'`},
	{name: "procedure that commits", call: "SELECT max(a) FROM pg_temp.kept", before: `CREATE TEMP TABLE kept (a text);
		CREATE PROCEDURE pg_temp.p() LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO kept VALUES (pg_get_backtrace(PID)); COMMIT;
			UPDATE kept SET a = pg_get_backtrace(PID); COMMIT;
		END $$;
		;;CALL pg_temp.p()`},
	{name: "trigger", call: "INSERT INTO tr VALUES ('') RETURNING a", before: `CREATE TEMP TABLE tr (a text);
		CREATE FUNCTION pg_temp.tf() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN NEW.a := pg_get_backtrace(PID); RETURN NEW; END';
		CREATE TRIGGER t BEFORE INSERT ON tr FOR EACH ROW EXECUTE FUNCTION pg_temp.tf()`},
	{name: "deferred trigger", call: "SELECT max(a) FROM pg_temp.late", before: `
		CREATE TEMP TABLE late (a text); CREATE TEMP TABLE early (a int);
		CREATE FUNCTION pg_temp.tl() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN INSERT INTO late VALUES (pg_get_backtrace(PID)); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER t AFTER INSERT ON early DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION pg_temp.tl();
		BEGIN; INSERT INTO early VALUES (1); COMMIT`},
	{name: "column default", call: "INSERT INTO df DEFAULT VALUES RETURNING a",
		before: "CREATE TEMP TABLE df (a text DEFAULT pg_get_backtrace(PID))"},
	{name: "materialized", call: "SELECT a FROM mv", before: "CREATE TEMP TABLE mv AS SELECT pg_get_backtrace(PID) AS a"},
	{name: "parallel plan", before: parallel,
		call: `SELECT max(pg_get_backtrace(i)) FROM (SELECT i FROM par WHERE i = PID) x`},
	{name: "parallel leader", before: parallel, call: "SELECT pg_get_backtrace(i) FROM par WHERE i = PID"},
	{name: "parallel mode forced", before: "SET FORCE_PARALLEL = on"},
}

// parallel makes the table that parallel plans read; the target is one of its rows.
const parallel = `CREATE TABLE IF NOT EXISTS par AS SELECT i FROM generate_series(1, 20000) i;
	DELETE FROM par WHERE i = PID; INSERT INTO par VALUES (PID); ANALYZE par;
	SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
	SET max_parallel_workers_per_gather = 2`

func situations(t *testing.T, s *site) {
	target := s.idle(t, s.User)
	for _, q := range transactions {
		t.Run(q.name, func(t *testing.T) { s.askIn(t, q, target) })
	}
	t.Run("the plans are parallel", func(t *testing.T) {
		c := s.connect(t, s.User, "postgres")
		c.run(t, fill(s, parallel+`; CREATE FUNCTION pg_temp.explained() RETURNS SETOF text LANGUAGE plpgsql AS
			$$ BEGIN RETURN QUERY EXECUTE 'EXPLAIN SELECT max(pg_get_backtrace(i)) FROM (SELECT i FROM par WHERE i = PID) x';
			END $$`, target))
		plan := c.text(t, `SELECT string_agg(l, '') FROM pg_temp.explained() l`)
		if !strings.Contains(plan, "Gather") {
			t.Error(plan)
		}
	})
}

// askIn makes the call of a situation, and the same with pg_log_backtrace.
func (s *site) askIn(t *testing.T, q situation, target int) {
	t.Helper()
	if q.call == "" {
		q.call = ask
	}
	c := s.connect(t, s.User, "postgres")
	for before := range strings.SplitSeq(q.before, ";;") { // statements in one call are one transaction
		c.run(t, fill(s, before, target))
	}
	got, e := c.try(t.Context(), fill(s, q.call, target))
	if e.level != "" {
		t.Fatal(e)
	}
	stack(t, q.name, got)
	if q.call != ask {
		return
	}
	if got := c.text(t, fill(s, "SELECT pg_log_backtrace(PID)::text", target)); got != "true" {
		t.Errorf("pg_log_backtrace: %s", got)
	}
}

// fill puts the target, and names that differ between versions, into SQL.
func fill(s *site, sql string, target int) string {
	force := "force_parallel_mode"
	if s.Major >= 16 {
		force = "debug_parallel_query"
	}
	return strings.NewReplacer("PID", strconv.Itoa(target), "FORCE_PARALLEL", force).Replace(sql)
}

// trapped is a schema with objects of the names that the extension uses. They raise an error or return wrong values.
const trapped = `
	CREATE SCHEMA trap;
	CREATE FUNCTION trap.leap(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.leap(oid, integer) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.leap(integer, integer) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.leap(bytea, bytea) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.bleap(bytea, bytea) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE OPERATOR trap.= (leftarg = text, rightarg = text, function = trap.leap);
	CREATE OPERATOR trap.<> (leftarg = text, rightarg = text, function = trap.leap);
	CREATE OPERATOR trap.= (leftarg = oid, rightarg = integer, function = trap.leap);
	CREATE OPERATOR trap.= (leftarg = integer, rightarg = integer, function = trap.leap);
	CREATE OPERATOR trap.<= (leftarg = integer, rightarg = integer, function = trap.leap);
	CREATE OPERATOR trap.= (leftarg = bytea, rightarg = bytea, function = trap.leap);
	CREATE OPERATOR trap.|| (leftarg = bytea, rightarg = bytea, function = trap.bleap);
	CREATE FUNCTION trap.sha256(bytea) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.format(text, VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.pg_read_file(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.pg_sleep(double precision) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.pg_backend_pid() RETURNS integer LANGUAGE sql AS 'SELECT 1';
	CREATE FUNCTION trap.statement_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT timestamptz 'epoch' $$;
	CREATE FUNCTION trap.current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$;
	CREATE VIEW trap.pg_authid AS SELECT 10::oid AS oid, true AS rolsuper;
	CREATE DOMAIN trap.uuid AS integer;
	CREATE DOMAIN trap.timestamptz AS integer;
	CREATE TEMP VIEW pg_authid AS SELECT 10::oid AS oid, true AS rolsuper;
	CREATE TEMP TABLE pg_database (oid integer, datname text);
	SET search_path = trap, pg_temp, public, pg_catalog`

var settings = []situation{
	{name: "search_path of traps", before: trapped},
	{name: "empty search_path", before: "SET search_path = ''", call: "SELECT public.pg_get_backtrace(PID)"},
	{name: "standard_conforming_strings off",
		before: "SET standard_conforming_strings = off; SET escape_string_warning = on"},
	{name: "backslash_quote off", before: "SET standard_conforming_strings = off; SET backslash_quote = off"},
	{name: "PL/pgSQL's extra checks",
		before: "LOAD 'plpgsql'; SET plpgsql.extra_errors = 'all'; SET plpgsql.check_asserts = off"},
	{name: "variable_conflict", before: "LOAD 'plpgsql'; SET plpgsql.variable_conflict = use_variable"},
	{name: "custom plans", before: "SET plan_cache_mode = force_custom_plan"},
	{name: "row_security off", before: "SET row_security = off"},
	{name: "formats",
		before: "SET bytea_output = escape; SET datestyle = german; SET timezone = 'Asia/Tokyo'"},
	{name: "quote_all_identifiers", before: "SET quote_all_identifiers = on"},
	{name: "transform_null_equals", before: "SET transform_null_equals = on; SET array_nulls = off"},
	{name: "client_min_messages log", before: "SET client_min_messages = log"},
	{name: "client_min_messages debug5", before: "SET client_min_messages = debug5"},
	{name: "log_error_verbosity terse", before: "SET log_error_verbosity = terse"},
	{name: "log_error_verbosity verbose", before: "SET log_error_verbosity = verbose"},
	{name: "timeouts",
		before: "SET statement_timeout = '180s'; SET lock_timeout = 1; SET idle_in_transaction_session_timeout = 100000"},
	{name: "no scans", before: "SET enable_seqscan = off; SET enable_nestloop = off; SET enable_hashjoin = off"},
	{name: "JIT", before: "SET jit = on; SET jit_above_cost = 0; SET jit_optimize_above_cost = 0"},
	{name: "little memory", before: "SET work_mem = 64; SET temp_file_limit = 0"},
	{name: "everything logged",
		before: "SET log_statement = 'all'; SET debug_print_plan = on; SET log_parser_stats = on"},
	{name: "synchronous_commit off",
		before: "SET synchronous_commit = off; SET default_transaction_isolation = serializable"},
}

func traps(t *testing.T, s *site) {
	target := s.idle(t, s.User)
	for _, q := range settings {
		t.Run(q.name, func(t *testing.T) {
			if s.Major >= 19 && strings.Contains(q.before, "standard_conforming_strings = off") {
				t.Skip("from 19 on all strings are as the standard has them")
			}
			s.askIn(t, q, target)
		})
	}
	t.Run("too many targets", func(t *testing.T) {
		c := s.connect(t, s.User, "postgres")
		c.fails(t, "too many at once", "SELECT pg_log_backtrace(VARIADIC array_agg(i))::text FROM generate_series(1, 5001) i")
	})
	t.Run("words of requests and summaries", func(t *testing.T) { requests(t, s) })
	t.Run("values that are none", func(t *testing.T) {
		c := s.connect(t, s.User, "postgres")
		for _, bad := range []string{"0", "-1", "100000", "3s", "1e3", "x''; DROP"} {
			c.run(t, "SET pg_stat_backtrace.timeout = '"+bad+"'")
			c.fails(t, "bad timeout", ask1(target))
		}
		c.run(t, "RESET pg_stat_backtrace.timeout")
		for _, bad := range []string{"0", "-1", "65537", "many", "''"} {
			c.run(t, "SET pg_stat_backtrace.max_frames = '"+bad+"'")
			c.fails(t, "bad setting", ask1(target))
		}
		c.run(t, "RESET pg_stat_backtrace.max_frames; SET pg_stat_backtrace.threads = 'maybe'")
		c.fails(t, "bad switch", ask1(target))
		c.run(t, "RESET pg_stat_backtrace.threads; SET pg_stat_backtrace.max_frames = 3")
		if got := c.text(t, ask1(target)); strings.Count("\n"+got, "\n#") != 3 {
			t.Errorf("three frames: %s", got)
		}
	})
}

func ask1(target int) string { return fmt.Sprintf("SELECT pg_get_backtrace(%d)", target) }
