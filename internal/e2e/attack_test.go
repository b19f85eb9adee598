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

// attacks runs attacks. Each test fails if its attack succeeds. The roles are the roles of permissions.
func attacks(t *testing.T, s *site) {
	boss := s.connect(t, s.User, "postgres")
	boss.run(t, `GRANT CREATE ON SCHEMA public TO stranger, ungranted;
		GRANT pg_read_all_settings, pg_read_all_stats TO monitor`)
	boss.run(t, "CREATE DATABASE second")
	second := s.connect(t, s.User, "second")
	second.run(t, `CREATE EXTENSION pg_stat_backtrace; GRANT EXECUTE ON FUNCTION pg_get_backtrace TO stranger`)
	t.Run("forgery", s.forgery)
	t.Run("replay", s.replay)
	t.Run("objects", s.objects)
	t.Run("printing", s.printing)
	t.Run("role tricks in definers", s.tricks)
	t.Run("shadows", s.shadows)
	t.Run("a request by hand", s.byHand)
	t.Run("a flood", s.flood)
}

// inner is a forbidden call: with an arbitrary oid of the caller.
const inner = "SELECT backtrace.call(%s, 'get', ARRAY[%d], '{}')::text"

// impostor is a function that looks like backtrace.ask from the inside: it runs the same statement.
const impostor = `CREATE FUNCTION %s.ask(seal int, verb text, targets int[], waiting text[]) RETURNS text[]
	LANGUAGE plpgsql AS $$ DECLARE caller oid := 10; result text[]; BEGIN
	SELECT backtrace.call(caller, verb, targets, waiting) AS answer INTO result; RETURN result; END $$`

// denied runs a forbidden statement behind functions that users do not call, so the error's context has more than one
// line.
func (c *session) denied(t *testing.T, kind, sql string) {
	t.Helper()
	got, e := c.try(t.Context(), sql)
	c.site.note(e)
	if c.site.name(e) != "denied "+kind {
		t.Errorf("%s: %s %v", sql, got, e)
	}
}

func (s *site) forgery(t *testing.T) {
	super, own := s.idle(t, "boss"), s.idle(t, "stranger")
	eve, granted := s.connect(t, "ungranted", "postgres"), s.connect(t, "stranger", "postgres")
	for _, sql := range []string{"SELECT pg_get_backtrace(%d)", "SELECT pg_log_backtrace(%d)::text"} {
		eve.fails(t, "denied function", fmt.Sprintf(sql, super))
	}
	eve.denied(t, "function", fmt.Sprintf("SELECT backtrace.ask(0, 'get', ARRAY[%d])::text", super))
	eve.denied(t, "function", fmt.Sprintf("SELECT backtrace.ask(0, 'log', ARRAY[%d])::text", super))
	granted.denied(t, "view", "SELECT backtrace.ask(0, 'stat', '{}')::text")
	stack(t, "an honest request", granted.text(t, ask1(own)))
	for _, oid := range []string{
		"10", "0", "current_user::regrole::oid", "(SELECT oid FROM pg_roles WHERE rolname = 'boss')", "4294967295",
	} {
		granted.fails(t, "denied function", fmt.Sprintf(inner, oid, super))
	}
	granted.run(t, fmt.Sprintf(impostor, "public"))
	granted.denied(t, "function", fmt.Sprintf("SELECT public.ask(0, 'get', ARRAY[%d], '{}')::text", super))
	granted.run(t, "DROP FUNCTION public.ask")
	for _, arguments := range []string{
		"0, NULL, ARRAY[%d]", "0, 'get', CASE WHEN %d < 0 THEN ARRAY[1] END", "NULL, 'get', ARRAY[%d]",
		"0, 'stop', ARRAY[%d]",
		"0, '../../x', ARRAY[%d]",
	} {
		sql := fmt.Sprintf("SELECT backtrace.ask("+arguments+")::text", super)
		got, e := granted.try(t.Context(), sql)
		if e.level == "" && got != "NULL" || e.level != "" && e.state != "42501" {
			t.Errorf("%s: %s %v", arguments, got, e)
		}
	}
}

// replay checks that a session has the identity that the server reports, whatever identity it had before.
func (s *site) replay(t *testing.T) {
	super := s.idle(t, "boss")
	boss := s.connect(t, "boss", "postgres")
	stack(t, "a superuser", boss.text(t, ask1(super)))
	boss.run(t, "PREPARE kept AS SELECT pg_get_backtrace($1)")
	stack(t, "a superuser's prepared statement", boss.text(t, fmt.Sprintf("EXECUTE kept(%d)", super)))
	boss.run(t, "SET SESSION AUTHORIZATION stranger")
	boss.fails(t, "superuser's process", ask1(super))
	boss.fails(t, "superuser's process", fmt.Sprintf("EXECUTE kept(%d)", super))
	boss.run(t, "RESET SESSION AUTHORIZATION; SET ROLE stranger")
	boss.fails(t, "superuser's process", fmt.Sprintf("EXECUTE kept(%d)", super))
	boss.run(t, "RESET ROLE")
	stack(t, "a superuser again", boss.text(t, fmt.Sprintf("EXECUTE kept(%d)", super)))
}

// objects checks that only the owner and superusers can change the extension's objects, even against holders of
// predefined roles. No object contains a secret.
func (s *site) objects(t *testing.T) {
	boss := s.connect(t, s.User, "postgres")
	const fingerprint = `SELECT md5(string_agg(pg_get_functiondef(oid) || coalesce(proacl::text, ''), '' ORDER BY oid))
		FROM pg_proc WHERE pronamespace = 'backtrace'::regnamespace`
	before := boss.text(t, fingerprint)
	for _, user := range []string{"ungranted", "stranger", "monitor", "signaler", "creator", "superheir"} {
		c := s.connect(t, user, "postgres")
		for _, sql := range []string{
			"INSERT INTO backtrace.request (verb, caller, caller_name) VALUES ('get', 10, 'x') RETURNING 'done'",
			"UPDATE backtrace.request SET caller = 10 RETURNING 'done'",
			"DELETE FROM backtrace.request RETURNING 'done'",
			"TRUNCATE backtrace.request",
			"CREATE INDEX ON backtrace.request (pid)",
			"CREATE TRIGGER x BEFORE INSERT ON backtrace.request EXECUTE FUNCTION suppress_redundant_updates_trigger()",
			"ALTER TABLE backtrace.request DISABLE ROW LEVEL SECURITY",
			"CREATE POLICY p ON backtrace.request USING (true)",
			"ALTER FUNCTION backtrace.call(oid, text, int[], text[]) OWNER TO CURRENT_USER",
			"ALTER FUNCTION backtrace.call(oid, text, int[], text[]) SET search_path = public",
			"ALTER FUNCTION backtrace.ask SECURITY DEFINER",
			"CREATE OR REPLACE FUNCTION backtrace.called_by(stack text, caller text, statement text) RETURNS boolean " +
				"LANGUAGE sql AS 'SELECT true'",
			"CREATE FUNCTION backtrace.x() RETURNS int LANGUAGE sql AS 'SELECT 1'",
			"GRANT EXECUTE ON FUNCTION pg_log_backtrace(int) TO PUBLIC",
			"ALTER EXTENSION pg_stat_backtrace UPDATE",
			"DROP EXTENSION pg_stat_backtrace",
		} {
			// A statement without an error must have changed nothing: monitor may read and write all tables.
			results, _ := c.PgConn().Exec(t.Context(), sql).ReadAll()
			for _, r := range results {
				for _, row := range r.Rows {
					t.Errorf("%s: %s: %s", user, sql, row[0])
				}
			}
		}
	}
	if after := boss.text(t, fingerprint); after != before {
		t.Error("the functions have changed")
	}
	if boss.text(t, "SELECT has_function_privilege('ungranted', 'pg_log_backtrace(int)', 'EXECUTE')::text") != "false" {
		t.Error("somebody has granted EXECUTE")
	}
}

// printing checks that no output of the server contains a key or the path of the spool, whatever it is asked to
// print.
func (s *site) printing(t *testing.T) {
	boss := s.connect(t, s.User, "postgres")
	lines := s.pidFile()
	keys := []string{lines[6], lines[7]}
	boss.run(t, `CREATE FUNCTION leak(anyelement) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS
		$$ BEGIN RAISE NOTICE 'leak %', $1; RETURN true; END $$`)
	own := s.idle(t, "stranger")
	c := s.connect(t, "stranger", "postgres")
	began := len(s.Log())
	for _, sql := range []string{
		"SET client_min_messages = debug5; SET debug_print_plan = on; SET debug_print_parse = on; " +
			"SET debug_print_rewritten = on; SET debug_pretty_print = off",
		ask1(own), ask1(c.pid()), ask1(s.PostmasterPID()), ask1(0),
		fmt.Sprintf("SELECT count(*) FROM backtrace.ask(0, 'get', ARRAY[%d]) a WHERE leak(a)", own),
		fmt.Sprintf("EXPLAIN (ANALYZE, VERBOSE, SETTINGS) SELECT backtrace.ask(0, 'get', ARRAY[%d])", own),
		"SELECT backtrace.call(10, 'get', ARRAY[100], '{}')",
		"SELECT leak(1)",
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

// tricks checks that a SECURITY DEFINER function cannot change the caller that the server reports.
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

// shadows checks that functions, operators and event triggers in earlier schemas of the search path change nothing.
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
		CREATE FUNCTION public.starts_with(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
		SET search_path = public, pg_temp, backtrace, pg_catalog`)
	c.fails(t, "superuser's process", ask1(super))
	stack(t, "its own", c.text(t, ask1(own)))
	c.fails(t, "denied function", fmt.Sprintf(inner, "10", super))
	c.run(t, `RESET search_path; DROP OPERATOR public.= (bytea, bytea); DROP FUNCTION public.bytea_any,
		public.has_function_privilege, public.pg_has_role, public.to_regrole(text), public.quote_ident, public.starts_with`)

	// An event trigger with stranger's code (a superuser's mistake) is not called, because calls run no DDL.
	boss.run(t, `CREATE FUNCTION seen() RETURNS event_trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'an event trigger runs: %', tg_tag; END $$;
		CREATE EVENT TRIGGER seen ON ddl_command_start EXECUTE FUNCTION seen()`)
	stack(t, "an event trigger", c.text(t, ask1(own)))
	stack(t, "an event trigger, superuser", boss.text(t, ask1(own)))
	boss.run(t, "DROP EVENT TRIGGER seen; DROP FUNCTION seen")
}

// byHand checks a role that can make the server write files, and knows the path of the spool. It must not be able to
// make a request. It can only fill the directory with useless files.
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

// flood checks that a role that asks without end gets an error, and that other roles are not affected.
func (s *site) flood(t *testing.T) {
	calm := start(t, s.BinDir, pgtest.Options{Conf: []string{"max_connections = 60"}})
	calm.record = s.record
	calm.Exec(t, `CREATE ROLE flooder LOGIN; CREATE ROLE other LOGIN;
		GRANT EXECUTE ON FUNCTION pg_get_backtrace TO flooder, other`)
	calm.work(t, "--rate", "0.02", "--burst", "20")
	target, others := calm.idle(t, "flooder"), calm.idle(t, "other")
	// Each call has a separate block, so that an error does not end the flood.
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
