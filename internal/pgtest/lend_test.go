package pgtest_test

import (
	"os"
	"path/filepath"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// TestLendAgain: a test gets the server of an earlier test without anything that this test has made in it, unless the
// server cannot be made like new.
func TestLendAgain(t *testing.T) {
	binDir, o := pgtest.Newest(t), pgtest.Options{Conf: []string{"max_connections = 11"}}
	var directory string
	lend := func(name string, again bool, use func(t *testing.T, s *pgtest.Server)) {
		t.Run(name, func(t *testing.T) {
			s := pgtest.Lend(t, binDir, o)
			if (s.DataDir == directory) != again {
				t.Errorf("again in %s: %t, want %t", s.DataDir, !again, again)
			}
			directory = s.DataDir
			var settings, setting string
			if err := s.Connect(t, s.User, "postgres").QueryRow(t.Context(), `SELECT current_setting('max_connections'),
				concat_ws(' ', current_setting('work_mem'), current_setting('lock_timeout'), to_regclass('t'), to_regrole('r'),
					(SELECT count(*) FROM pg_database))`).Scan(&settings, &setting); err != nil {
				t.Fatal(err)
			}
			if settings != "11" || setting != "4MB 0 3" {
				t.Errorf("it has %s connections, and %q", settings, setting)
			}
			use(t, s)
		})
	}
	const changes = `CREATE TABLE t (); CREATE ROLE r LOGIN; GRANT ALL ON t TO r; ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO r;
		ALTER ROLE r SET work_mem = '5MB'; ALTER ROLE postgres SET lock_timeout = 1; ALTER DATABASE postgres SET work_mem = '6MB'`
	lend("new", false, func(t *testing.T, s *pgtest.Server) {
		s.Exec(t, changes)
		s.Exec(t, "CREATE DATABASE d OWNER r")
		s.Connect(t, "r", "d")
	})
	lend("like new", true, func(_ *testing.T, s *pgtest.Server) { s.Restart("fast") })
	lend("after a restart", false, func(t *testing.T, s *pgtest.Server) {
		if err := os.WriteFile(filepath.Join(s.DataDir, "left"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	lend("after a file", false, func(t *testing.T, s *pgtest.Server) {
		template := s.Connect(t, s.User, "template1")
		if _, err := template.Exec(t.Context(), "CREATE TABLE t ()"); err != nil {
			t.Fatal(err)
		}
	})
	lend("after a change of template1", false, func(t *testing.T, s *pgtest.Server) {
		s.Exec(t, "ALTER SYSTEM SET work_mem = '7MB'")
	})
	lend("after a change of a setting", false, func(t *testing.T, s *pgtest.Server) {
		if err := os.WriteFile(filepath.Join(s.DataDir, "pg_hba.conf"), []byte("local all all trust\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	lend("after a change of a configuration file", false, func(t *testing.T, s *pgtest.Server) {
		if err := os.WriteFile(filepath.Join(s.SocketDir, "left"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	lend("after a file beside the socket", false, func(*testing.T, *pgtest.Server) {})
}
