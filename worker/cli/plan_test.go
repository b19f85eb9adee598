package cli

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestPlan prints the plan of a statement that waits, of an idle backend, and errors.
func TestPlan(t *testing.T) {
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	conn := server.Connect(t, server.User, "postgres")
	pid := strconv.Itoa(int(conn.PgConn().PID()))
	status, text, stderr := run(t, "plan", pid)
	if status != 0 || stderr != "" || !strings.Contains(text, ": no statement\nThe process executes no plan now") {
		t.Errorf("idle: status %d, %q\n%s", status, stderr, text)
	}

	holder := server.Connect(t, server.User, "postgres")
	if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_lock(1)"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := conn.PgConn().Exec(t.Context(), "SELECT pg_advisory_xact_lock(1)  FROM pg_class c").ReadAll()
		done <- err
	}()
	pgtest.Wait(t, "wait for the lock", func() bool {
		var waits bool
		err := holder.QueryRow(t.Context(), "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted").Scan(&waits)
		return err == nil && waits
	})
	want := regexp.MustCompile(`^process ` + pid + `, PostgreSQL \d+: 1 statement\nUnproven layout: .*\n` +
		`\nlevel 1: SELECT pg_advisory_xact_lock\(1\) FROM pg_\.\.\.\n` +
		`=> (Seq|Index Only) Scan .*pg_class c  \(cost=\d+\.\d\d\.\.\d+\.\d\d rows=\d+ width=\d+\)\n$`)
	for _, arguments := range [][]string{{"plan"}, {"plan", "--nonstop"}} {
		arguments = append(arguments, "--query-width", "40", pid)
		if status, text, stderr := run(t, arguments...); status != 0 || stderr != "" || !want.MatchString(text) {
			t.Errorf("%q: status %d, %q\n%s", arguments, status, stderr, text)
		}
	}
	if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_unlock(1)"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	if status, _, stderr := run(t, "plan", sleeper(t)); status != 1 || !strings.Contains(stderr, "runs no PostgreSQL") {
		t.Errorf("another program: status %d, %q", status, stderr)
	}
	if status, _, _ := run(t, "plan", "--timeout", "0s", pid); status != 2 {
		t.Errorf("no time: status %d", status)
	}
}
