package capture_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
)

// speedOfPlans prints the stops of a plan of 500 nodes beside those of a capture, and the time to read it. It asserts
// nothing: the machine may be busy.
func speedOfPlans(t *testing.T, server *pgtest.Server, control *pgx.Conn, c *capture.Capturer) {
	t.Helper()
	if !pgtest.Full() {
		t.Skip("PGSB_TEST_FULL is not set")
	}
	server.Exec(t, `CREATE TABLE many (id int) PARTITION BY RANGE (id);
		DO $$ BEGIN FOR i IN 1..500 LOOP EXECUTE format('CREATE TABLE many%s PARTITION OF many FOR VALUES FROM (%s) TO (%s)', i, i, i + 1);
		END LOOP; END $$; INSERT INTO many SELECT generate_series(1, 500); ANALYZE many`)
	session := server.Connect(t, server.User, "postgres")
	ctx := context.Background()
	if _, err := control.Exec(ctx, "SELECT pg_advisory_lock(1)"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := session.PgConn().Exec(ctx, "SELECT CASE WHEN id = 250 THEN hold(id) END FROM many").ReadAll()
		done <- err
	}()
	pid := int(session.PgConn().PID())
	pgtest.Wait(t, "wait for the lock", func() bool {
		var waits bool
		err := control.QueryRow(ctx, "SELECT count(*) > 0 FROM pg_locks WHERE pid = $1 AND NOT granted", pid).Scan(&waits)
		return err == nil && waits
	})
	target := process.Target{PID: pid, UID: -1}
	var plans, captures, reads []time.Duration
	var cost time.Duration // processor time of the reads
	for range 200 {
		p, err := patientPlans(t, c, pid)
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans, p.Pause)
		trace, err := c.Capture(ctx, target, capture.Options{NoContext: true, Deadline: pgtest.Patience})
		if err != nil {
			t.Fatal(err)
		}
		captures = append(captures, trace.Pause)
		stack := patientPlanStack(t, c, target)
		began, before := time.Now(), processorTime()
		levels, err := capture.ReadPlans(pid, stack)
		reads = append(reads, time.Since(began))
		cost += processorTime() - before
		if err != nil && tooSlow(err) {
			continue
		}
		if err != nil || strings.Count(levels[0].Text(false), "\n") < 500 {
			t.Fatal(err, levels)
		}
	}
	for name, list := range map[string][]time.Duration{"stop of a plan": plans, "stop of a capture": captures, "read of 501 nodes": reads} {
		slices.Sort(list)
		t.Logf("%s: p50 %v, p99 %v", name, list[len(list)/2], list[len(list)*99/100])
	}
	t.Logf("processor time of a read: %v", cost/time.Duration(len(reads)))
	if _, err := control.Exec(ctx, "SELECT pg_cancel_backend($1)", pid); err != nil {
		t.Fatal(err)
	}
	<-done
	if _, err := control.Exec(ctx, "SELECT pg_advisory_unlock(1)"); err != nil {
		t.Fatal(err)
	}
}

// processorTime returns the processor time that the test has used.
func processorTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
