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
