package spool

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Each attack here failed when it was written; a test fails when it succeeds.
func (s *site) testAttacks(t *testing.T) {
	c := s.Connect(t, s.User, "postgres")
	run(t, c, `CREATE ROLE eve LOGIN; CREATE ROLE reader LOGIN; GRANT pg_read_all_data, pg_monitor TO reader;
		CREATE ROLE writer LOGIN; GRANT pg_write_all_data, pg_write_server_files TO writer;
		CREATE ROLE granted LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace TO granted;
		GRANT CREATE ON SCHEMA public TO eve`)
	t.Run("forgery", s.testForgery)
	t.Run("replay", s.testReplay)
	t.Run("secret", s.testSecret)
	t.Run("printing", s.testPrinting)
	t.Run("request by hand", s.testRequestByHand)
}

// whoami is a proof in SQL text.
func whoami(t *testing.T, c *pgx.Conn) string {
	t.Helper()
	return text(t, c, "SELECT format('%s,%s,%L,%L', caller, backend, stamp, mac) FROM backtrace.whoami")
}

const forged = "42501|permission denied for function pg_get_backtrace||"

func (s *site) testForgery(t *testing.T) {
	eve, granted := s.Connect(t, "eve", "postgres"), s.Connect(t, "granted", "postgres")
	for name, sql := range map[string]string{
		"without the right":   "SELECT backtrace.call(w, 'get', '{100}') FROM backtrace.whoami w",
		"the public function": "SELECT pg_get_backtrace(100)",
		"another verb":        "SELECT backtrace.call(w, 'log', '{100}') FROM backtrace.whoami w",
	} {
		want := forged
		if name == "another verb" {
			want = strings.Replace(forged, "get", "log", 1)
		}
		if got := fails(t, eve, sql); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	const fields = "SELECT backtrace.call(ROW(%s)::backtrace.whoami, 'get', '{100}')::text FROM backtrace.whoami w"
	honest := text(t, granted, `WITH RECURSIVE calls AS (
			SELECT w AS me, backtrace.call(w, 'get', '{100}') AS a FROM backtrace.whoami w
			UNION ALL
			SELECT me, backtrace.call(me, 'get', '{100}', a) FROM calls
			WHERE a[1] = 'wait' AND pg_sleep(a[2]::double precision) IS NOT NULL)
		SELECT a::text FROM calls WHERE a[1] <> 'wait'`)
	if !strings.Contains(honest, "#0 get 100") {
		t.Fatalf("an honest proof is refused: %s", honest)
	}
	for name, row := range map[string]string{
		"oid":              "10, w.backend, w.stamp, w.mac",
		"backend":          "w.caller, w.backend + 1, w.stamp, w.mac",
		"time":             "w.caller, w.backend, w.stamp + interval '1us', w.mac",
		"code":             "w.caller, w.backend, w.stamp, set_byte(w.mac, 0, 255 - get_byte(w.mac, 0))",
		"shorter code":     "w.caller, w.backend, w.stamp, substring(w.mac, 1, 31)",
		"empty code":       "w.caller, w.backend, w.stamp, ''::bytea",
		"no code":          "w.caller, w.backend, w.stamp, NULL",
		"no caller":        "NULL, w.backend, w.stamp, w.mac",
		"nothing":          "NULL, NULL, NULL, NULL",
		"a code of SHA256": "10, w.backend, w.stamp, sha256(oidsend(10))",
		"caller 0":         "0, w.backend, w.stamp, w.mac",
	} {
		if got := fails(t, granted, fmt.Sprintf(fields, row)); got != forged {
			t.Errorf("forged %s: %s", name, got)
		}
	}
	for name, call := range map[string]string{
		"NULL verb":      "backtrace.call(w, NULL, '{100}')::text",
		"NULL target":    "backtrace.call(w, 'get', NULL)::text",
		"NULL proof":     "backtrace.call(NULL, 'get', '{100}')::text",
		"unknown verb":   "backtrace.call(w, 'stop', '{100}')::text",
		"verb of a path": "backtrace.call(w, '../../x', '{100}')::text",
	} {
		got, err := query(t.Context(), granted, "SELECT "+call+" FROM backtrace.whoami w")
		if got += describe(err); !strings.HasPrefix(got, "NULL") && !strings.HasPrefix(got, "42501") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func (s *site) testReplay(t *testing.T) {
	granted, other := s.Connect(t, "granted", "postgres"), s.Connect(t, "granted", "postgres")
	boss := s.Connect(t, s.User, "postgres")
	call := "SELECT backtrace.call(ROW(%s)::backtrace.whoami, 'get', '{100}')::text"
	for name, c := range map[string]*pgx.Conn{"a later statement": granted, "another session": other} {
		if got := fails(t, c, fmt.Sprintf(call, whoami(t, granted))); got != forged {
			t.Errorf("%s: %s", name, got)
		}
	}
	// A superuser's proof does not outlive the statement, though the session goes on as somebody else.
	proof := whoami(t, boss)
	run(t, boss, "SET SESSION AUTHORIZATION granted")
	if got := fails(t, boss, fmt.Sprintf(call, proof)); got != forged {
		t.Errorf("after SET SESSION AUTHORIZATION: %s", got)
	}
	// One transaction: the proof of an earlier statement in it.
	tx := s.Connect(t, "granted", "postgres")
	run(t, tx, "BEGIN")
	if got := fails(t, tx, fmt.Sprintf(call, whoami(t, tx))); got != forged {
		t.Errorf("in one transaction: %s", got)
	}
}

func (s *site) testSecret(t *testing.T) {
	boss := s.Connect(t, s.User, "postgres")
	for _, sql := range []string{"ANALYZE", "ANALYZE backtrace.secret", "VACUUM ANALYZE backtrace.secret"} {
		run(t, boss, sql)
	}
	before := text(t, boss, "SELECT md5(s::text) FROM backtrace.secret s")
	keys := text(t, boss, "SELECT encode(ikey, 'hex') FROM backtrace.secret")
	for _, user := range []string{"eve", "granted", "reader", "writer"} {
		c := s.Connect(t, user, "postgres")
		for _, sql := range []string{
			"SELECT count(*)::text FROM backtrace.secret",
			"COPY backtrace.secret TO STDOUT",
			"SELECT string_agg(x::text, '') FROM pg_statistic x WHERE starelid = 'backtrace.secret'::regclass",
			"SELECT string_agg(x::text, '') FROM pg_stats x WHERE tablename = 'secret'",
			"INSERT INTO backtrace.secret VALUES ('a', 'b') RETURNING 'done'",
			"UPDATE backtrace.secret SET ikey = '', okey = '' RETURNING 'done'",
			"DELETE FROM backtrace.secret RETURNING 'done'",
			"DELETE FROM backtrace.whoami RETURNING 'done'",
			"INSERT INTO backtrace.whoami VALUES (1) RETURNING 'done'",
			"TRUNCATE backtrace.secret",
			"CREATE INDEX ON backtrace.secret (ikey)",
			"ALTER TABLE backtrace.secret DISABLE ROW LEVEL SECURITY",
			"CREATE POLICY p ON backtrace.secret USING (true)",
			"CREATE FUNCTION backtrace.x() RETURNS int LANGUAGE sql AS 'SELECT 1'",
			"SET row_security = off; SELECT count(*)::text FROM backtrace.secret",
			"LOCK TABLE backtrace.secret IN ACCESS EXCLUSIVE MODE",
		} {
			results, err := c.PgConn().Exec(t.Context(), sql).ReadAll()
			if err != nil {
				continue
			}
			for _, r := range results {
				for _, row := range r.Rows {
					if value := string(row[0]); value != "" && value != "0" {
						t.Errorf("%s: %s: %s", user, sql, value)
					}
				}
			}
		}
	}
	if after := text(t, boss, "SELECT md5(s::text) FROM backtrace.secret s"); after != before {
		t.Error("the secret has changed")
	}
	const statistics = "SELECT count(*)::text FROM pg_statistic WHERE starelid = 'backtrace.secret'::regclass"
	if got := text(t, boss, statistics); got != "0" {
		t.Errorf("%s rows of statistics", got)
	}
	if len(keys) != 128 {
		t.Errorf("the key block has %d digits", len(keys))
	}
}

// Nothing that the server prints holds a key, whatever it is told to print.
func (s *site) testPrinting(t *testing.T) {
	boss := s.Connect(t, s.User, "postgres")
	keys := strings.Fields(text(t, boss, "SELECT encode(ikey, 'hex') || ' ' || encode(okey, 'hex') FROM backtrace.secret"))
	info, err := os.ReadFile(s.DataDir + "/" + pidName)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(info), "\n")
	keys = append(keys, lines[6], lines[7])
	run(t, boss, `CREATE FUNCTION public.leak(anyelement) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS
		$$ BEGIN RAISE NOTICE 'leak %', $1; RETURN true; END $$`)
	c, notices := s.notices(t, "granted", "postgres")
	start := len(s.Log())
	for _, sql := range []string{
		"SET client_min_messages = debug5; SET debug_print_plan = on; SET debug_print_parse = on; " +
			"SET debug_print_rewritten = on; SET debug_pretty_print = off",
		"SELECT pg_get_backtrace(100)",
		"SELECT pg_get_backtrace($1)",
		"SELECT count(*)::text FROM backtrace.whoami w WHERE leak(w) AND leak(w.mac) AND leak(w.caller)",
		"SELECT count(*)::text FROM backtrace.whoami w JOIN generate_series(1, 2) g ON leak(g) AND leak(w.stamp)",
		"EXPLAIN (ANALYZE, VERBOSE) SELECT * FROM backtrace.whoami WHERE leak(mac)",
		"SELECT pg_get_backtrace(2)",
		"SELECT backtrace.call(ROW(10, 1, now(), '')::backtrace.whoami, 'get', '{100}')",
		"SELECT 1 / (length(mac) - 32) FROM backtrace.whoami",
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

// Who may make the server write a file, and has learned where, still cannot make a request.
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
