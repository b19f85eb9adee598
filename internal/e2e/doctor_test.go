package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestDoctorFailingQuery: doctor prints the error of a query that fails, and its findings from before that query. It
// does not blame the connection. The program runs by itself, because doctor gives up rights of its process.
func TestDoctorFailingQuery(t *testing.T) {
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	s.Exec(t, `CREATE SCHEMA backtrace; CREATE FUNCTION backtrace.served() RETURNS bool LANGUAGE plpgsql
		AS $$ BEGIN RAISE 'not now'; END $$`)
	out, _ := s.AsServerUser(exec.Command(programs.worker, "doctor", "-D", s.DataDir, s.DSN(s.User, "postgres"))).
		CombinedOutput() // the status depends on the host
	report := string(out)
	if !strings.Contains(report, "not now") || !strings.Contains(report, "slots:") ||
		strings.Contains(report, "Without a connection") {
		t.Error(report)
	}
}
