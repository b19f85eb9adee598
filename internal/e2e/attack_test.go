package e2e

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// attacks: each failed when it was written, and a test fails when its attack succeeds. The roles are those of
// permissions.
func attacks(t *testing.T, s *site) {
	boss := s.connect(t, s.User, "postgres")
	boss.run(t, `GRANT CREATE ON SCHEMA public TO stranger, ungranted;
		GRANT pg_read_all_settings, pg_read_all_stats TO monitor`)
	boss.run(t, "CREATE DATABASE second")
	second := s.connect(t, s.User, "second")
	second.run(t, `CREATE EXTENSION pg_stat_backtrace; GRANT EXECUTE ON FUNCTION pg_get_backtrace TO stranger`)
	t.Run("forgery", s.forgery)
	t.Run("replay", s.replay)
	t.Run("the secret", s.secret)
	t.Run("printing", s.printing)
	t.Run("role tricks in definers", s.tricks)
	t.Run("shadows", s.shadows)
	t.Run("a request by hand", s.byHand)
	t.Run("a flood", s.flood)
}

// proof is a row of whoami as SQL text.
func proof(t *testing.T, c *session) string {
	t.Helper()
	return c.text(t, "SELECT format('%s, %s, %L, %L', caller, backend, stamp, mac) FROM backtrace.whoami")
}

// untilAnswered calls the inner function as the public one does.
func untilAnswered(pid int) string {
	return fmt.Sprintf(`WITH RECURSIVE calls AS (
			SELECT w AS me, backtrace.call(w, 'get', ARRAY[%[1]d]) AS a FROM backtrace.whoami w
			UNION ALL
			SELECT me, backtrace.call(me, 'get', ARRAY[%[1]d], a) FROM calls
			WHERE a[1] = 'wait' AND pg_sleep(a[2]::double precision) IS NOT NULL)
		SELECT a::text FROM calls WHERE a[1] <> 'wait'`, pid)
}

const inner = "SELECT backtrace.call(ROW(%s)::backtrace.whoami, 'get', ARRAY[%d])::text"

func (s *site) forgery(t *testing.T) {
	super, own := s.idle(t, "boss"), s.idle(t, "stranger")
	eve, granted := s.connect(t, "ungranted", "postgres"), s.connect(t, "stranger", "postgres")
	for _, sql := range []string{
		"SELECT backtrace.call(w, 'get', ARRAY[%d])::text FROM backtrace.whoami w",
		"SELECT backtrace.call(w, 'log', ARRAY[%d])::text FROM backtrace.whoami w",
		"SELECT pg_get_backtrace(%d)", "SELECT pg_log_backtrace(%d)::text",
	} {
		eve.fails(t, "denied function", fmt.Sprintf(sql, super))
	}
	granted.fails(t, "denied view", "SELECT backtrace.call(w, 'stat', '{}')::text FROM backtrace.whoami w")
	const call = "SELECT backtrace.call(ROW(%s)::backtrace.whoami, 'get', ARRAY[%d])::text FROM backtrace.whoami w"
	honest := granted.text(t, untilAnswered(own))
	if !strings.Contains(honest, "PostgresMain") {
		t.Fatalf("an honest proof is refused: %s", honest)
	}
	for name, row := range map[string]string{
		"oid":                "10, w.backend, w.stamp, w.mac",
		"the owner's oid":    "(SELECT oid FROM pg_roles WHERE rolname = 'boss'), w.backend, w.stamp, w.mac",
		"backend":            "w.caller, w.backend + 1, w.stamp, w.mac",
		"time":               "w.caller, w.backend, w.stamp + interval '1us', w.mac",
		"no time":            "w.caller, w.backend, NULL, w.mac",
		"infinite time":      "w.caller, w.backend, 'infinity', w.mac",
		"code":               "w.caller, w.backend, w.stamp, set_byte(w.mac, 31, 255 - get_byte(w.mac, 31))",
		"shorter code":       "w.caller, w.backend, w.stamp, substring(w.mac, 1, 31)",
		"longer code":        `w.caller, w.backend, w.stamp, w.mac || '\x00'`,
		"empty code":         "w.caller, w.backend, w.stamp, ''::bytea",
		"no code":            "w.caller, w.backend, w.stamp, NULL",
		"no caller":          "NULL, w.backend, w.stamp, w.mac",
		"nothing":            "NULL, NULL, NULL, NULL",
		"caller 0":           "0, w.backend, w.stamp, w.mac",
		"a hash without key": "10, w.backend, w.stamp, sha256(oidsend(10) || int4send(w.backend))",
	} {
		t.Run(name, func(t *testing.T) { granted.fails(t, "denied function", fmt.Sprintf(call, row, super)) })
	}
	for _, arguments := range []string{
		"w, NULL, ARRAY[%d]", "w, 'get', CASE WHEN %d < 0 THEN ARRAY[1] END", "NULL, 'get', ARRAY[%d]",
		"w, 'stop', ARRAY[%d]",
		"w, '../../x', ARRAY[%d]",
	} {
		sql := fmt.Sprintf("SELECT backtrace.call("+arguments+")::text FROM backtrace.whoami w", super)
		got, e := granted.try(t.Context(), sql)
		if e.level == "" && got != "NULL" || e.level != "" && e.state != "42501" {
			t.Errorf("%s: %s %v", arguments, got, e)
		}
	}
}

func (s *site) replay(t *testing.T) {
	super, own := s.idle(t, "boss"), s.idle(t, "stranger")
	granted, again := s.connect(t, "stranger", "postgres"), s.connect(t, "stranger", "postgres")
	elsewhere := s.connect(t, "stranger", "second")
	boss := s.connect(t, "boss", "postgres")
	for name, c := range map[string]*session{
		"a later statement": granted, "another session": again, "another database": elsewhere,
	} {
		t.Run(name, func(t *testing.T) {
			c.fails(t, "denied function", fmt.Sprintf(inner, proof(t, granted), own))
			c.fails(t, "denied function", fmt.Sprintf(inner, proof(t, boss), super))
		})
	}
	t.Run("a superuser's, in its session", func(t *testing.T) {
		kept := proof(t, boss)
		boss.run(t, "SET SESSION AUTHORIZATION stranger")
		boss.fails(t, "denied function", fmt.Sprintf(inner, kept, super))
	})
	t.Run("in one transaction", func(t *testing.T) {
		c := s.connect(t, "stranger", "postgres")
		c.run(t, "BEGIN")
		c.fails(t, "denied function", fmt.Sprintf(inner, proof(t, c), own))
	})
	t.Run("kept from a definer, in one statement", func(t *testing.T) {
		// What somebody's definer function gives away may be used until the statement ends: the function has decided so.
		// Afterwards it is worth nothing.
		c := s.connect(t, "stranger", "postgres")
		s.Exec(t, `CREATE OR REPLACE FUNCTION careless() RETURNS text LANGUAGE sql SECURITY DEFINER AS
			$$ SELECT format('%s, %s, %L, %L', caller, backend, stamp, mac) FROM backtrace.whoami $$`)
		c.fails(t, "denied function", fmt.Sprintf(inner, c.text(t, "SELECT careless()"), super))
		s.Exec(t, "DROP FUNCTION careless()")
	})
}

// secret: nobody but the owner and superusers reads or changes the key, whatever predefined roles they hold.
func (s *site) secret(t *testing.T) {
	boss := s.connect(t, s.User, "postgres")
	for _, sql := range []string{"ANALYZE backtrace.secret", "VACUUM ANALYZE backtrace.secret"} {
		boss.run(t, sql)
	}
	const fingerprint = "SELECT md5(string_agg(s::text, '')) FROM backtrace.secret s"
	before := boss.text(t, fingerprint)
	for _, user := range []string{"ungranted", "stranger", "monitor", "signaler", "creator", "superheir"} {
		c := s.connect(t, user, "postgres")
		for _, sql := range []string{
			"SELECT count(*)::text FROM backtrace.secret",
			"COPY backtrace.secret TO STDOUT",
			"SELECT string_agg(x::text, '') FROM pg_statistic x WHERE starelid = 'backtrace.secret'::regclass",
			"SELECT string_agg(x::text, '') FROM pg_stats x WHERE tablename = 'secret'",
			"INSERT INTO backtrace.secret VALUES ('a', 'b') RETURNING 'done'",
			"UPDATE backtrace.secret SET ikey = '', okey = '' RETURNING 'done'",
			"DELETE FROM backtrace.secret RETURNING 'done'",
			"INSERT INTO backtrace.whoami VALUES (1) RETURNING 'done'",
			"UPDATE backtrace.whoami SET caller = 10 RETURNING 'done'",
			"DELETE FROM backtrace.whoami RETURNING 'done'",
			"TRUNCATE backtrace.secret",
			"CREATE INDEX ON backtrace.secret (ikey)",
			"CREATE TRIGGER x BEFORE INSERT ON backtrace.secret EXECUTE FUNCTION suppress_redundant_updates_trigger()",
			"ALTER TABLE backtrace.secret DISABLE ROW LEVEL SECURITY",
			"CREATE POLICY p ON backtrace.secret USING (true)",
			"CREATE OR REPLACE VIEW backtrace.whoami AS SELECT 1",
			"ALTER FUNCTION backtrace.call(backtrace.whoami, text, int[], text[]) OWNER TO CURRENT_USER",
			"ALTER FUNCTION backtrace.call(backtrace.whoami, text, int[], text[]) SET search_path = public",
			"CREATE FUNCTION backtrace.x() RETURNS int LANGUAGE sql AS 'SELECT 1'",
			"GRANT EXECUTE ON FUNCTION pg_log_backtrace(int) TO PUBLIC",
			"SET row_security = off; SELECT count(*)::text FROM backtrace.secret",
			"SELECT max(v.function)::text FROM backtrace.verb v",
			"LOCK TABLE backtrace.secret IN ACCESS EXCLUSIVE MODE",
			"ALTER EXTENSION pg_stat_backtrace UPDATE",
			"DROP EXTENSION pg_stat_backtrace",
		} {
			// What returns without an error has found nothing and changed nothing: monitor may read and write all tables.
			results, _ := c.PgConn().Exec(t.Context(), sql).ReadAll()
			for _, r := range results {
				for _, row := range r.Rows {
					value := string(row[0])
					if value != "" && value != "0" && !strings.HasPrefix(sql, "SELECT max(v.function)") {
						t.Errorf("%s: %s: %s", user, sql, value)
					}
				}
			}
		}
	}
	if after := boss.text(t, fingerprint); after != before {
		t.Error("the secret has changed")
	}
	const statistics = "SELECT count(*)::text FROM pg_statistic WHERE starelid = 'backtrace.secret'::regclass"
	if got := boss.text(t, statistics); got != "0" {
		t.Errorf("%s rows of statistics", got)
	}
	if boss.text(t, "SELECT has_function_privilege('ungranted', 'pg_log_backtrace(int)', 'EXECUTE')::text") != "false" {
		t.Error("somebody has granted EXECUTE")
	}
}

// printing: nothing that the server prints holds a key, or the way to the spool, whatever it is told to print.
func (s *site) printing(t *testing.T) {
	boss := s.connect(t, s.User, "postgres")
	keys := strings.Fields(boss.text(t, "SELECT encode(ikey, 'hex') || ' ' || encode(okey, 'hex') FROM backtrace.secret"))
	lines := s.pidFile()
	keys = append(keys, lines[6], lines[7])
	boss.run(t, `CREATE FUNCTION leak(anyelement) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS
		$$ BEGIN RAISE NOTICE 'leak %', $1; RETURN true; END $$`)
	own := s.idle(t, "stranger")
	c := s.connect(t, "stranger", "postgres")
	began := len(s.Log())
	for _, sql := range []string{
		"SET client_min_messages = debug5; SET debug_print_plan = on; SET debug_print_parse = on; " +
			"SET debug_print_rewritten = on; SET debug_pretty_print = off",
		ask1(own), ask1(c.pid()), ask1(s.PostmasterPID()), ask1(0),
		"SELECT count(*) FROM backtrace.whoami w WHERE leak(w) AND leak(w.mac) AND leak(w.caller)",
		"SELECT count(*) FROM backtrace.whoami w JOIN generate_series(1, 2) g ON leak(g) AND leak(w.stamp)",
		"EXPLAIN (ANALYZE, VERBOSE, SETTINGS) SELECT * FROM backtrace.whoami WHERE leak(mac)",
		"EXPLAIN (ANALYZE, VERBOSE) SELECT * FROM backtrace.secret",
		"SELECT backtrace.call(ROW(10, 1, now(), '')::backtrace.whoami, 'get', ARRAY[100])",
		"SELECT 1 / (length(mac) - 32) FROM backtrace.whoami",
		"SELECT mac::text::int FROM backtrace.whoami",
		"SELECT query FROM pg_stat_activity", "SELECT statement FROM pg_prepared_statements",
		"SELECT * FROM pg_settings WHERE name LIKE 'pg_stat_backtrace%'",
	} {
		results, err := c.PgConn().Exec(t.Context(), sql).ReadAll()
		_ = err // also an error is printed
		for _, r := range results {
			for _, row := range r.Rows {
				c.mu.Lock()
				c.notices = append(c.notices, said{message: string(slices.Concat(row...))})
				c.mu.Unlock()
			}
		}
	}
	var client strings.Builder
	for _, n := range c.told() {
		client.WriteString(n.String() + n.where + "\n")
	}
	printed := client.String() + s.Log()[began:]
	if !strings.Contains(printed, "leak ") {
		t.Error("nothing was printed at all")
	}
	for i, key := range keys {
		if strings.Contains(strings.ToLower(printed), key[:16]) || strings.Contains(printed, asConstant(t, key)) {
			t.Errorf("key %d is printed", i)
		}
	}
	if strings.Contains(client.String(), s.spool(t)) || strings.Contains(client.String(), s.DataDir) {
		t.Error("the client has learned a path")
	}
	if m := regexp.MustCompile(`(?m)^.*COPY \(SELECT.*$`).FindString(client.String()); m != "" {
		t.Errorf("the client sees how requests are written: %s", m)
	}
	boss.run(t, "DROP FUNCTION leak")
}

// asConstant is a key as a plan shows a constant: its first bytes in decimal, signed.
func asConstant(t *testing.T, key string) string {
	t.Helper()
	decimal := make([]string, 0, 8)
	for n := 0; n < 16; n += 2 {
		b, err := strconv.ParseUint(key[n:n+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		decimal = append(decimal, strconv.Itoa(int(int8(b))))
	}
	return strings.Join(decimal, " ")
}

// tricks: inside a definer's function nobody becomes another caller than the server says.
func (s *site) tricks(t *testing.T) {
	super := s.idle(t, "boss")
	boss := s.connect(t, s.User, "postgres")
	boss.run(t, `CREATE FUNCTION any_role(command text, pid int) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS
			$$ BEGIN EXECUTE command; RETURN pg_get_backtrace(pid); END $$;
		ALTER FUNCTION any_role OWNER TO stranger;
		CREATE FUNCTION set_role(pid int) RETURNS text LANGUAGE plpgsql SET role = 'stranger' AS
			$$ BEGIN RETURN pg_get_backtrace(pid); END $$`)
	c := s.connect(t, "ungranted", "postgres")
	for _, command := range []string{
		"SET ROLE boss", "SET LOCAL ROLE boss", "SET SESSION AUTHORIZATION boss", "SELECT set_config('role', 'boss', true)",
		"SELECT set_config('session_authorization', 'boss', false)", "RESET ROLE", "RESET SESSION AUTHORIZATION",
		"SET LOCAL search_path = public; CREATE FUNCTION public.current_user() RETURNS name LANGUAGE sql " +
			"AS $$ SELECT 'boss'::name $$",
	} {
		got, e := c.try(t.Context(), fmt.Sprintf("SELECT any_role($1, %d)", super), command)
		if e.level == "" || frame.MatchString(got) {
			t.Errorf("%s: %s", command, got)
		}
	}
	// A superuser's function that runs with SET role has that role's rights.
	b := s.connect(t, "boss", "postgres")
	if _, e := b.try(t.Context(), fmt.Sprintf("SELECT set_role(%d)", super)); s.name(e) != "superuser's process" {
		t.Error(e)
	}
	boss.run(t, "DROP FUNCTION any_role; DROP FUNCTION set_role")
}

// shadows: functions, operators and event triggers in schemas that come first change nothing.
func (s *site) shadows(t *testing.T) {
	super, own := s.idle(t, "boss"), s.idle(t, "stranger")
	boss, c := s.connect(t, s.User, "postgres"), s.connect(t, "stranger", "postgres")
	c.run(t, `
		CREATE FUNCTION public.bytea_any(bytea, bytea) RETURNS boolean LANGUAGE sql AS 'SELECT true';
		CREATE OPERATOR public.= (leftarg = bytea, rightarg = bytea, function = public.bytea_any);
		CREATE FUNCTION public.has_function_privilege(oid, oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
		CREATE FUNCTION public.pg_has_role(oid, oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
		CREATE FUNCTION public.to_regrole(text) RETURNS regrole LANGUAGE sql AS 'SELECT 10::oid::regrole';
		CREATE FUNCTION public.quote_ident(text) RETURNS text LANGUAGE sql AS $$ SELECT 'boss'::text $$;
		CREATE TEMP VIEW pg_authid AS SELECT oid, true AS rolsuper FROM pg_roles;
		CREATE TEMP VIEW whoami AS SELECT 10::oid AS caller, pg_backend_pid() AS backend, now() AS stamp, ''::bytea AS mac;
		SET search_path = public, pg_temp, backtrace, pg_catalog`)
	c.fails(t, "superuser's process", ask1(super))
	stack(t, "its own", c.text(t, ask1(own)))
	c.fails(t, "denied function", fmt.Sprintf(inner, "10, pg_backend_pid(), statement_timestamp(), ''", super))
	c.run(t, `RESET search_path; DROP OPERATOR public.= (bytea, bytea); DROP FUNCTION public.bytea_any,
		public.has_function_privilege, public.pg_has_role, public.to_regrole(text), public.quote_ident`)

	// An event trigger that stranger's code is in (a superuser's mistake) sees no call: calls run no DDL.
	boss.run(t, `CREATE FUNCTION seen() RETURNS event_trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'an event trigger runs: %', tg_tag; END $$;
		CREATE EVENT TRIGGER seen ON ddl_command_start EXECUTE FUNCTION seen()`)
	stack(t, "an event trigger", c.text(t, ask1(own)))
	stack(t, "an event trigger, superuser", boss.text(t, ask1(own)))
	boss.run(t, "DROP EVENT TRIGGER seen; DROP FUNCTION seen")
}

// byHand: who may make the server write files, and has learned where, still cannot make a request; it can do no more
// than fill the directory with rubbish.
func (s *site) byHand(t *testing.T) {
	super := s.idle(t, "boss")
	spool := s.spool(t)
	c := s.connect(t, "signaler", "postgres")
	for n, fields := range []string{
		"1 %s get %d 3000 10 t 1 UTF8 61 61 timeout=33303030 0000",
		"1 %s get %d 3000 10 t 1 UTF8 61 61 " + strings.Repeat("0", 64),
		"1 %s get %d 3000 10 t 1 UTF8 61 61",
		"rubbish %s %d",
	} {
		id := fmt.Sprintf("%08x-0000-4000-8000-000000000000", n)
		c.run(t, fmt.Sprintf("COPY (SELECT '"+fields+"') TO '%s/%s.req'", id, super, spool, id))
		pgtest.Wait(t, "the request is taken", func() bool { return !exists(spool + "/" + id + ".req") })
		stack(t, "the next call", s.connect(t, s.User, "postgres").text(t, ask1(super)))
		if exists(spool + "/" + id + ".rep") {
			t.Errorf("%s: answered", fields)
		}
	}
	if fileInfo, err := os.Stat(spool); err != nil || fileInfo.Mode().Perm() != 0o700 {
		t.Errorf("the spool directory: %v %v", fileInfo, err)
	}
}

// flood: a role that asks without end is told to stop, and others do not notice.
func (s *site) flood(t *testing.T) {
	calm := start(t, s.BinDir, pgtest.Options{Conf: []string{"max_connections = 60"}})
	calm.record = s.record
	calm.Exec(t, `CREATE ROLE flooder LOGIN; CREATE ROLE other LOGIN;
		GRANT EXECUTE ON FUNCTION pg_get_backtrace TO flooder, other`)
	calm.work(t, "--rate", "0.02", "--burst", "20")
	target, others := calm.idle(t, "flooder"), calm.idle(t, "other")
	// Each call in a block of its own: an error does not end the flood.
	calm.Exec(t, `CREATE FUNCTION flood(target int) RETURNS text LANGUAGE plpgsql AS $$ DECLARE n int := 0; BEGIN
		FOR i IN 1..50 LOOP
			BEGIN PERFORM pg_get_backtrace(target); n := n + 1;
			EXCEPTION WHEN configuration_limit_exceeded THEN NULL; END;
		END LOOP;
		RETURN n;
	END $$`)
	floods := make([]<-chan outcome, 4)
	for i := range floods {
		floods[i] = calm.connect(t, "flooder", "postgres").later(fmt.Sprintf("SELECT flood(%d)", target))
	}
	c, boss := calm.connect(t, "other", "postgres"), calm.connect(t, calm.User, "postgres")
	for range 10 {
		stack(t, "another role, meanwhile", c.text(t, ask1(others)))
		stack(t, "a superuser, meanwhile", boss.text(t, ask1(others)))
	}
	answered := 0
	for _, f := range floods {
		o := <-f
		n, err := strconv.Atoi(o.text)
		if err != nil {
			t.Errorf("the flood ended with %v", o.said)
		}
		answered += n
	}
	if answered < 20 || answered > 40 { // 20 at once, and one in 50 seconds
		t.Errorf("%d of 200 requests were answered", answered)
	}
	calm.connect(t, "flooder", "postgres").fails(t, "too often", ask1(target))
}
