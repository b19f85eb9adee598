package waitevent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/pg/cluster"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// watched is a server whose wait events are timed.
type watched struct {
	*Server

	server   *pgtest.Server
	provider waits.Provider
}

// watch starts a server and times its wait events. Where this host does not allow the method the test is skipped.
func watch(t *testing.T, bin string, o pgtest.Options, method waits.Options) watched {
	t.Helper()
	lend := pgtest.Lend
	if len(o.Env) > 0 { // of one test
		lend = pgtest.Start
	}
	return timeWaits(t, lend(t, bin, o), method)
}

// timeWaits times the wait events of a server. Where this host does not allow the method the test is skipped.
func timeWaits(t *testing.T, server *pgtest.Server, method waits.Options) watched {
	t.Helper()
	c, err := cluster.ByDataDir(server.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	located, err := Locate(c)
	if err != nil {
		t.Fatal(err)
	}
	provider, err := waits.Open(located.Target, method)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, waits.ErrUnsupported) && method.Method != waits.Sampled {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(provider.Close)
	return watched{located, server, provider}
}

// totals returns the figures of all processes by name of the event.
func (w watched) totals(t *testing.T) map[string]Row {
	t.Helper()
	s, err := w.provider.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if s.Lost != (waits.Lost{Outside: s.Lost.Outside}) {
		t.Errorf("lost: %+v", s.Lost)
	}
	rows := make(map[string]Row)
	report := w.NewReport(w.provider.Info(), s, cluster.Title, nil)
	for _, row := range report.Rows {
		if !row.Known {
			t.Errorf("event %#x has no name", row.ID)
		}
		var sum uint64
		highest := 0
		for b, n := range row.Buckets {
			sum += n
			if n > 0 {
				highest = b
			}
		}
		if highest != waits.Bucket(row.Longest) {
			t.Errorf("%s: the longest wait, %v, is in range %d", row.Name, row.Longest, highest)
		}
		if sum != row.Calls {
			t.Errorf("%s: %d calls, %d in the histogram", row.Name, row.Calls, sum)
		}
		rows[row.Type+"/"+row.Name] = row
	}
	return rows
}

// eachMethod runs a test with each counting method, on the newest version, unless pgtest.Full.
func eachMethod(t *testing.T, test func(t *testing.T, bin string, method waits.Options)) {
	pgtest.One(t, func(t *testing.T, bin string) {
		for _, method := range []waits.Method{waits.Blocked, waits.Exact} {
			t.Run(string(method), func(t *testing.T) { test(t, bin, waits.Options{Method: method}) })
		}
	})
}

// awaitSleep waits until a process sleeps. A session reports a wait event before it sleeps.
func awaitSleep(t *testing.T, pid int) {
	t.Helper()
	pgtest.Wait(t, fmt.Sprintf("process %d asleep", pid), func() bool {
		stat, err := process.ReadStat(pid)
		return err == nil && stat.State == 'S'
	})
}

func number[T any](t *testing.T, c *pgx.Conn, sql string) (n T) {
	t.Helper()
	if err := c.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPgSleep compares the waits of pg_sleep with their number, and with the time that the server itself measures.
func TestPgSleep(t *testing.T) {
	const calls, each = 300, 2 * time.Millisecond
	eachMethod(t, func(t *testing.T, bin string, method waits.Options) {
		w := watch(t, bin, pgtest.Options{}, method)
		c := w.server.Connect(t, "postgres", "postgres")
		w.server.Exec(t, `CREATE FUNCTION sleep(n int) RETURNS float8 LANGUAGE plpgsql AS $$
			DECLARE t timestamptz; total float8 := 0;
			BEGIN FOR i IN 1..n LOOP
				t := clock_timestamp(); PERFORM pg_sleep(0.002);
				total := total + extract(epoch FROM clock_timestamp() - t);
			END LOOP; RETURN total; END $$`)
		seconds := number[float64](t, c, fmt.Sprintf("SELECT sleep(%d)", calls))
		row := w.totals(t)["Timeout/PgSleep"]
		measured := time.Duration(seconds * float64(time.Second))
		// The server sleeps again when a signal has ended a sleep. If it gets no processor before its call until the time is
		// over, it does not call. If that happens inside the call, it does not sleep, and the method blocked sees nothing.
		least := uint64(calls * 99 / 100)
		if method.Method == waits.Blocked {
			least = calls * 9 / 10
		}
		short := row.Total < time.Duration(least)*each*98/100
		if row.Calls < least || row.Calls > calls+3 || short || row.Total > measured {
			t.Errorf("%d calls and %v; the server has measured %d and %v", row.Calls, row.Total, calls, measured)
		}
		if row.Longest < each || row.Longest > measured {
			t.Errorf("longest %v", row.Longest)
		}
	})
}

// TestLockWaits makes a session wait for a lock for known times.
func TestLockWaits(t *testing.T) {
	const calls = 3
	eachMethod(t, func(t *testing.T, bin string, method waits.Options) {
		w := watch(t, bin, pgtest.Options{Conf: []string{"deadlock_timeout = 1min"}}, method)
		ctx := context.Background()
		holder, waiter := w.server.Connect(t, "postgres", "postgres"), w.server.Connect(t, "postgres", "postgres")
		pid := number[int](t, waiter, "SELECT pg_backend_pid()")
		var least, most time.Duration
		for range calls {
			if _, err := holder.Exec(ctx, "SELECT pg_advisory_lock(1)"); err != nil {
				t.Fatal(err)
			}
			done, began := make(chan error), time.Now()
			go func() {
				_, err := waiter.Exec(ctx, "SELECT pg_advisory_lock(1), pg_advisory_unlock(1)")
				done <- err
			}()
			pgtest.Wait(t, "the lock's wait", func() bool {
				return number[int](t, holder, fmt.Sprintf(
					"SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND wait_event = 'advisory'", pid)) == 1
			})
			awaitSleep(t, pid)
			seen := time.Now()
			if _, err := holder.Exec(ctx, "SELECT pg_sleep(0.1)"); err != nil {
				t.Fatal(err)
			}
			least += time.Since(seen)
			if _, err := holder.Exec(ctx, "SELECT pg_advisory_unlock(1)"); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			most += time.Since(began)
		}
		row := w.totals(t)["Lock/advisory"]
		if row.Calls != calls || row.Total < least || row.Total > most {
			t.Errorf("%d calls, %v; want %d, from %v to %v", row.Calls, row.Total, calls, least, most)
		}
	})
}

// TestWaitInProgress expects that a wait that has not ended counts up to now, also when it began before the timing.
func TestWaitInProgress(t *testing.T) {
	eachMethod(t, func(t *testing.T, bin string, method waits.Options) {
		server := pgtest.Lend(t, bin, pgtest.Options{})
		c := server.Connect(t, "postgres", "postgres")
		pid := number[int](t, c, "SELECT pg_backend_pid()")
		other := server.Connect(t, "postgres", "postgres")
		pgtest.Wait(t, "the session's wait", func() bool {
			return number[int](t, other, fmt.Sprintf(
				"SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND wait_event = 'ClientRead'", pid)) == 1
		})
		awaitSleep(t, pid)
		cluster, err := cluster.ByDataDir(server.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		located, err := Locate(cluster)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		provider, err := waits.Open(located.Target, method)
		if err != nil {
			t.Skip(err)
		}
		defer provider.Close()
		var last time.Duration
		for range 3 {
			opened := time.Now()
			time.Sleep(20 * time.Millisecond) // the length of the wait
			s, err := provider.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			slept := time.Since(opened)
			for _, p := range s.Processes {
				if p.PID != pid {
					continue
				}
				if len(p.Events) != 1 || p.Events[0].Calls != 1 {
					t.Fatalf("%+v", p.Events)
				}
				total := p.Events[0].Total
				if total < last+20*time.Millisecond || total > time.Since(began) || slept < 20*time.Millisecond {
					t.Errorf("%v after %v", total, last)
				}
				last = total
			}
		}
		if last == 0 {
			t.Error("the session does not wait")
		}
	})
}

// TestWALSync compares the number of WAL syncs with the server's own.
func TestWALSync(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		w := watch(t, bin, pgtest.Options{Conf: []string{"fsync = on", "wal_sync_method = fdatasync", "autovacuum = off"}},
			waits.Options{Method: waits.Exact})
		w.server.Exec(t, "CREATE TABLE t (n int)")
		syncs := "SELECT wal_sync FROM pg_stat_wal"
		if pgtest.Major(t, bin) >= 18 {
			syncs = "SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal'"
		}
		c := w.server.Connect(t, "postgres", "postgres")
		for range 100 {
			if _, err := c.Exec(context.Background(), "INSERT INTO t VALUES (1)"); err != nil {
				t.Fatal(err)
			}
		}
		pid := int(c.PgConn().PID())
		_ = c.Close(context.Background()) // reports its figures
		pgtest.Wait(t, "the session's end", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
		other := w.server.Connect(t, "postgres", "postgres")
		before, settled := number[int64](t, other, syncs), 0
		pgtest.Wait(t, "the server's own figure", func() bool {
			_ = number[int](t, other, "SELECT 1 FROM pg_sleep(0.1)") // other processes report from time to time
			now := number[int64](t, other, syncs)
			if now != before || now < 100 {
				settled = 0
			}
			before = now
			settled++
			return settled > 5
		})
		ours := int64(w.totals(t)["IO/WalSync"].Calls + w.totals(t)["IO/WALSync"].Calls)
		if diff := ours - before; diff < -1-before/100 || diff > 1+before/100 {
			t.Errorf("%d syncs, the server has counted %d", ours, before)
		}
	})
}

// TestClientRead has a client pause between statements.
func TestClientRead(t *testing.T) {
	const calls, pause = 20, 10 * time.Millisecond
	eachMethod(t, func(t *testing.T, bin string, method waits.Options) {
		w := watch(t, bin, pgtest.Options{}, method)
		c := w.server.Connect(t, "postgres", "postgres")
		pid := number[int](t, c, "SELECT pg_backend_pid()")
		pgtest.Wait(t, "the session's first figures", func() bool { return w.provider.Reset(pid) })
		began := time.Now()
		for range calls {
			awaitSleep(t, pid) // after its last answer
			time.Sleep(pause)  // the client's
			if _, err := c.Exec(context.Background(), "SELECT 1"); err != nil {
				t.Fatal(err)
			}
		}
		s, err := w.provider.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		elapsed := time.Since(began)
		for _, p := range s.Processes {
			if p.PID != pid {
				continue
			}
			if p.Resets != 1 {
				t.Errorf("%d resets", p.Resets)
			}
			r := w.rows(p.Events)[0]
			few, many := r.Calls < calls, r.Calls > 2*calls+2
			if r.Name != "ClientRead" || few || many || r.Total < calls*pause*9/10 || r.Total > 2*elapsed {
				t.Errorf("%s: %d calls, %v of %v", r.Name, r.Calls, r.Total, elapsed)
			}
		}
	})
}

// TestConnects expects that the figures of sessions that have ended are not lost.
func TestConnects(t *testing.T) {
	const together = 10
	sessions := pgtest.Extent(50, 100)
	eachMethod(t, func(t *testing.T, bin string, method waits.Options) {
		w := watch(t, bin, pgtest.Options{}, method)
		var group sync.WaitGroup
		for range together {
			group.Go(func() {
				for range sessions / together {
					c, err := pgx.Connect(context.Background(), w.server.DSN("postgres", "postgres"))
					if err == nil {
						// Long enough that a process which waits for a processor before it sleeps still has to sleep.
						_, err = c.Exec(context.Background(), "SELECT pg_sleep(0.2)")
						_ = c.Close(context.Background())
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		pgtest.Wait(t, "the last session's figures", func() bool {
			return w.totals(t)["Timeout/PgSleep"].Calls >= uint64(sessions)
		})
		// A latch that is set without a reason begins a second wait in pg_sleep.
		if n := int(w.totals(t)["Timeout/PgSleep"].Calls); n < sessions || n > sessions+sessions/20 {
			t.Errorf("%d sleeps of %d sessions", n, sessions)
		}
	})
}

// TestTotalsGrow expects that no snapshot lacks the figures of a session that just ends.
func TestTotalsGrow(t *testing.T) {
	sessions := pgtest.Extent(15, 40)
	for _, method := range []waits.Method{waits.Blocked, waits.Exact} {
		t.Run(string(method), func(t *testing.T) {
			w := watch(t, pgtest.BinDir(t), pgtest.Options{}, waits.Options{Method: method})
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range sessions {
					c, err := pgx.Connect(context.Background(), w.server.DSN("postgres", "postgres"))
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = c.Exec(context.Background(), sleep20)
					_ = c.Close(context.Background())
				}
			}()
			var last uint64
			for running := true; running; {
				select {
				case <-done:
					running = false
				case <-time.After(2 * time.Millisecond): // the sessions need the processors
				}
				s, err := w.provider.Snapshot()
				if err != nil {
					t.Fatal(err)
				}
				var calls uint64
				for _, e := range s.Totals() {
					calls += e.Calls
				}
				// A wait in progress counts, and its end can be between two of the server's processes.
				if calls+5 < last {
					t.Errorf("%d waits after %d", calls, last)
				}
				last = calls
			}
			if last < uint64(20*sessions*9/10) {
				t.Errorf("only %d waits", last)
			}
		})
	}
}

const sleep20 = "DO $$ BEGIN FOR i IN 1..20 LOOP PERFORM pg_sleep(0.001); END LOOP; END $$"

// TestReset expects that a reset forgets all waits before it, and no wait after it.
func TestReset(t *testing.T) {
	eachMethod(t, func(t *testing.T, bin string, method waits.Options) {
		w := watch(t, bin, pgtest.Options{}, method)
		c := w.server.Connect(t, "postgres", "postgres")
		for i := range 3 {
			for range i + 1 {
				number[string](t, c, "SELECT pg_sleep(0.1)::text") // a busy machine may need more than some ms before the sleep
			}
			if n := w.totals(t)["Timeout/PgSleep"].Calls; n != uint64(i+1) {
				t.Errorf("%d sleeps after reset %d", n, i)
			}
			if err := w.provider.ResetAll(); err != nil {
				t.Fatal(err)
			}
			if n := w.totals(t)["Timeout/PgSleep"].Calls; n != 0 {
				t.Errorf("%d sleeps just after a reset", n)
			}
		}
		if w.provider.Reset(1) {
			t.Error("process 1 was reset")
		}
	})
}

// TestResetDuringWait: of a wait that is in progress at a reset, only the part after it counts, before and after the
// wait's end.
func TestResetDuringWait(t *testing.T) {
	eachMethod(t, func(t *testing.T, bin string, method waits.Options) {
		w := watch(t, bin, pgtest.Options{}, method)
		c := w.server.Connect(t, "postgres", "postgres")
		ended := make(chan error, 1)
		go func() {
			_, err := c.Exec(t.Context(), "SELECT pg_sleep(600)")
			ended <- err
		}()
		pgtest.Wait(t, "the sleep", func() bool { return w.totals(t)["Timeout/PgSleep"].Total > 500*time.Millisecond })
		reset := time.Now()
		if err := w.provider.ResetAll(); err != nil {
			t.Fatal(err)
		}
		check := func(what string) time.Duration {
			t.Helper()
			s, err := w.provider.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			var slept time.Duration
			for i := range s.Processes {
				for _, e := range s.Processes[i].Events {
					if most := time.Since(reset); e.Total > most || e.Longest > most {
						t.Errorf("%s: process %d waited %s for event %#x, longest %s, in %s since the reset", what,
							s.Processes[i].PID, e.Total, e.ID, e.Longest, most)
					}
					if _, name, _ := w.Names.Name(e.ID); name == "PgSleep" {
						slept = e.Total
					}
				}
			}
			return slept
		}
		check("during the wait")
		w.server.Exec(t, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
		var cancelled *pgconn.PgError
		if err := <-ended; !errors.As(err, &cancelled) || cancelled.Code != "57014" {
			t.Fatal(err)
		}
		if slept := check("after the wait"); slept == 0 {
			t.Error("nothing of the wait counts")
		}
	})
}

// TestServerGone expects an error once the server has been restarted, or has ended.
func TestServerGone(t *testing.T) {
	for _, method := range []waits.Method{waits.Blocked, waits.Exact, waits.Sampled} {
		t.Run(string(method), func(t *testing.T) {
			w := watch(t, pgtest.BinDir(t), pgtest.Options{}, waits.Options{Method: method})
			if _, err := w.provider.Snapshot(); err != nil {
				t.Fatal(err)
			}
			c := w.server.Connect(t, "postgres", "postgres")
			if err := syscall.Kill(int(c.PgConn().PID()), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			pgtest.Wait(t, "the end of the figures", func() bool {
				_, err := w.provider.Snapshot()
				return errors.Is(err, waits.ErrServerGone)
			})
			pgtest.Wait(t, "the server after its crash", func() bool {
				again, err := waits.Open(w.Target, waits.Options{Method: method})
				if err != nil {
					return false
				}
				defer again.Close()
				// A server that is stopped at the end of its recovery can hang.
				c, err := pgx.Connect(t.Context(), w.server.DSN("postgres", "postgres"))
				if err != nil {
					return false
				}
				_ = c.Close(t.Context())
				return again.Check() == nil
			})
			if err := w.provider.Check(); !errors.Is(err, waits.ErrServerGone) {
				t.Errorf("after a crash: %v", err)
			}
			w.server.Restart("fast")
			if _, err := w.provider.Snapshot(); !errors.Is(err, waits.ErrServerGone) {
				t.Errorf("after a restart: %v", err)
			}
		})
	}
}

// TestSampled expects an estimate that is near the truth, and no counts.
func TestSampled(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		w := watch(t, bin, pgtest.Options{}, waits.Options{Method: waits.Sampled})
		c := w.server.Connect(t, "postgres", "postgres")
		began := time.Now()
		number[string](t, c, "SELECT pg_sleep(1)::text")
		row := w.totals(t)["Timeout/PgSleep"]
		if row.Calls != 0 || row.Total < time.Second/2 || row.Total > time.Since(began)+pause {
			t.Errorf("%d calls, %v", row.Calls, row.Total)
		}
	})
}

// pause is more than an interval of the polling.
const pause = 100 * time.Millisecond

// TestMethods expects that the automatic choice names its method, and why better ones were not taken.
func TestMethods(t *testing.T) {
	w := watch(t, pgtest.BinDir(t), pgtest.Options{}, waits.Options{})
	info := w.provider.Info()
	switch info.Mechanism {
	case "fentry":
	case "sched_switch", "polling":
		if len(info.Reasons) == 0 {
			t.Errorf("%+v", info)
		}
	default:
		t.Errorf("%+v", info)
	}
}

// TestImpossibleMethods expects one message with every reason for methods that cannot work.
func TestImpossibleMethods(t *testing.T) {
	w := watch(t, pgtest.BinDir(t), pgtest.Options{}, waits.Options{Method: waits.Sampled})
	for name, o := range map[string]waits.Options{
		"an unknown method":    {Method: "watchpoint"},
		"stacks of sleeps":     {Method: waits.Blocked, Stacks: waits.StackOptions{Every: 1}},
		"an unknown mechanism": {Method: waits.Exact, Mechanism: "other"},
	} {
		provider, err := waits.Open(w.Target, o)
		if err == nil {
			provider.Close()
		}
		if errors.Is(err, fs.ErrPermission) {
			t.Logf("%s: skipped: %v", name, err)
			continue
		}
		if !errors.Is(err, waits.ErrUnsupported) || strings.Count(err.Error(), waits.ErrUnsupported.Error()) != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// callsOf returns the figures of a process.
func (w watched) callsOf(t *testing.T, p waits.Provider, pid int) map[string]Row {
	t.Helper()
	s, err := p.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if s.Lost.Missed != 0 {
		t.Errorf("%s has missed %d", p.Info().Mechanism, s.Lost.Missed)
	}
	rows := make(map[string]Row)
	for _, process := range s.Processes {
		if process.PID == pid {
			for _, row := range w.rows(process.Events) {
				rows[row.Type+"/"+row.Name] = row
			}
		}
	}
	return rows
}
