package heap

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/allocs"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/memctx"
)

// contextBytes is the sum of the memory contexts of a process.
func contextBytes(t *testing.T, c *capture.Capturer, pid int) int64 {
	t.Helper()
	m, err := c.MemoryContexts(t.Context(), process.Target{PID: pid, UID: -1},
		memctx.Options{MaxContexts: 1 << 20, MaxPages: 1 << 17})
	if err != nil {
		t.Fatal(err)
	}
	if !m.Consistent {
		t.Fatal("the memory contexts of an idle backend are not consistent")
	}
	sum := int64(0)
	for i := range m.Contexts {
		sum += m.Contexts[i].Total
	}
	return sum
}

// leaksVariable is the number of leaked statements, 1500 in a full test.
const leaksVariable = "PGSB_TEST_LEAKS"

// TestGrowth: the bytes live since the start equal the growth of the memory contexts, within 2 %.
func TestGrowth(t *testing.T) {
	needTracer(t)
	leaks := 400
	if n := os.Getenv(leaksVariable); n != "" {
		if _, err := fmt.Sscan(n, &leaks); err != nil {
			t.Fatal(err)
		}
	}
	prepare := func(name string, n int) string {
		return fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP EXECUTE format('PREPARE %s%%s AS SELECT relname, relpages + %%s
			FROM pg_class WHERE oid = $1 AND relpages BETWEEN %%s AND 100000', i, i, i); END LOOP; END $$`, n, name)
	}
	cases := []struct {
		name, before, work, function string
	}{
		// The statement before fills the server's list of blocks for reuse, which is not in the tree.
		{"prepared statements", prepare("a", 20), prepare("b", leaks), "CompleteCachedPlan"},
		{
			"catalog cache", "SELECT count(format_type(oid, NULL)) FROM pg_type LIMIT 10",
			"SELECT count(pg_get_function_identity_arguments(oid)), count(obj_description(oid, 'pg_proc')) FROM pg_proc",
			"pg_get_function_identity_arguments",
		},
		{
			"array", "SELECT 1", `DO $$ DECLARE a text[] := '{}'; BEGIN PERFORM set_config('test.a', 'a', false);
			FOR i IN 1..150000 LOOP a := a || ('element number ' || i); END LOOP; PERFORM pg_sleep(600); END $$`, "array_append",
		},
	}
	pgtest.Each(t, func(t *testing.T, binDir string) {
		server := pgtest.Start(t, binDir, pgtest.Options{})
		c, err := capture.New(capture.Config{LinesWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range cases {
			t.Run(test.name, func(t *testing.T) {
				conn := server.Connect(t, server.User, "postgres")
				for _, sql := range []string{"LOAD 'plpgsql'", test.before, "SELECT 1"} {
					if _, err := conn.Exec(t.Context(), sql); err != nil {
						t.Fatal(err)
					}
				}
				pid := int(conn.PgConn().PID())
				before := contextBytes(t, c, pid)
				r := during(t, pid, allocs.Options{}, func() { runUntilSleep(t, server, conn, test.work) })
				growth := contextBytes(t, c, pid) - before
				live := int64(r.Total().LiveBytes) - int64(r.Counters.OlderBytes)
				off := math.Abs(float64(live-growth)) / float64(growth)
				t.Logf("the contexts grew by %d bytes, live are %d (%.2f %% apart) in %d call paths", growth, live, 100*off,
					len(r.Paths))
				if growth < 500_000 || off > 0.02 {
					t.Errorf("the contexts grew by %d bytes, live are %d: %.2f %% apart\n%s", growth, live, 100*off,
						strings.Join(append(r.Summary(), r.Notes()...), "\n"))
				}
				if _, bytes := liveOf(r, test.function); float64(bytes) < 0.5*float64(growth) {
					t.Errorf("only %d of %d bytes are from %s", bytes, growth, test.function)
				}
			})
		}
	})
}

// runUntilSleep runs a statement to its end, or until it sleeps.
func runUntilSleep(t *testing.T, server *pgtest.Server, conn *pgx.Conn, sql string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, sql)
		ended <- err
	}()
	if !strings.Contains(sql, "pg_sleep") {
		if err := <-ended; err != nil {
			t.Error(err)
		}
		cancel()
		return
	}
	t.Cleanup(func() { // before the connection is closed
		cancel()
		<-ended
	})
	look := server.Connect(t, server.User, "postgres")
	pgtest.Wait(t, "the backend to sleep", func() bool {
		var event *string
		err := look.QueryRow(t.Context(), "SELECT wait_event FROM pg_stat_activity WHERE pid = $1",
			conn.PgConn().PID()).Scan(&event)
		return err == nil && event != nil && *event == "PgSleep"
	})
}
