package spool

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/limits"
)

const denied = "42501|permission denied for function pg_get_backtrace||"

func TestSQLContract(t *testing.T) {
	eachSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		s.work(t)
		t.Run("request", s.testRequest)
		t.Run("answers", s.testAnswers)
		t.Run("an older worker", s.testOlder)
		t.Run("log", s.testLog)
		t.Run("encodings", s.testEncodings)
		t.Run("situations", s.testSituations)
		t.Run("identity", s.testIdentity)
		t.Run("attacks", s.testAttacks)
	})
}

// testOlder calls functions of version 1.1 with a worker that, as in version 1.0, lists no verbs.
func (s *site) testOlder(t *testing.T) {
	c := s.Connect(t, s.User, "postgres")
	for _, call := range []string{
		"pg_get_backtrace_frames(100)", "pg_stat_backtrace", "pg_log_backtrace(100, 101)",
		"pg_get_blocking_backtraces(100)", "pg_backtrace_summary()",
	} {
		got := fails(t, c, "SELECT * FROM "+call)
		if !strings.HasPrefix(got, "55000|the pg_stat_backtrace worker is older than the extension|The worker (version") {
			t.Errorf("%s: %s", call, got)
		}
	}
	if got := text(t, c, call100); got != "#0 get 100" {
		t.Errorf("what 1.0 has: %s", got)
	}
}

func (s *site) testRequest(t *testing.T) {
	c := s.Connect(t, s.User, "postgres")
	run(t, c, `CREATE ROLE "Ünder ""cover"" 1"; GRANT EXECUTE ON FUNCTION pg_get_backtrace TO "Ünder ""cover"" 1";
		SET pg_stat_backtrace.max_frames = '1 \n''2'; SET pg_stat_backtrace.timeout = 99999`)
	run(t, c, `SET ROLE "Ünder ""cover"" 1"`)
	got := asked(t, c, "SELECT pg_get_backtrace($1::int)", askEcho)
	want := Request{
		ID: got.ID, Caller: got.Caller, CallerName: `Ünder "cover" 1`, Backend: int(c.PgConn().PID()), Database: "postgres",
		Encoding: "UTF8", Targets: []int{askEcho}, Verb: "get",
		Settings: map[string]string{"max_frames": `1 \n'2`, "timeout": "99999"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	oid := text(t, c, "SELECT oid::text FROM pg_roles WHERE rolname = current_user")
	if strconv.Itoa(int(got.Caller)) != oid {
		t.Errorf("caller %d, but current_user is %s", got.Caller, oid)
	}
	run(t, c, "RESET ALL; RESET ROLE; SET pg_stat_backtrace.timeout = ''")
	if got := asked(t, c, "SELECT pg_get_backtrace(1)"); !got.Superuser || got.Caller != 10 || len(got.Settings) != 0 {
		t.Errorf("superuser: %+v", got)
	}
	for _, bad := range []string{"0", "-1", "100000", "3s", "1e3", "x'; DROP"} {
		run(t, c, "SET pg_stat_backtrace.timeout = '"+strings.ReplaceAll(bad, "'", "''")+"'")
		want := fmt.Sprintf(`22023|invalid value for parameter "pg_stat_backtrace.timeout": "%s"||`+
			`It is a number of milliseconds, from 1 to 99999.`, bad)
		if got := fails(t, c, "SELECT pg_get_backtrace(1)"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func (s *site) testAnswers(t *testing.T) {
	c, notices := s.notices(t, s.User)
	const self = "55000|cannot capture the backtrace of the current backend||" +
		"Ask from another session, or query the view pg_stat_backtrace for many processes."
	warning := []string{"WARNING 01000 PID 6 is not a PostgreSQL server process"}
	for _, q := range []struct {
		argument any
		get, log string // the functions' result or error
		notices  []string
	}{
		{nil, "NULL", "NULL", nil},
		{100, "#0 get 100", "true", nil},
		{askWarning, "NULL", "false", warning},
		{0, "NULL", "false", []string{"WARNING 01000 PID 0 is not a PostgreSQL server process"}},
		{-2147483648, "NULL", "false", []string{"WARNING 01000 PID -2147483648 is not a PostgreSQL server process"}},
		{askError, "42501|message 100% '|Detail.|Hint.", "", nil},
		{askPlainError, "42501|message 100% '||", "", nil},
		{askDetail, "42501|message 100% '|Detail.|", "", nil},
		{askHint, "42501|message 100% '||Hint.", "", nil},
		{askBadState, `XX000|unexpected answer "ERROR" "bad": m||`, "", nil},
		{int(c.PgConn().PID()), self, "", nil},
	} {
		if q.log == "" {
			q.log = q.get
		}
		for function, want := range map[string]string{"pg_get_backtrace": q.get, "pg_log_backtrace": q.log} {
			got, err := query(t.Context(), c, "SELECT "+function+"($1::int)::text", q.argument)
			if err != nil {
				got = describe(err)
				if where := pgError(err).Where; strings.Contains(where, "\n") || len(where) > 80 {
					t.Errorf("%s(%v): context %q", function, q.argument, where)
				}
			}
			if got != want {
				t.Errorf("%s(%v): got %q, want %q", function, q.argument, got, want)
			}
			if told := notices(); !reflect.DeepEqual(told, q.notices) {
				t.Errorf("%s(%v): notices %q, want %q", function, q.argument, told, q.notices)
			}
		}
	}
	if got := text(t, c, "SELECT length(pg_get_backtrace($1))::text", askLarge); got != strconv.Itoa(limits.MaxAnswer) {
		t.Errorf("a large answer has %s bytes", got)
	}
}

func (s *site) testLog(t *testing.T) {
	c, notices := s.notices(t, s.User)
	logged := func() (entries string) {
		before := len(s.Log())
		return func() string {
			run(t, c, "SELECT pg_log_backtrace(100)")
			return s.Log()[before:]
		}()
	}
	for _, settings := range []string{
		"", "client_min_messages = log", "client_min_messages = debug5", "client_min_messages = error",
		"log_min_messages = error", "log_min_messages = log", "log_error_verbosity = verbose", "log_error_verbosity = terse",
	} {
		run(t, c, "RESET ALL")
		if settings != "" {
			run(t, c, "SET "+settings)
		}
		notices()
		entries := logged()
		if strings.Count(entries, "backtrace of PID 100") != 1 || strings.Count(entries, "#0 log 100") != 1 {
			t.Errorf("%s: the server log has %q", settings, entries)
		}
		lines := 1
		if strings.Contains(settings, "client_min_messages = log") || strings.Contains(settings, "debug5") {
			lines = 2 // of the function that keeps the entry from this client
		}
		if where := strings.Count(entries, "PL/pgSQL function"); where > lines {
			t.Errorf("%s: %d lines of context: %s", settings, where, entries)
		}
		for _, n := range notices() {
			if strings.Contains(n, "backtrace of PID") {
				t.Errorf("%s: the client gets %q", settings, n)
			}
		}
	}
	run(t, c, "RESET ALL; SET log_min_messages = panic")
	if got := text(t, c, "SELECT pg_log_backtrace(100)::text"); got != "false" || len(notices()) != 1 {
		t.Errorf("a server log that takes no LOG: %s", got)
	}
}

func (s *site) testEncodings(t *testing.T) {
	c := s.Connect(t, s.User, "postgres")
	for encoding, want := range map[string]string{
		"UTF8": foreign, "LATIN1": `#0 \u00e9_\u65e5\u672c_\U0001f600 a\b 'q' 100%`,
		"SQL_ASCII": `#0 \u00e9_\u65e5\u672c_\U0001f600 a\b 'q' 100%`,
		"EUC_JP":    `#0 \u00e9_\u65e5\u672c_\U0001f600 a\b 'q' 100%`,
	} {
		name := "enc_" + strings.ToLower(encoding)
		run(t, c, "CREATE DATABASE "+name+` TEMPLATE template0 LC_COLLATE "C" LC_CTYPE "C" ENCODING `+encoding)
		d := s.Connect(t, s.User, name)
		run(t, d, "CREATE EXTENSION pg_stat_backtrace")
		if got := text(t, d, "SELECT pg_get_backtrace($1)", askForeign); got != want {
			t.Errorf("%s: got %q, want %q", encoding, got, want)
		}
		if got := asked(t, d, "SELECT pg_get_backtrace(1)"); got.Encoding != encoding || got.Database != name {
			t.Errorf("%s: %+v", encoding, got)
		}
	}
	d := s.Connect(t, s.User, "enc_sql_ascii") // a name that is no UTF-8
	run(t, d, "SET client_encoding = sql_ascii; CREATE ROLE \"b\xe9ta\" SUPERUSER; SET ROLE \"b\xe9ta\"")
	if got := asked(t, d, "SELECT pg_get_backtrace(1)"); got.CallerName != `b\xe9ta` {
		t.Errorf("%+v", got)
	}
	run(t, d, "RESET ROLE; DROP ROLE \"b\xe9ta\"")
	s.testOtherEncoding(t)
}

// testOtherEncoding: the names of roles have the encoding of the database in which they were made. The bytes of such a
// name need not be valid in the database that the role logs in to.
func (s *site) testOtherEncoding(t *testing.T) {
	latin := s.Connect(t, s.User, "enc_latin1")
	run(t, latin, "SET client_encoding = utf8")
	for name, bytes := range map[string]string{"Müller": "M\xfcller", `M\üller "1"`: "M\\\xfcller \"1\""} {
		quoted := `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
		run(t, latin, "CREATE ROLE "+quoted+" LOGIN SUPERUSER")
		config, err := pgx.ParseConfig(s.DSN(s.User, "postgres"))
		if err != nil {
			t.Fatal(err)
		}
		config.User = bytes
		c, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		if s.Major < 19 {
			run(t, c, "SET standard_conforming_strings = off; SET escape_string_warning = off")
		}
		got, err := query(t.Context(), c, "SELECT pg_get_backtrace(1)")
		var r Request
		if err == nil {
			err = json.Unmarshal([]byte(got), &r)
		}
		if want := strings.ReplaceAll(bytes, "\xfc", `\xfc`); err != nil || r.CallerName != want {
			t.Errorf("%s: %+v, %v", name, r, describe(err))
		}
		if got, err := query(t.Context(), c, "SELECT (pg_request_backtrace(1) > 0)::text"); err != nil || got != "true" {
			t.Errorf("%s: a request: %s, %v", name, got, describe(err))
		}
		_ = c.Close(t.Context())
		run(t, latin, "DROP ROLE "+quoted)
	}
}

// traps is a schema that has the same names as the functions that the extension calls.
const traps = `
	CREATE SCHEMA trap;
	CREATE FUNCTION trap.leap(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.leap(oid, integer) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.leap(integer, integer) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.leap(bytea, bytea) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE OPERATOR trap.= (leftarg = text, rightarg = text, function = trap.leap);
	CREATE OPERATOR trap.= (leftarg = oid, rightarg = integer, function = trap.leap);
	CREATE OPERATOR trap.= (leftarg = integer, rightarg = integer, function = trap.leap);
	CREATE OPERATOR trap.<= (leftarg = integer, rightarg = integer, function = trap.leap);
	CREATE OPERATOR trap.= (leftarg = bytea, rightarg = bytea, function = trap.leap);
	CREATE FUNCTION trap.sha256(bytea) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.format(text, VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.pg_read_file(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.pg_backend_pid() RETURNS integer LANGUAGE sql AS 'SELECT 1';
	CREATE FUNCTION trap.current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$;
	CREATE VIEW trap.pg_authid AS SELECT 10::oid AS oid, true AS rolsuper;
	CREATE DOMAIN trap.uuid AS integer;
	CREATE TEMP VIEW pg_authid AS SELECT 10::oid AS oid, true AS rolsuper;
	CREATE TEMP TABLE pg_database (oid integer, datname text);
	SET search_path = trap, pg_temp, public, pg_catalog`

// situations are states of a session, each with a call in that state.
var situations = map[string]struct{ before, call string }{
	"explicit transaction": {"BEGIN", call100},
	"savepoint":            {"BEGIN; SAVEPOINT a; SAVEPOINT b", call100},
	"after a failed subtransaction": {
		"BEGIN; DO $$ BEGIN PERFORM pg_get_backtrace(2); EXCEPTION WHEN insufficient_privilege THEN NULL; END $$", call100,
	},
	"repeatable read":         {"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1", call100},
	"serializable":            {"BEGIN ISOLATION LEVEL SERIALIZABLE", call100},
	"deferrable":              {"BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE", call100},
	"read only":               {"BEGIN READ ONLY", call100},
	"read only by default":    {"SET default_transaction_read_only = on", call100},
	"no standard strings":     {"SET standard_conforming_strings = off; SET escape_string_warning = on", call100},
	"search_path of traps":    {traps, call100},
	"empty search_path":       {"SET search_path = ''", "SELECT public.pg_get_backtrace(100)"},
	"plpgsql.extra_errors":    {"LOAD 'plpgsql'; SET plpgsql.extra_errors = 'all'", call100},
	"plan_cache_mode":         {"SET plan_cache_mode = force_custom_plan", call100},
	"row_security off":        {"SET row_security = off", call100},
	"bytea_output":            {"SET bytea_output = escape; SET datestyle = german; SET timezone = 'Asia/Tokyo'", call100},
	"quote_all_identifiers":   {"SET quote_all_identifiers = on", call100},
	"client_min_messages":     {"SET client_min_messages = debug5", call100},
	"transform_null_equals":   {"SET transform_null_equals = on", call100},
	"array_nulls":             {"SET array_nulls = off; SET backslash_quote = off", call100},
	"idle_in_transaction":     {"SET statement_timeout = '180s'; SET lock_timeout = 1", call100},
	"work_mem, no hash, sort": {"SET enable_seqscan = off; SET enable_nestloop = off; SET enable_hashjoin = off", call100},
	"DO":                      {"DO $$ BEGIN PERFORM pg_get_backtrace(100); END $$", call100},
	"SQL function": {
		"CREATE FUNCTION pg_temp.f() RETURNS text LANGUAGE sql AS 'SELECT pg_get_backtrace(100)'", "SELECT pg_temp.f()",
	},
	"trigger": {
		`CREATE TEMP TABLE tr (a text);
			CREATE FUNCTION pg_temp.tf() RETURNS trigger LANGUAGE plpgsql AS
				'BEGIN NEW.a := pg_get_backtrace(100); RETURN NEW; END';
			CREATE TRIGGER t BEFORE INSERT ON tr FOR EACH ROW EXECUTE FUNCTION pg_temp.tf()`,
		"INSERT INTO tr VALUES ('') RETURNING a",
	},
	"cursor": {"BEGIN; DECLARE c CURSOR FOR SELECT pg_get_backtrace(100) FROM generate_series(1, 3); FETCH c", "FETCH c"},
	"cursor past the transaction": {
		"BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT pg_get_backtrace(100) FROM generate_series(1, 3); COMMIT", "FETCH c",
	},
	"parallel plan": {
		`CREATE TABLE big AS SELECT i FROM generate_series(1, 20000) i; ANALYZE big;
			SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
			SET max_parallel_workers_per_gather = 2`,
		"SELECT max(pg_get_backtrace(i)) FROM (SELECT i FROM big WHERE i = 100) x",
	},
	"parallel leader": {
		`SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
			CREATE TABLE big2 AS SELECT i FROM generate_series(1, 20000) i; ANALYZE big2`,
		"SELECT pg_get_backtrace(i) FROM big2 WHERE i = 100",
	},
	"parallel mode forced": {"SET force_parallel_mode = on", call100},
}

func (s *site) testSituations(t *testing.T) {
	for name, q := range situations {
		t.Run(name, func(t *testing.T) {
			if name == "parallel mode forced" && s.Major >= 16 {
				q.before = "SET debug_parallel_query = on"
			}
			if strings.HasPrefix(name, "no standard") && s.Major >= 19 {
				t.Skip("19 has no standard_conforming_strings = off any more")
			}
			c := s.Connect(t, s.User, "postgres")
			run(t, c, q.before)
			if got, err := query(t.Context(), c, q.call); err != nil || got != "#0 get 100" {
				t.Errorf("got %q, %v", got, describe(err))
			}
			if strings.HasPrefix(name, "parallel") {
				run(t, c, strings.NewReplacer("pg_get", "pg_log", "max(", "bool_and(").Replace(q.call))
			}
		})
	}
}

func (s *site) testIdentity(t *testing.T) {
	c := s.Connect(t, s.User, "postgres")
	run(t, c, `CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE "123" LOGIN; CREATE ROLE "pg-backtrace" LOGIN;
		CREATE ROLE boss SUPERUSER LOGIN; GRANT alice TO bob; CREATE ROLE mallory LOGIN;
		GRANT EXECUTE ON FUNCTION pg_get_backtrace TO alice, "123", "pg-backtrace";
		CREATE FUNCTION as_alice(int) RETURNS text LANGUAGE sql SECURITY DEFINER AS 'SELECT pg_get_backtrace($1)';
		ALTER FUNCTION as_alice OWNER TO alice;
		CREATE FUNCTION as_boss(int) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN RETURN as_alice($1); END';
		ALTER FUNCTION as_boss OWNER TO boss;
		CREATE FUNCTION boss_of_boss(int) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
			AS 'BEGIN RETURN pg_get_backtrace($1); END';
		ALTER FUNCTION boss_of_boss OWNER TO boss`)
	for name, q := range map[string]struct{ user, before, call, want string }{
		"own name":                  {"alice", "", "pg_get_backtrace(1)", "alice false"},
		"a name of digits":          {"123", "", "pg_get_backtrace(1)", "123 false"},
		"a name with a dash":        {"pg-backtrace", "", "pg_get_backtrace(1)", "pg-backtrace false"},
		"superuser":                 {"boss", "", "pg_get_backtrace(1)", "boss true"},
		"member":                    {"bob", "", "pg_get_backtrace(1)", "bob false"},
		"SET ROLE":                  {"bob", "SET ROLE alice", "pg_get_backtrace(1)", "alice false"},
		"SET ROLE down":             {"boss", "SET ROLE alice", "pg_get_backtrace(1)", "alice false"},
		"SET SESSION AUTHORIZATION": {"boss", "SET SESSION AUTHORIZATION alice", "pg_get_backtrace(1)", "alice false"},
		"definer":                   {"mallory", "", "as_alice(1)", "alice false"},
		"definer of a superuser":    {"mallory", "", "boss_of_boss(1)", "boss true"},
		"definer in a definer":      {"mallory", "", "as_boss(1)", "alice false"},
		"superuser in a definer":    {"boss", "", "as_alice(1)", "alice false"},
	} {
		d := s.Connect(t, q.user, "postgres")
		run(t, d, q.before)
		if got := asked(t, d, "SELECT "+q.call); fmt.Sprint(got.CallerName, " ", got.Superuser) != q.want {
			t.Errorf("%s: %+v, want %s", name, got, q.want)
		}
	}
	// Renamed and deprived while a transaction with an old snapshot runs.
	d := s.Connect(t, "boss", "postgres")
	run(t, d, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_authid")
	run(t, c, "ALTER ROLE boss RENAME TO former; ALTER ROLE former NOSUPERUSER; ALTER ROLE alice RENAME TO boss;"+
		"GRANT EXECUTE ON FUNCTION pg_get_backtrace TO former")
	if got := asked(t, d, "SELECT pg_get_backtrace(1)"); got.CallerName != "former" || got.Superuser {
		t.Errorf("renamed and deprived: %+v", got)
	}
	run(t, c, "REVOKE EXECUTE ON FUNCTION pg_get_backtrace FROM former")
	run(t, d, "COMMIT") // as everywhere in the server: a transaction may go on with a right that it has used
	if got := fails(t, d, "SELECT pg_get_backtrace(1)"); got != denied {
		t.Errorf("right withdrawn: %s", got)
	}
	// The function is known by oid, wherever its schema goes.
	run(t, c, "ALTER SCHEMA public RENAME TO elsewhere")
	d = s.Connect(t, "123", "postgres")
	if got := asked(t, d, "SELECT elsewhere.pg_get_backtrace(1)"); got.CallerName != "123" {
		t.Errorf("schema renamed: %+v", got)
	}
	run(t, c, "ALTER SCHEMA elsewhere RENAME TO public")
}

// TestSQLStandby uses a hot standby, which has the primary's extension and its own worker.
func TestSQLStandby(t *testing.T) {
	prepare := func(dsn string) {
		c, err := pgtestConnect(t, dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(context.Background()) }()
		if _, err := c.Exec(t.Context(), "CREATE EXTENSION pg_stat_backtrace"); err != nil {
			t.Skipf("the extension is not installed in this server: %v", err)
		}
	}
	eachSite(t, pgtest.Options{Standby: true, Prepare: prepare}, func(t *testing.T, s *site) {
		c := s.Connect(t, s.User, "postgres")
		if got := fails(t, c, "SELECT pg_get_backtrace(100)"); !strings.HasPrefix(got, notRunning) {
			t.Errorf("without a worker: %s", got)
		}
		s.work(t)
		for _, before := range []string{"", "BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN; SAVEPOINT a"} {
			run(t, c, before)
			if got := text(t, c, "SELECT pg_get_backtrace(100)"); got != "#0 get 100" {
				t.Errorf("%s: %q", before, got)
			}
			run(t, c, "ROLLBACK; SELECT pg_log_backtrace(100)")
		}
		if _, err := os.Stat(s.DataDir + "/standby.signal"); err != nil {
			t.Error("this was no standby")
		}
	})
}
