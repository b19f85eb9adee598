package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
)

// planted is the SQLSTATE that a planted function raises.
const planted = "PLANT"

// substitutes lists, for each type of a parameter in schema backtrace, other types that an argument of that type could
// be passed as. The types of schema planted have implicit casts from all types in this list.
var substitutes = map[string][]string{
	"text":                       {"name", "varchar", "bpchar", "anyelement", "planted.like_text", "planted.any_text", "unknown"},
	"name":                       {"text", "varchar", "anyelement"},
	"oid":                        {"regrole", "regproc", "bigint", "integer", "anyelement", "planted.like_oid", "planted.any_oid"},
	"regprocedure":               {"text", "oid", "regproc", "anyelement"},
	"integer":                    {"bigint", "smallint", "numeric", "oid", "anyelement", "planted.like_int", "planted.any_int"},
	"bigint":                     {"integer", "numeric", "anyelement"},
	"boolean":                    {"anyelement", "text", "planted.like_bool"},
	"interval":                   {"anyelement", "text"},
	"text[]":                     {"name[]", "varchar[]", "anyarray", "anyelement", "text", "planted.like_texts"},
	"integer[]":                  {"bigint[]", "anyarray", "anyelement", "planted.like_ints"},
	"oid[]":                      {"anyarray", "integer[]", "anyelement"},
	"bigint[]":                   {"anyarray", "integer[]", "anyelement"},
	"double precision[]":         {"anyarray", "anyelement"},
	"timestamp with time zone[]": {"anyarray", "anyelement", "text[]"},
	"SEAL":                       {"integer", "anyelement", "bigint", "planted.like_int", "planted.any_int"},
}

// plantedTypes makes the types of substitutes: domains, and composite types with implicit casts from PostgreSQL's
// types.
const plantedTypes = `CREATE SCHEMA planted;
	CREATE DOMAIN planted.like_text AS text; CREATE DOMAIN planted.like_oid AS oid; CREATE DOMAIN planted.like_int AS int;
	CREATE DOMAIN planted.like_bool AS boolean; CREATE DOMAIN planted.like_texts AS text[];
	CREATE DOMAIN planted.like_ints AS int[];
	CREATE TYPE planted.any_text AS (value text); CREATE TYPE planted.any_oid AS (value oid);
	CREATE TYPE planted.any_int AS (value int);
	CREATE FUNCTION planted.cast_text(text) RETURNS planted.any_text LANGUAGE sql AS 'SELECT ROW($1)::planted.any_text';
	CREATE FUNCTION planted.cast_name(name) RETURNS planted.any_text LANGUAGE sql AS 'SELECT ROW($1)::planted.any_text';
	CREATE FUNCTION planted.cast_oid(oid) RETURNS planted.any_oid LANGUAGE sql AS 'SELECT ROW($1)::planted.any_oid';
	CREATE FUNCTION planted.cast_int(int) RETURNS planted.any_int LANGUAGE sql AS 'SELECT ROW($1)::planted.any_int';
	CREATE CAST (text AS planted.any_text) WITH FUNCTION planted.cast_text(text) AS IMPLICIT;
	CREATE CAST (name AS planted.any_text) WITH FUNCTION planted.cast_name(name) AS IMPLICIT;
	CREATE CAST (oid AS planted.any_oid) WITH FUNCTION planted.cast_oid(oid) AS IMPLICIT;
	CREATE CAST (int AS planted.any_int) WITH FUNCTION planted.cast_int(int) AS IMPLICIT`

// plantedOperators could take the place of operators in the functions' bodies.
const plantedOperators = `
	CREATE FUNCTION planted.compare(text, text) RETURNS boolean LANGUAGE plpgsql AS
		$$BEGIN RAISE EXCEPTION USING ERRCODE = 'PLANT'; END$$;
	CREATE FUNCTION planted.compare(int, int) RETURNS boolean LANGUAGE plpgsql AS
		$$BEGIN RAISE EXCEPTION USING ERRCODE = 'PLANT'; END$$;
	CREATE FUNCTION planted.concat(text, text) RETURNS text LANGUAGE plpgsql AS
		$$BEGIN RAISE EXCEPTION USING ERRCODE = 'PLANT'; END$$;
	CREATE OPERATOR backtrace.= (LEFTARG = text, RIGHTARG = text, FUNCTION = planted.compare);
	CREATE OPERATOR backtrace.= (LEFTARG = int, RIGHTARG = int, FUNCTION = planted.compare);
	CREATE OPERATOR backtrace.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = planted.compare);
	CREATE OPERATOR backtrace.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = planted.concat)`

// internals returns the types of the parameters of each function in schema backtrace, with SEAL for the random name.
const internals = `SELECT p.proname || ' ' || array_to_string(ARRAY(
		SELECT CASE WHEN t.typname ~ '^seal_' THEN 'SEAL' ELSE format_type(t.oid, NULL) END
		FROM unnest(p.proargtypes) WITH ORDINALITY a (oid, n) JOIN pg_type t ON t.oid = a.oid ORDER BY a.n), ',')
	FROM pg_proc p WHERE p.pronamespace = 'backtrace'::regnamespace ORDER BY 1`

// overloads returns the lists of parameters of all functions to plant beside a function with these parameters. Those
// with a default value are in the second result.
func overloads(types []string) (exact, defaults []string) {
	add := func(to *[]string, changed []string) {
		if list := strings.Join(changed, ", "); !slices.Contains(*to, list) && list != strings.Join(types, ", ") {
			*to = append(*to, list)
		}
	}
	for n := range 8 { // all parameters at once
		all := slices.Clone(types)
		for i, kind := range types {
			all[i] = substitutes[kind][n%len(substitutes[kind])]
		}
		add(&exact, all)
	}
	for i, kind := range types {
		for _, other := range substitutes[kind] {
			changed := slices.Clone(types)
			changed[i] = other
			add(&exact, changed)
		}
	}
	if n := len(types) - 1; n >= 0 {
		last := types[n]
		if !strings.HasSuffix(last, "[]") && last != "SEAL" {
			add(&exact, append(slices.Clone(types[:n]), "VARIADIC "+last+"[]"))
		}
		add(&exact, append(slices.Clone(types[:n]), "VARIADIC anyarray"))
		add(&exact, append(slices.Clone(types), "VARIADIC text[]"))
		add(&exact, types[:n])
	}
	add(&defaults, append(slices.Clone(types), "x int DEFAULT 0"))
	return exact, defaults
}

// plant makes functions with these lists of parameters and returns how many of them PostgreSQL accepts.
func plant(t *testing.T, boss *session, name string, lists []string) int {
	t.Helper()
	made := 0
	seal := boss.text(t, `SELECT 'backtrace.' || typname FROM pg_type WHERE typname ~ '^seal_'`)
	for _, list := range lists {
		// An array of mixed types, for example, is no list of parameters.
		_, err := boss.Exec(t.Context(), fmt.Sprintf("CREATE FUNCTION backtrace.%s(%s) RETURNS text LANGUAGE plpgsql AS "+
			"$$BEGIN RAISE EXCEPTION USING ERRCODE = '%s'; END$$", name, strings.ReplaceAll(list, "SEAL", seal), planted))
		if err == nil {
			made++
		}
	}
	return made
}

// calls has a call of every function of the extension. $1 is the PID of an idle backend.
var calls = []string{
	"SELECT pg_get_backtrace($1)", "SELECT pg_log_backtrace($1)", "SELECT pg_log_backtrace($1, $1)",
	"SELECT function FROM pg_get_backtrace_frames($1)", "SELECT count(backtrace) FROM pg_stat_backtrace",
	"SELECT count(*) FROM pg_get_blocking_backtraces($1)", "SELECT count(*) FROM pg_get_blocking_backtraces() WHERE pid <> $1", "SELECT count(*) FROM pg_backtrace_summary(2, '1 ms', ARRAY[$1])",
	"SELECT pg_backtrace_summary_text(2, '1 ms', ARRAY[$1])",
	"SELECT count(*) FROM pg_get_memory_contexts($1)", "SELECT pg_request_backtrace($1)", "SELECT pg_get_running_plan($1)",
	"SELECT count(*) FROM pg_backtrace_history(now() - interval '1 minute', now(), ARRAY[$1])",
	"SELECT count(*) FROM pg_backtrace_history_summary(now() - interval '1 minute') WHERE query_id = $1", "SELECT pg_backtrace_stack($1)",
	"SELECT count(*) FROM pg_backtrace_incidents WHERE id = '$1'", "SELECT pg_backtrace_incident('$1')",
	"SELECT count(backtrace) FROM pg_get_backtrace_on_call($1)", "SELECT pg_get_backtrace_to_file($1, 'x')",
	"SELECT pg_request_backtrace(ARRAY[$1])", "SELECT count(*) FROM pg_backtrace_result(1) WHERE pid <> $1",
	"SELECT count(*) FROM pg_stat_wait_event_timing WHERE pid = $1",
	"SELECT count(*) FROM pg_stat_wait_event_timing_overflow WHERE pid = $1",
	"SELECT count(*) FROM pg_stat_wait_event_timing_by_query WHERE calls = $1",
	"SELECT count(*) FROM pg_get_backend_wait_event_trace($1)", "SELECT pg_stat_reset_wait_event_timing($1)::text",
	"SELECT pg_stat_reset_wait_event_timing_all()::text WHERE $1 > 0", "SELECT pg_wait_event_capture('stats', $1)::text",
	"SELECT pg_wait_event_capture('off')::text WHERE $1 > 0", "SELECT count FROM pg_trace_function('f', $1, '1 ms')",
	"SELECT backtrace.served() WHERE $1 > 0",
}

// workerCalls has a call of every function that the worker calls, as the worker calls it.
var workerCalls = []string{
	"SELECT count(*) FROM backtrace.claim(1::int, '{}'::bigint[], '{}'::oid[])",
	"SELECT backtrace.finish('{1}'::bigint[], '{x}'::text[], '{1}'::float8[], '{1}'::int[], '{x}'::text[], " +
		"'{NULL}'::text[], '{NULL}'::text[], '{NULL}'::text[], '{NULL}'::text[])",
	"SELECT backtrace.journal('{get}'::text[], '{10}'::oid[], '{x}'::text[], '{1}'::int[], '{1}'::int[], " +
		"'{now}'::timestamptz[], '{now}'::timestamptz[], '{x}'::text[], '{1}'::float8[], '{1}'::int[], '{NULL}'::text[], " +
		"'{NULL}'::text[], '{NULL}'::text[], '{NULL}'::text[])::text",
	"SELECT backtrace.prune('1 h'::interval, 1000::bigint, 10::int)",
}

// outcomes calls every function as a superuser and as a role with EXECUTE, and returns the SQLSTATE of each call.
func outcomes(t *testing.T, s *site, target int) []string {
	t.Helper()
	var out []string
	for _, role := range []string{s.User, "gardener"} {
		c := s.connect(t, role, "postgres")
		statements := slices.Clone(calls)
		if role == s.User {
			statements = append(statements, workerCalls...)
		}
		for _, setting := range []string{"notice", "log"} { // with log, another function writes to the log
			c.run(t, "SET client_min_messages = "+setting)
			for _, sql := range statements {
				sql = strings.ReplaceAll(sql, "$1", strconv.Itoa(target))
				_, e := c.try(t.Context(), sql)
				out = append(out, role+": "+sql+": "+e.state)
			}
		}
		_ = c.Close(t.Context())
	}
	return out
}

// TestPlantedFunctions: functions and operators that a role has left in schema backtrace do not run in place of the
// extension's, whatever their parameters are. The calls go on as before, and fail where a planted function differs only
// by further parameters with default values.
func TestPlantedFunctions(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		t.Parallel()
		s := start(t, binDir, pgtest.Options{})
		boss := s.connect(t, s.User, "postgres")
		boss.run(t, `CREATE ROLE gardener LOGIN; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO gardener;
			GRANT SELECT ON ALL TABLES IN SCHEMA public TO gardener; GRANT pg_read_all_stats TO gardener`)
		functions := rows(t, boss, internals)
		s.work(t)
		target := s.idle(t, "gardener")
		want := outcomes(t, s, target)
		boss.run(t, plantedTypes+";"+plantedOperators)
		made := 0
		var withDefaults []func() int
		for _, function := range functions {
			name, list, _ := strings.Cut(function, " ")
			var types []string
			if list != "" {
				types = strings.Split(list, ",")
			}
			exact, defaults := overloads(types)
			made += plant(t, boss, name, exact)
			withDefaults = append(withDefaults, func() int { return plant(t, boss, name, defaults) })
		}
		if made < 20*len(functions)/2 {
			t.Errorf("only %d functions planted beside %d", made, len(functions))
		}
		for i, got := range outcomes(t, s, target) {
			if got != want[i] {
				t.Errorf("%s, was %s", got, want[i])
			}
		}
		for _, add := range withDefaults {
			made += add()
		}
		for _, got := range outcomes(t, s, target) {
			if strings.HasSuffix(got, planted) {
				t.Error(got)
			}
		}
		figure.Printf(t, "%d functions planted beside %d, %d calls", made, len(functions), 2*len(want))
	})
}

// rows returns the first column of a query.
func rows(t *testing.T, c *session, sql string) []string {
	t.Helper()
	got, err := c.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	var out []string
	for got.Next() {
		var text string
		if err := got.Scan(&text); err != nil {
			t.Fatal(err)
		}
		out = append(out, text)
	}
	return out
}
