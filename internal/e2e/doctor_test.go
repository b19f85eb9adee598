package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestDoctorFailingQuery: doctor reports whether statements have a query id. It prints the error of a query that fails,
// and its findings from before that query. It does not blame the connection. The program runs by itself, because doctor
// gives up rights of its process.
func TestDoctorFailingQuery(t *testing.T) {
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	examine := func() string {
		out, _ := s.AsServerUser(exec.Command(programs.worker, "doctor", "-D", s.DataDir, s.DSN(s.User, "postgres"))).
			CombinedOutput() // the status depends on the host
		return string(out)
	}
	s.Exec(t, `ALTER ROLE CURRENT_USER SET compute_query_id = on`)
	if report := examine(); !strings.Contains(report, "\nok    queries:") {
		t.Error(report)
	}
	s.Exec(t, `CREATE SCHEMA backtrace; CREATE FUNCTION backtrace.served() RETURNS bool LANGUAGE plpgsql
		AS $$ BEGIN RAISE 'not now'; END $$`)
	s.Exec(t, `ALTER ROLE CURRENT_USER RESET compute_query_id`)
	report := examine()
	if !strings.Contains(report, "not now") || !strings.Contains(report, "slots:") ||
		!strings.Contains(report, "\nwarn  queries:       compute_query_id is ") ||
		strings.Contains(report, "Without a connection") {
		t.Error(report)
	}
}

// TestDoctorNamesNotInUTF8 checks that doctor finds the extension in a database whose name is not in UTF-8, and names the role that
// has EXECUTE there.
func TestDoctorNamesNotInUTF8(t *testing.T) {
	t.Parallel()
	for encoding, e := range map[string]string{"SQL_ASCII": `\xe9`, "LATIN1": "é"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			pgtest.One(t, func(t *testing.T, binDir string) { doctorNames(t, binDir, encoding, e) })
		})
	}
}

// doctorNames checks how doctor prints a byte that is no UTF-8, in databases with an encoding.
func doctorNames(t *testing.T, binDir, encoding, e string) {
	s := pgtest.Lend(t, binDir, pgtest.Options{InitDB: []string{"--encoding=" + encoding}})
	run := func(database string, statements ...string) {
		c := s.Connect(t, s.User, database)
		for _, sql := range append([]string{"SET client_encoding = sql_ascii"}, statements...) {
			if _, err := c.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
				t.Fatalf("%q: %v", sql, err)
			}
		}
	}
	run("postgres", "CREATE DATABASE \"caf\xe9\"", "CREATE ROLE \"b\xe9ta\"")
	run("caf\xe9", "CREATE EXTENSION pg_stat_backtrace", "GRANT EXECUTE ON FUNCTION pg_get_backtrace(int) TO \"b\xe9ta\"",
		"CREATE TABLE backtrace.\"\xe9\" ()")
	out, _ := s.AsServerUser(exec.Command(programs.worker, "doctor", "-D", s.DataDir, s.DSN(s.User, "postgres"))).
		CombinedOutput() // the status depends on the host
	for _, want := range []string{
		`in database "caf` + e + `" (role `, `may call pg_get_backtrace(): b` + e + `ta`, `table backtrace."` + e + `" is not the extension's`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("doctor does not say %s:\n%s", want, out)
		}
	}
}
