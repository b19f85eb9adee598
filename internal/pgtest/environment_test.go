package pgtest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

const envChild = "PGSB_TEST_CHILD"

// TestEnvironmentOfCallerIgnored checks that a test program with PG* variables can start a server and connect to it.
func TestEnvironmentOfCallerIgnored(t *testing.T) {
	if os.Getenv(envChild) != "" {
		s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
		s.Connect(t, s.User, "postgres")
		for _, variable := range os.Environ() {
			if strings.HasPrefix(variable, "PGHOST=") || strings.HasPrefix(variable, "PGSERVICE=") {
				t.Errorf("the programs that a test starts get %s", variable)
			}
		}
		return
	}
	_ = pgtest.BinDir(t) // skips where the child would
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), envChild+"=1", "PGHOST=/nonexistent", "PGPORT=1", "PGSERVICE=nowhere",
		"PGOPTIONS=-c nonsense=1", "PGCONNECT_TIMEOUT=x", "PGSSLMODE=perhaps", "PGDATABASE=nowhere")
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
}
