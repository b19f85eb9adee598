package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestPlanIsJSON checks that a plan is JSON whatever characters the statement has, also for a caller in a database that lacks
// these characters.
func TestPlanIsJSON(t *testing.T) {
	t.Parallel()
	pgtest.One(t, func(t *testing.T, binDir string) {
		s := start(t, binDir, pgtest.Options{})
		s.work(t)
		boss := s.connect(t, s.User, "postgres")
		boss.run(t, "CREATE DATABASE latin1 ENCODING LATIN1 TEMPLATE template0 LOCALE 'C'")
		s.connect(t, s.User, "latin1").run(t, "CREATE EXTENSION pg_stat_backtrace")
		target := s.Connect(t, s.User, "postgres")
		pid := int(target.PgConn().PID())
		running := make(chan error, 1)
		go func() {
			_, err := target.Exec(t.Context(), "SELECT pg_sleep(600), '\x7f \U0001f600 \U000e0041'")
			running <- err
		}()
		pgtest.Wait(t, "the plan is read", func() bool {
			var text string
			err := boss.QueryRow(t.Context(), "SELECT pg_get_running_plan($1)", pid).Scan(&text)
			return err == nil && strings.Contains(text, "pg_sleep")
		})
		for _, database := range []string{"postgres", "latin1"} {
			c := s.Connect(t, s.User, database)
			var text string
			err := c.QueryRow(t.Context(), "SELECT pg_get_running_plan($1, 'json')::json::text", pid).Scan(&text)
			if err != nil || !json.Valid([]byte(text)) {
				t.Errorf("database %s: %v, %s", database, err, text)
			}
		}
		boss.run(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(%'")
		<-running
	})
}
