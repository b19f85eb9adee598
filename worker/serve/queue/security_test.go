package queue_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// testRowSecurity checks that a role sees and changes nothing of another role's requests, whatever privileges it has on
// tables in general.
func (s *site) testRowSecurity(t *testing.T, admin *pgx.Conn, _ int) {
	run(t, admin, `CREATE ROLE reader LOGIN; GRANT pg_read_all_data TO reader;
		CREATE ROLE writer LOGIN; GRANT pg_write_all_data, pg_read_all_data TO writer;
		CREATE ROLE watcher LOGIN; GRANT pg_read_all_stats TO watcher;
		CREATE FUNCTION public.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS
			$$BEGIN RAISE EXCEPTION 'leaked %', $1; END$$`)
	alice := s.Connect(t, "alice", "postgres")
	o := result(t, alice, request(t, alice, pid(alice)))
	id := value[int64](t, alice, "SELECT max(id) FROM backtrace.request")
	_ = request(t, alice, 1)
	if got := value[string](t, alice, `SELECT string_agg((pid = 1)::text || (started IS NULL)::text, ' ' ORDER BY id)
		FROM backtrace.request WHERE id >= $1`, id); got != "falsefalse truetrue" {
		t.Errorf("start times of a backend and of a process of the host: %q", got)
	}
	if o.State != "done" {
		t.Fatalf("%+v", o)
	}
	for role, want := range map[string]int{
		"alice": 1, s.User: 1, "watcher": 1, "bob": 0, "reader": 0, "writer": 0, "stranger": 0,
	} {
		c := s.Connect(t, role, "postgres")
		rows := value[int](t, c, "SELECT count(*) FROM backtrace.request WHERE id = $1", id)
		results := value[int](t, c, "SELECT count(*) FROM pg_backtrace_result($1)", id)
		if rows != want || results != want {
			t.Errorf("%s sees %d rows and %d results, want %d", role, rows, results, want)
		}
		if role == s.User || role == "alice" || role == "watcher" {
			continue
		}
		if got := code(t, c, "SELECT id FROM backtrace.request WHERE public.leak(backtrace)"); got != "" {
			t.Errorf("%s: a function in WHERE: %s", role, got)
		}
		if n := value[int](t, c, `SELECT count(*) FROM pg_stats WHERE schemaname = 'backtrace'`); n != 0 {
			t.Errorf("%s sees %d rows of statistics", role, n)
		}
	}
	run(t, admin, "SET ROLE alice")
	if n := value[int](t, admin, "SELECT count(*) FROM pg_backtrace_result($1)", id); n != 1 {
		t.Error("a superuser who is alice does not see what is hers")
	}
	run(t, admin, "SET ROLE bob")
	if n := value[int](t, admin, "SELECT count(*) FROM pg_backtrace_result($1)", id); n != 0 {
		t.Error("a superuser who is bob sees what is alice's")
	}
	run(t, admin, "RESET ROLE")
	s.testWriting(t, id)
	for _, role := range []string{"alice", "stranger", "watcher"} {
		c := s.Connect(t, role, "postgres")
		if got := code(t, c, "UPDATE backtrace.request SET caller = 10"); !strings.HasPrefix(got, "42501 ") {
			t.Errorf("%s: UPDATE: %q", role, got)
		}
	}
}

// testWriting checks that a role with write access to all tables cannot write here.
func (s *site) testWriting(t *testing.T, id int64) {
	c := s.Connect(t, "writer", "postgres")
	for sql, want := range map[string]string{
		`INSERT INTO backtrace.request (verb, caller, caller_name, pid) VALUES ('get', 10, 'x', 1)`: "42501",
		"UPDATE backtrace.request SET caller = 10":                                                  "",
		"DELETE FROM backtrace.request":                                                             "",
		"TRUNCATE backtrace.request":                                                                "42501",
		"COPY backtrace.request (verb, caller, caller_name) FROM PROGRAM 'true'":                    "0A000",
	} {
		if got, _, _ := strings.Cut(code(t, c, sql), " "); got != want && (want != "0A000" || got != "42501") {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
	if n := value[int](t, s.Connect(t, "alice", "postgres"), "SELECT count(*) FROM pg_backtrace_result($1)", id); n != 1 {
		t.Error("alice's request was changed")
	}
}

// testPrivileges checks that privileges are verified when the request runs.
func (s *site) testPrivileges(t *testing.T, admin *pgx.Conn, target int) {
	run(t, admin, `CREATE ROLE carol LOGIN; CREATE ROLE dave LOGIN; CREATE ROLE erin LOGIN;
		CREATE ROLE boss LOGIN SUPERUSER; CREATE ROLE frank LOGIN; CREATE ROLE grace LOGIN; GRANT alice TO frank, grace;
		GRANT EXECUTE ON FUNCTION pg_request_backtrace(int, boolean) TO carol, dave, erin, frank, grace`)
	alice := s.Connect(t, "alice", "postgres")
	const revoke = "REVOKE EXECUTE ON FUNCTION pg_request_backtrace(int, boolean) FROM carol"
	for name, c := range map[string]struct {
		role   string
		target int
		revoke string // while the request waits in its transaction
		state  string
		words  string
	}{
		"one's own":              {"alice", pid(alice), "", "", ""},
		"a superuser's":          {"alice", target, "", "42501", "SUPERUSER"},
		"a member's":             {"frank", pid(alice), "", "", ""},
		"a membership revoked":   {"grace", pid(alice), "REVOKE alice FROM grace", "42501", "privileges of the role"},
		"EXECUTE revoked":        {"carol", pid(alice), revoke, "42501", "permission denied for"},
		"the role dropped":       {"dave", pid(alice), "DROP OWNED BY dave; DROP ROLE dave", "42501", "no longer exists"},
		"no superuser any more":  {"boss", target, "ALTER ROLE boss NOSUPERUSER", "42501", ""},
		"a superuser in between": {"erin", target, "ALTER ROLE erin SUPERUSER", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			asker := s.Connect(t, c.role, "postgres")
			run(t, asker, "BEGIN")
			id := request(t, asker, c.target)
			if c.revoke != "" {
				run(t, admin, c.revoke)
			}
			run(t, asker, "COMMIT")
			o := result(t, admin, id)
			done := o.State == "done"
			if o.SQLState != c.state || !strings.Contains(o.Message+o.Detail, c.words) || (c.state == "") != done {
				t.Errorf("%+v", o)
			}
		})
	}
	stranger := s.Connect(t, "stranger", "postgres")
	for _, sql := range []string{"SELECT pg_request_backtrace(1)", "SELECT pg_request_backtrace(ARRAY[1])"} {
		if got := code(t, stranger, sql); !strings.HasPrefix(got, "42501 permission denied for function") {
			t.Errorf("%s: %q", sql, got)
		}
	}
	erin := s.Connect(t, "erin", "postgres")
	run(t, admin, "ALTER ROLE erin NOSUPERUSER")
	if got := code(t, erin, "SELECT pg_request_backtrace(ARRAY[1])"); !strings.HasPrefix(got, "42501") {
		t.Errorf("who may ask for one may not ask for many: %q", got)
	}
}

// testForged checks that the inner functions do not circumvent the permission checks.
func (s *site) testForged(t *testing.T, admin *pgx.Conn, _ int) {
	run(t, admin, "CREATE ROLE mallory LOGIN")
	c := s.Connect(t, "mallory", "postgres")
	for _, sql := range []string{
		"SELECT backtrace.queue(0, 'request', '{1}', false)",
		"SELECT backtrace.queue(0, 'get', '{1}', false)",
		"SELECT backtrace.enqueue(10, 'request', '{1}', false)",
		"SELECT backtrace.enqueue(current_user::regrole::oid, 'request', '{1}', false)",
		"DO $$ DECLARE caller oid := 10; verb text := 'request'; pids int[] := '{1}'; log boolean := false; result text[]; " +
			"BEGIN SELECT backtrace.enqueue(caller, verb, pids, log) AS answer INTO result; END $$",
		"SELECT * FROM backtrace.claim(1, '{}', '{}')",
		"SELECT backtrace.finish('{1}', '{x}', '{1}', '{1}', '{x}', '{NULL}', '{NULL}', '{NULL}', '{NULL}')",
		"SELECT backtrace.journal('{get}', '{10}', '{x}', '{1}', '{1}', '{now}', '{now}', '{x}', '{1}', '{1}', '{NULL}', " +
			"'{NULL}', '{NULL}', '{NULL}')",
		"SELECT backtrace.prune('0', 0, 1000)",
		"SELECT backtrace.log_entry(1, 'x')",
		"SELECT backtrace.start_of(1)", "SELECT backtrace.member_start(1)",
		"SELECT backtrace.may_ask(10, 'request')", "SELECT backtrace.guard()", "SELECT backtrace.first_id(1)",
		"SELECT backtrace.refuse(10, 0, '{}')", "SELECT setval('backtrace.request_id_seq', 1)",
	} {
		if got := code(t, c, sql); !strings.HasPrefix(got, "42501 ") {
			t.Errorf("%s: %q", sql, got)
		}
	}
	if n := value[int](t, admin, "SELECT count(*) FROM backtrace.request WHERE caller_name = 'mallory'"); n != 0 {
		t.Errorf("%d requests", n)
	}
}
