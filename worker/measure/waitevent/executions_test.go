package waitevent

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/waits"
)

// TestEndsOfBusySession traces a session whose next query has always arrived when a query ends, so that it does not
// wait for its client. The trace must have each execution, and their whole time.
func TestEndsOfBusySession(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		w := watch(t, bin, pgtest.Options{Conf: []string{"compute_query_id = on"}},
			waits.Options{Method: waits.Exact, Queries: true})
		tracer, ok := w.provider.(waits.Tracer)
		if !ok {
			t.Fatal("the method exact traces nothing")
		}
		c := w.server.Connect(t, "postgres", "postgres")
		pid := number[int](t, c, "SELECT pg_backend_pid()")
		pgtest.Wait(t, "the session's first wait", func() bool {
			_, err := c.Exec(context.Background(), "SELECT pg_sleep(0.001)")
			if err != nil {
				t.Fatal(err)
			}
			return tracer.SetTraced(pid, true)
		})
		tracer.Records()
		const rounds = 50
		f := c.PgConn().Frontend()
		for range rounds { // the server reads them all at once
			f.Send(&pgproto3.Query{String: "SELECT pg_sleep(0.001), 1"})
			f.Send(&pgproto3.Query{String: "SELECT 1, count(*) FROM generate_series(1, 10)"})
			f.Send(&pgproto3.Query{String: "COMMIT AND"}) // an error
		}
		began := time.Now()
		if err := f.Flush(); err != nil {
			t.Fatal(err)
		}
		failed := 0
		for answers := 0; answers < 3*rounds; {
			message, err := f.Receive()
			if err != nil {
				t.Fatal(err)
			}
			switch message.(type) {
			case *pgproto3.ReadyForQuery:
				answers++
			case *pgproto3.ErrorResponse:
				failed++
			}
		}
		took := time.Since(began)
		if failed != rounds {
			t.Fatalf("%d errors", failed)
		}
		r := w.NewSessionReport()
		r.Add(tracer.Records())
		var b bytes.Buffer
		if err := r.Text(&b); err != nil {
			t.Fatal(err)
		}
		full, total := 0, r.between.elapsed
		for _, q := range r.queries {
			if q.executions == rounds && q.unended == 0 && q.together == 0 {
				full++
			}
			if q.waitedInCounted > q.elapsed {
				t.Errorf("query %d: %v waited in %v", q.id, q.waitedInCounted, q.elapsed)
			}
			total += q.elapsed
		}
		if full != 2 || total > took || total < rounds*time.Millisecond {
			t.Errorf("%d queries with %d executions, %v of %v:\n%s", full, rounds, total, took, b.String())
		}
	})
}

// TestStatementFromBeforeMeasurement times sessions whose statements began before the measurement, or before a reset. The figures by
// query must have only the time since then, and no statement that ended before.
func TestStatementFromBeforeMeasurement(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		const before = 300 * time.Millisecond
		server := pgtest.Lend(t, bin, pgtest.Options{Conf: []string{"compute_query_id = on"}})
		holder, waiter := server.Connect(t, "postgres", "postgres"), server.Connect(t, "postgres", "postgres")
		pid := number[int](t, waiter, "SELECT pg_backend_pid()")
		queryID := func() uint64 {
			return uint64(number[int64](t, holder, fmt.Sprintf("SELECT query_id FROM pg_stat_activity WHERE pid = %d", pid)))
		}
		exec := func(sql string) {
			t.Helper()
			if _, err := holder.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		idle := queryID()
		w := timeWaits(t, server, waits.Options{Method: waits.Exact, Queries: true})
		exec("SELECT pg_reload_conf()") // wakes the idle session
		pgtest.Wait(t, "the end of the idle session's wait", func() bool {
			return w.callsOf(t, w.provider, pid)["Client/ClientRead"].Calls > 1
		})

		done := make(chan error)
		block := func() {
			exec("SELECT pg_advisory_lock(1)")
			go func() {
				_, err := waiter.Exec(context.Background(),
					fmt.Sprintf("SELECT pg_sleep(%f), pg_advisory_lock(1), pg_advisory_unlock(1)", before.Seconds()))
				done <- err
			}()
			pgtest.Wait(t, "the lock's wait", func() bool {
				return number[int](t, holder, fmt.Sprintf(
					"SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND wait_event = 'advisory'", pid)) == 1
			})
			awaitSleep(t, pid)
		}
		executions := func(p waits.Provider, id uint64) (sum waits.QueryFigures) {
			figures, err := p.Queries()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range figures {
				if f.Query == id && f.Event == 0 {
					sum = f
				}
			}
			return sum
		}
		end := func(p waits.Provider, began time.Time, name string) {
			t.Helper()
			id := queryID()
			exec("SELECT pg_advisory_unlock(1)")
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			pgtest.Wait(t, "the end of the statement", func() bool { return executions(p, id).Calls > 0 })
			if sum := executions(p, id); sum.Calls != 1 || sum.Total > took {
				t.Errorf("%s: %d executions ended, %v, within %v", name, sum.Calls, sum.Total, took)
			}
		}
		block()
		began := time.Now()
		later := timeWaits(t, server, waits.Options{Method: waits.Exact, Queries: true}).provider
		end(later, began, "before the measurement")
		block()
		began = time.Now()
		if err := later.ResetAll(); err != nil {
			t.Fatal(err)
		}
		end(later, began, "before the reset")
		if sum := executions(w.provider, idle); sum.Calls != 0 {
			t.Errorf("before the measurement, %d executions ended, %v", sum.Calls, sum.Total)
		}
	})
}

// TestStatementFromBeforeTrace traces a session that waits in a statement when the trace begins. The statement's earlier waits are
// missing, so that the trace must not count it as a whole execution.
func TestStatementFromBeforeTrace(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		server := pgtest.Lend(t, bin, pgtest.Options{Conf: []string{"compute_query_id = on"}})
		holder, waiter := server.Connect(t, "postgres", "postgres"), server.Connect(t, "postgres", "postgres")
		pid := number[int](t, waiter, "SELECT pg_backend_pid()")
		if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_lock(1)"); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := waiter.Exec(context.Background(), "SELECT pg_advisory_lock(1), pg_advisory_unlock(1)")
			done <- err
		}()
		pgtest.Wait(t, "the lock's wait", func() bool {
			return number[int](t, holder, fmt.Sprintf(
				"SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND wait_event = 'advisory'", pid)) == 1
		})
		awaitSleep(t, pid)
		w := timeWaits(t, server, waits.Options{Method: waits.Exact, Queries: true})
		recording, err := w.NewRecording(w.provider, pid, nil)
		if err != nil {
			t.Fatal(err)
		}
		recording.Look()
		if !recording.traced {
			t.Fatal("the session is not known")
		}
		if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_unlock(1)"); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := recording.Text(&b); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), "Lock advisory") || !strings.Contains(b.String(), "0 executions ended\n    Not in SHARE: 1 ") {
			t.Errorf("%s", b.String())
		}
	})
}
