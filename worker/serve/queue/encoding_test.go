package queue_test

import (
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestTextsNotInUTF8 checks that settings, names of roles, and notifications with bytes that are no UTF-8 do not stop the
// queue and the journal.
func TestTextsNotInUTF8(t *testing.T) {
	eachSite(t, pgtest.Options{InitDB: []string{"--encoding=SQL_ASCII"}}, func(t *testing.T, s *site) {
		s.Exec(t, "CREATE ROLE alice LOGIN; GRANT EXECUTE ON FUNCTION pg_request_backtrace(int, boolean) TO PUBLIC")
		admin, alice, other := s.Connect(t, s.User, "postgres"), s.Connect(t, "alice", "postgres"), s.Connect(t, "alice", "postgres")
		run(t, admin, "SET client_encoding = sql_ascii; CREATE ROLE \"b\xe9ta\"; SET ROLE \"b\xe9ta\"")
		strange := request(t, admin, pid(admin))
		run(t, alice, "SET client_encoding = sql_ascii; SET pg_stat_backtrace.timeout = '\xe9'")
		wrong := request(t, alice, pid(alice))
		s.work(t)
		if o := result(t, alice, wrong); o.SQLState != "22023" || !strings.Contains(o.Message, "pg_stat_backtrace.timeout") {
			t.Errorf("a setting: %+v", o)
		}
		if o := result(t, admin, strange); o.SQLState != "42501" { // its backend belongs to a superuser
			t.Errorf("a role: %+v", o)
		}
		run(t, alice, "NOTIFY pg_stat_backtrace, '\xe9'")
		if o := result(t, other, request(t, other, pid(other))); o.State != "done" {
			t.Errorf("another request: %+v", o)
		}
		_ = code(t, admin, "RESET ROLE")
		if got := code(t, admin, "SELECT pg_get_backtrace($1::int)", pid(alice)); got != "" {
			t.Errorf("a waiting call: %s", got)
		}
		pgtest.Wait(t, "the journal is written", func() bool {
			return value[bool](t, admin, "SELECT EXISTS (SELECT FROM backtrace.request WHERE kind = 'waiting')")
		})
	})
}

// TestNamesOfDatabasesNotInUTF8 checks that a database whose name is no UTF-8 is served, and does not keep the worker from
// serving others.
func TestNamesOfDatabasesNotInUTF8(t *testing.T) {
	eachSite(t, pgtest.Options{InitDB: []string{"--encoding=SQL_ASCII"}}, func(t *testing.T, s *site) {
		const strange = "caf\xe9"
		admin := s.Connect(t, s.User, "postgres")
		run(t, admin, "SET client_encoding = sql_ascii")
		run(t, admin, "CREATE DATABASE \""+strange+"\"")
		s.extend(t, strange)
		s.launch(t)
		for _, name := range []string{"postgres", strange} {
			c := s.Connect(t, s.User, name)
			if o := result(t, c, request(t, c, pid(admin))); o.State != "done" {
				t.Errorf("a request in database %q: %+v", name, o)
			}
			if got := code(t, c, "SELECT pg_get_backtrace($1::int)", pid(admin)); got != "" {
				t.Errorf("a waiting call in database %q: %s", name, got)
			}
			pgtest.Wait(t, "the journal is written", func() bool {
				return value[bool](t, c, "SELECT EXISTS (SELECT FROM backtrace.request WHERE kind = 'waiting')")
			})
		}
	})
}
