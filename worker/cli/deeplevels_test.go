package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestDeepLevels expects a note in a stack with more calls of PL/pgSQL than a capture copies, and none in another stack.
func TestDeepLevels(t *testing.T) {
	t.Parallel()
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	control := server.Connect(t, server.User, "postgres")
	if _, err := control.Exec(t.Context(), `CREATE FUNCTION rec(n int) RETURNS int LANGUAGE plpgsql AS
		'BEGIN IF n = 0 THEN PERFORM pg_sleep(1000); END IF; RETURN rec(n - 1); END'`); err != nil {
		t.Fatal(err)
	}
	for depth, want := range map[int]bool{10: false, 200: true} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := server.Connect(t, server.User, "postgres")
		pid := int(c.PgConn().PID())
		go func() { _, _ = c.Exec(ctx, fmt.Sprintf("SELECT rec(%d)", depth)) }()
		pgtest.Wait(t, "pg_sleep", func() bool {
			var event *string
			err := control.QueryRow(t.Context(), "SELECT wait_event FROM pg_stat_activity WHERE pid = $1", pid).Scan(&event)
			return err == nil && event != nil && *event == "PgSleep"
		})
		status, stdout, stderr := run(t, "capture", "--max-frames", "60000", strconv.Itoa(pid))
		if status != 0 || strings.Contains(stdout, "levels missing: those of the outer calls") != want || !strings.Contains(stdout, "rec(integer)") {
			t.Errorf("%d calls: status %d, %.2000s%s", depth, status, stdout, stderr)
		}
	}
}
