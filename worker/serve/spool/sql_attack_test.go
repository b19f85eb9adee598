package spool

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// testAttacks makes attacks, each of which failed when its test was written. A test fails if its attack succeeds.
func (s *site) testAttacks(t *testing.T) {
	c := s.Connect(t, s.User, "postgres")
	run(t, c, `CREATE ROLE eve LOGIN; CREATE ROLE reader LOGIN; GRANT pg_read_all_data, pg_monitor TO reader;
		CREATE ROLE writer LOGIN; GRANT pg_write_all_data, pg_write_server_files TO writer;
		CREATE ROLE granted LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace TO granted;
		GRANT CREATE ON SCHEMA public TO eve`)
	t.Run("forgery", s.testForgery)
	t.Run("imposture", s.testImposture)
	t.Run("an older function of the same name", s.testOlderName)
	t.Run("replay", s.testReplay)
	t.Run("objects", s.testObjects)
	t.Run("printing", s.testPrinting)
	t.Run("request by hand", s.testRequestByHand)
}

const forged = "42501|permission denied for function pg_get_backtrace||"

// honest makes requests as the public function does.
const honest = `WITH RECURSIVE calls AS (
		SELECT backtrace.ask(0, 'get', '{100}') AS a
		UNION ALL
		SELECT backtrace.ask(0, 'get', '{100}', a) FROM calls
		WHERE a[1] = 'wait' AND pg_sleep(a[2]::double precision) IS NOT NULL)
	SELECT a::text FROM calls WHERE a[1] <> 'wait'`

func (s *site) testForgery(t *testing.T) {
	eve, granted := s.Connect(t, "eve", "postgres"), s.Connect(t, "granted", "postgres")
	for name, sql := range map[string]string{
		"without the right":   "SELECT backtrace.ask(0, 'get', '{100}')::text",
		"the public function": "SELECT pg_get_backtrace(100)",
		"another verb":        "SELECT backtrace.ask(0, 'log', '{100}')::text",
		"for oneself":         "SELECT backtrace.call(current_user::regrole::oid, 'get', '{100}', '{}')::text",
		"for a superuser":     "SELECT backtrace.call(10, 'get', '{100}', '{}')::text",
		"for nobody":          "SELECT backtrace.call(0, 'get', '{100}', '{}')::text",
		"in named notation": "SELECT backtrace.call(caller => 10, verb => 'get', targets => '{100}', " +
			"waiting => '{}')::text",
	} {
		want := forged
		if name == "another verb" {
			want = strings.Replace(forged, "get", "log", 1)
		}
		for role, c := range map[string]*pgx.Conn{"eve": eve, "granted": granted} {
			if role == "granted" && (name == "without the right" || name == "the public function") {
				continue
			}
			if got := fails(t, c, sql); got != want {
				t.Errorf("%s: %s: %s", role, name, got)
			}
		}
	}
	if got := text(t, granted, honest); !strings.Contains(got, "#0 get 100") {
		t.Fatalf("an honest request is refused: %s", got)
	}
	for name, call := range map[string]string{
		"NULL verb":      "backtrace.ask(0, NULL, '{100}')::text",
		"NULL target":    "backtrace.ask(0, 'get', NULL)::text",
		"NULL caller":    "backtrace.call(NULL, 'get', '{100}', '{}')::text",
		"unknown verb":   "backtrace.ask(0, 'stop', '{100}')::text",
		"verb of a path": "backtrace.ask(0, '../../x', '{100}')::text",
	} {
		got, err := query(t.Context(), granted, "SELECT "+call)
		if got += describe(err); !strings.HasPrefix(got, "NULL") && !strings.HasPrefix(got, "42501") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func (s *site) testReplay(t *testing.T) {
	granted, other := s.Connect(t, "granted", "postgres"), s.Connect(t, "granted", "postgres")
	boss := s.Connect(t, s.User, "postgres")
	// The handle of a waiting call is useless in another statement, session or role: the answer is not found, and the
	// privilege is checked.
	s.Exec(t, "CREATE ROLE waits LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace TO waits")
	w := s.Connect(t, "waits", "postgres")
	handle := text(t, w, "SELECT backtrace.ask(0, 'get', ARRAY["+strconv.Itoa(askLonger)+"])::text")
	if !strings.HasPrefix(handle, "{wait") {
		t.Fatal(handle)
	}
	wait(t, "its answer", func() bool {
		info, err := Find(s.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		answers, err := filepath.Glob(filepath.Join(info.Dir, "*"+repSuffix))
		return err == nil && len(answers) == 1
	})
	s.Exec(t, "REVOKE EXECUTE ON FUNCTION pg_get_backtrace FROM waits")
	for name, c := range map[string]*pgx.Conn{"a later statement": w, "another role": s.Connect(t, "eve", "postgres")} {
		if got := fails(t, c, "SELECT backtrace.ask(0, 'get', '{9}', '"+handle+"')::text"); got != forged {
			t.Errorf("%s: %s", name, got)
		}
	}
	for name, c := range map[string]*pgx.Conn{"another session": other, "the same role": granted} {
		got := text(t, c, "SELECT (backtrace.ask(0, 'get', '{100}', '"+handle+"'))[6]")
		if strings.Contains(got, fmt.Sprint("get ", askLonger)) {
			t.Errorf("%s: %s", name, got)
		}
	}
	run(t, boss, "SET SESSION AUTHORIZATION eve")
	if got := fails(t, boss, "SELECT pg_get_backtrace(100)"); got != forged {
		t.Errorf("after SET SESSION AUTHORIZATION: %s", got)
	}
}

// testObjects checks that roles with read or write access to every table learn nothing, change nothing, and block no
// other session.
func (s *site) testObjects(t *testing.T) {
	caller := s.Connect(t, s.User, "postgres")
	run(t, caller, "SET statement_timeout = '180s'") // a call that waits for a lock
	for _, user := range []string{"eve", "granted", "reader", "writer"} {
		c := s.Connect(t, user, "postgres")
		for _, sql := range []string{
			"INSERT INTO backtrace.request (verb, caller, caller_name) VALUES ('get', 10, 'x') RETURNING 'done'",
			"CREATE TRIGGER x BEFORE INSERT ON backtrace.request EXECUTE FUNCTION suppress_redundant_updates_trigger()",
			"CREATE RULE x AS ON INSERT TO backtrace.request DO INSTEAD NOTHING",
			"CREATE INDEX ON backtrace.request (caller)", "CREATE POLICY p ON backtrace.request USING (true)",
			"ALTER TABLE backtrace.request DISABLE ROW LEVEL SECURITY",
			"CREATE TABLE public.child () INHERITS (backtrace.request)",
			"CREATE FUNCTION backtrace.x() RETURNS int LANGUAGE sql AS 'SELECT 1'",
			"ALTER DOMAIN backtrace.seal RENAME TO x", "ALTER SCHEMA backtrace RENAME TO x",
			"SELECT backtrace.may_ask(10, 'get')::text", "SELECT backtrace.verb_function('get')::text",
			"SELECT backtrace.called_by('', '', '')::text", "SELECT backtrace.guard()::text",
		} {
			if got, err := query(t.Context(), c, sql); err == nil || strings.HasPrefix(describe(err), "42601") {
				t.Errorf("%s: %s: %q %v", user, sql, got, err)
			}
		}
		// Every relation of the extension, locked as firmly as the role can: calls do not wait for it.
		run(t, c, "BEGIN")
		for relation := range strings.FieldsSeq(text(t, caller, `SELECT string_agg(objid::regclass::text, ' ') FROM pg_depend
			WHERE deptype = 'e' AND classid = 'pg_class'::regclass AND refobjid = (SELECT oid FROM pg_extension
				WHERE extname = 'pg_stat_backtrace')
				AND (SELECT relkind FROM pg_class WHERE oid = objid) IN ('r', 'v')`)) {
			run(t, c, "SAVEPOINT s")
			_, err := c.Exec(t.Context(), "LOCK TABLE "+relation+" IN ACCESS EXCLUSIVE MODE")
			if err != nil {
				run(t, c, "ROLLBACK TO s")
			}
			if locked := err == nil; locked != (user == "writer") {
				t.Errorf("%s locks %s: %v", user, relation, err)
			}
		}
		if got := text(t, caller, "SELECT pg_get_backtrace(100)"); got != "#0 get 100" {
			t.Errorf("while %s holds locks: %s", user, got)
		}
		run(t, c, "ROLLBACK")
	}
}

// testPrinting checks that no output of the server contains a key.
func (s *site) testPrinting(t *testing.T) {
	boss := s.Connect(t, s.User, "postgres")
	info, err := os.ReadFile(s.DataDir + "/" + pidName)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(info), "\n")
	keys := []string{lines[6], lines[7]}
	run(t, boss, `CREATE FUNCTION public.leak(anyelement) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS
		$$ BEGIN RAISE NOTICE 'leak %', $1; RETURN true; END $$`)
	c, notices := s.notices(t, "granted")
	start := len(s.Log())
	for _, sql := range []string{
		"SET client_min_messages = debug5; SET debug_print_plan = on; SET debug_print_parse = on; " +
			"SET debug_print_rewritten = on; SET debug_pretty_print = off",
		"SELECT pg_get_backtrace(100)",
		"SELECT pg_get_backtrace($1)",
		"SELECT count(*)::text FROM backtrace.ask(0, 'get', '{100}') a WHERE leak(a)",
		"EXPLAIN (ANALYZE, VERBOSE) SELECT backtrace.ask(0, 'get', '{100}')",
		"SELECT pg_get_backtrace(2)",
		"SELECT backtrace.call(10, 'get', '{100}', '{}')",
	} {
		_, _ = c.PgConn().Exec(t.Context(), strings.ReplaceAll(sql, "$1", "100")).ReadAll()
	}
	printed := strings.ToLower(strings.Join(notices(), "\n") + s.Log()[start:])
	for i, k := range keys {
		decimal := make([]string, 0, 8) // as a plan shows a constant: bytes in decimal, signed or not
		for n := 0; n < 16; n += 2 {
			var b int8
			var u uint8
			if _, err := fmt.Sscanf(k[n:n+2], "%x", &u); err != nil {
				t.Fatal(err)
			}
			b = int8(u)
			decimal = append(decimal, strconv.Itoa(int(b)))
		}
		if strings.Contains(printed, k[:16]) || strings.Contains(printed, strings.Join(decimal, " ")) {
			t.Errorf("key %d is printed", i)
		}
	}
	if !strings.Contains(printed, "leak") {
		t.Error("nothing was printed at all")
	}
}

// testRequestByHand checks that a role that can make the server write a file at a known path still cannot forge a
// request.
func (s *site) testRequestByHand(t *testing.T) {
	info, err := Find(s.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	writer := s.Connect(t, "writer", "postgres")
	for n, line := range []string{
		"1 " + id(1) + " get 100 3000 10 t 1 UTF8 61 61 0000",
		"1 " + id(1) + " get 100 3000 10 t 1 UTF8 61 61 " + key{}.sign([]byte("1 "+id(1)+" get 100 3000 10 t 1 UTF8 61 61")),
	} {
		run(t, writer, fmt.Sprintf("COPY (SELECT '%s') TO '%s/%s.req'", line, info.Dir, id(n)))
		wait(t, "the request is taken", func() bool { return !exists(info.Dir + "/" + id(n) + reqSuffix) })
		if got := text(t, writer, "SELECT 'still there'"); got == "" || exists(info.Dir+"/"+id(n)+repSuffix) {
			t.Error("answered")
		}
	}
}
