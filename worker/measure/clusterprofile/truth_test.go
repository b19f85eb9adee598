package clusterprofile

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/cluster"
)

// truth returns the duration and the rate of a comparison with known work, and the largest accepted error of a share.
// The variable PGSB_PROFILE_SOAK selects a long comparison. A short one has a higher rate, so that it has nearly as
// many samples.
func truth() (duration time.Duration, rate, limit float64) {
	if os.Getenv("PGSB_PROFILE_SOAK") != "" {
		return time.Minute, DefaultRate, 0.02
	}
	return 4 * time.Second, 999, 0.08
}

// worker is a session that alternates between kinds of work, and adds up the time of each by the server's clock.
type worker struct {
	conn *pgx.Conn
	pid  int
	mu   sync.Mutex // of the next two, while the session works
	took [2]float64 // seconds
	cpu  [2]float64 // processor time, seconds
	ids  [2]string  // query ids
}

// alternate has a session run two statements in turn while each is called. Each statement returns its time in seconds.
func alternate(t *testing.T, server *pgtest.Server, statements [2]string, each func(w *worker)) *worker {
	t.Helper()
	w := &worker{conn: server.Connect(t, "postgres", "postgres")}
	w.pid = int(w.conn.PgConn().PID())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	for i, sql := range statements {
		var seconds float64
		if err := w.conn.QueryRow(context.Background(), sql).Scan(&seconds); err != nil {
			t.Fatal(err)
		}
		plan := "EXPLAIN (VERBOSE, FORMAT TEXT) " + sql
		rows, err := w.conn.Query(context.Background(), plan)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			if id, ok := strings.CutPrefix(line, "Query Identifier: "); ok {
				w.ids[i] = id
			}
		}
	}
	go func() {
		for {
			for i, sql := range statements {
				var seconds float64
				before := processorTime(w.pid)
				err := w.conn.QueryRow(context.WithoutCancel(ctx), sql).Scan(&seconds)
				if err != nil || ctx.Err() != nil {
					done <- err
					return
				}
				w.add(i, seconds, processorTime(w.pid)-before)
			}
		}
	}()
	each(w)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return w
}

// add adds an execution of a statement.
func (w *worker) add(statement int, took, cpu float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took[statement] += took
	w.cpu[statement] += cpu
}

// reset forgets the executions until now.
func (w *worker) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took, w.cpu = [2]float64{}, [2]float64{}
}

// processorTime is the processor time of a process so far, in seconds (schedstat of proc(5)).
func processorTime(pid int) float64 {
	var ns, waited, slices uint64
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err == nil {
		_, err = fmt.Sscan(string(data), &ns, &waited, &slices)
	}
	if err != nil {
		return 0
	}
	return float64(ns) / 1e9
}

// sum adds up a value of the samples that pass.
func sum(p *profile.Profile, kind Mode, passes func(*profile.Sample) bool) (total float64) {
	index := slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == string(kind) })
	for _, s := range p.Sample {
		if passes(s) {
			total += float64(s.Value[index]) / 1e9
		}
	}
	return total
}

// has reports whether a function is on the stack of a sample.
func has(s *profile.Sample, function string) bool {
	return slices.ContainsFunc(s.Location, func(l *profile.Location) bool {
		return slices.ContainsFunc(l.Line, func(line profile.Line) bool { return line.Function.Name == function })
	})
}

// near fails the test if two shares differ by more than the limit.
func near(t *testing.T, what string, got, want, limit float64) {
	t.Helper()
	t.Logf("%s: share %.4f, truth %.4f", what, got, want)
	if math.Abs(got-want) > limit {
		t.Errorf("%s: share %.3f, truth %.3f", what, got, want)
	}
}

// spins defines functions that work for so many ms by the server's clock: in hash_bytes, and in numeric_fac. Both are
// the server's own code. The call frame information of a cryptographic library may be wrong.
const spins = `
CREATE FUNCTION hash(ms float8) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE t timestamptz := clock_timestamp(); s text := repeat('x', 100000);
BEGIN
	LOOP
		PERFORM hashtext(s);
		EXIT WHEN extract(epoch FROM clock_timestamp() - t) * 1000 >= ms;
	END LOOP;
	RETURN extract(epoch FROM clock_timestamp() - t);
END $$;
CREATE FUNCTION multiply(ms float8) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE t timestamptz := clock_timestamp(); n int := 1000;
BEGIN
	LOOP
		PERFORM factorial(n);
		EXIT WHEN extract(epoch FROM clock_timestamp() - t) * 1000 >= ms;
	END LOOP;
	RETURN extract(epoch FROM clock_timestamp() - t);
END $$;
CREATE FUNCTION sleep(ms float8) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE t timestamptz := clock_timestamp();
BEGIN
	PERFORM pg_sleep(ms / 1000);
	RETURN extract(epoch FROM clock_timestamp() - t);
END $$`

// TestSharesOfKnownWork has a session alternate between two functions, 70:30, and between work and sleep, 30:70.
func TestSharesOfKnownWork(t *testing.T) {
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Conf: []string{"compute_query_id = on"}})
	for sql := range strings.SplitSeq(spins, "$$;") {
		if !strings.HasSuffix(sql, "$$") {
			sql += "$$"
		}
		server.Exec(t, sql)
	}
	duration, rate, limit := truth()
	var p *profile.Profile
	take := func(w *worker) {
		w.reset()
		p, _ = collect(context.Background(), t, Options{
			DataDir: server.DataDir, Mode: Wall, Rate: rate, Duration: duration,
			Filter: Filter{PIDs: []int{w.pid}},
		})
	}
	w := alternate(t, server, [2]string{"SELECT hash(70)", "SELECT multiply(30)"}, take)
	want := w.took[0] / (w.took[0] + w.took[1])
	byQuery := func(id string) float64 {
		return sum(p, Wall, func(s *profile.Sample) bool { return label(s, LabelQueryID) == id })
	}
	if w.ids[0] == "" || w.ids[0] == w.ids[1] {
		t.Fatalf("query ids %q", w.ids)
	}
	a, b := byQuery(w.ids[0]), byQuery(w.ids[1])
	near(t, "time of two queries", a/(a+b), want, limit)
	a = sum(p, CPU, func(s *profile.Sample) bool { return has(s, "hash_bytes") })
	b = sum(p, CPU, func(s *profile.Sample) bool { return has(s, "numeric_fac") })
	near(t, "processor time of two functions", a/(a+b), w.cpu[0]/(w.cpu[0]+w.cpu[1]), limit)

	all := sum(p, CPU, func(s *profile.Sample) bool { return label(s, LabelQueryID) == w.ids[1] })
	inside := sum(p, CPU, func(s *profile.Sample) bool { return has(s, "plpgsql:multiply(double precision)") })
	t.Logf("%.3f s of %.3f s in the function of PL/pgSQL", inside, all)
	if inside < 0.8*all || inside > all {
		t.Errorf("%.3f s of the statement's %.3f s are in its function of PL/pgSQL", inside, all)
	}

	w = alternate(t, server, [2]string{"SELECT sleep(70)", "SELECT hash(30)"}, take)
	want = w.took[0] / (w.took[0] + w.took[1])
	a = sum(p, Wall, func(s *profile.Sample) bool { return label(s, LabelWaitEvent) == "PgSleep" })
	b = byQuery(w.ids[1])
	near(t, "time asleep and at work", a/(a+b), want, limit)
	// After its sleep the process waits for a processor, on a busy machine for long. It is not asleep then.
	inSleep := func(s *profile.Sample) bool {
		return label(s, LabelWaitEvent) == "PgSleep" && label(s, LabelOffCPU) == sleeping
	}
	slept := sum(p, OffCPU, inSleep)
	asleep := sum(p, OffCPU, func(s *profile.Sample) bool {
		return inSleep(s) && has(s, "pg_sleep") && label(s, LabelPhrase) == "sleeps in pg_sleep"
	})
	if slept == 0 || asleep < 0.9*slept {
		t.Errorf("%.3f s of sleep, %.3f s of it with the stack and the phrase of pg_sleep", slept, asleep)
	}
}

// workAndConnect makes one process work, and others come and go, until ctx ends. It counts the others that have ended.
func workAndConnect(ctx context.Context, busy *pgx.Conn, dsn string, ended *atomic.Int64) {
	whole := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		_, _ = busy.Exec(whole, "SELECT sum(n) FROM generate_series(1, 100000) n")
		c, err := pgx.Connect(whole, dsn)
		if err != nil {
			continue
		}
		pid := int(c.PgConn().PID())
		_ = c.Close(whole)
		for ctx.Err() == nil && !errors.Is(unix.Kill(pid, 0), unix.ESRCH) { // Close does not wait for the backend
			time.Sleep(time.Millisecond)
		}
		if ctx.Err() == nil {
			ended.Add(1)
		}
	}
}

// TestTotalsAreWallClockTime compares the time of each process with the time that it has lived.
func TestTotalsAreWallClockTime(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	found, err := cluster.ByDataDir(server.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	members, err := found.Members()
	if err != nil {
		t.Fatal(err)
	}
	busy := server.Connect(t, "postgres", "postgres")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	var ended, before atomic.Int64 // sessions whose backend has ended: now, and when the profile began
	go func() {
		defer close(done)
		workAndConnect(ctx, busy, server.DSN("postgres", "postgres"), &ended)
	}()
	// The profile ends when enough sessions have ended, however long that takes, so none of them outlives the profile.
	const sessions = 10
	profiling, end := context.WithCancel(context.Background())
	defer end()
	var started, seen time.Time
	called := time.Now()
	p, s := collect(profiling, t, Options{
		DataDir: server.DataDir, Mode: Wall, Duration: pgtest.Patience,
		Started: func() { started = time.Now(); before.Store(ended.Load()) },
		Progress: func(took time.Duration, _ int) {
			seen = time.Now()
			if took >= 3*time.Second && ended.Load()-before.Load() >= sessions {
				end()
			}
		},
	})
	least, most := seen.Sub(started).Seconds(), time.Since(called).Seconds()
	cancel()
	<-done
	if profiling.Err() == nil {
		t.Fatalf("%d sessions ended in %v", ended.Load()-before.Load(), s.Took)
	}
	compared, shortest, longest := 0, most, least
	for _, m := range append(members, cluster.Member{PID: int(busy.PgConn().PID())}) {
		if _, err := found.Contains(m.PID); err != nil {
			continue // it has ended: a process for autovacuum
		}
		took := sum(p, Wall, func(s *profile.Sample) bool { return label(s, LabelPID) == strconv.Itoa(m.PID) })
		if took < least*0.999 || took > most {
			t.Errorf("process %d: %.4f s, want from %.4f to %.4f s", m.PID, took, least, most)
		}
		shortest, longest = min(shortest, took), max(longest, took)
		compared++
	}
	if longest > 1.01*shortest { // all have lived as long as the profile
		t.Errorf("the times of the processes are from %.4f to %.4f s", shortest, longest)
	}
	if compared < 4 {
		t.Errorf("%d processes compared", compared)
	}
	total := sum(p, Wall, func(*profile.Sample) bool { return true })
	if kernel := (s.CPU + s.OffCPU).Seconds(); math.Abs(total/kernel-1) > 0.001 {
		t.Errorf("the samples add up to %.4f s, the kernel's times to %.4f s", total, kernel)
	}
	if s.Processes < sessions+compared || s.Ended < sessions {
		t.Errorf("%d processes, %d ended, of %d sessions", s.Processes, s.Ended, sessions)
	}
}

// TestStacksEqualCaptures compares the stacks of processes that sleep with the stacks of a capture.
func TestStacksEqualCaptures(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	sleeper := server.Connect(t, "postgres", "postgres")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = sleeper.Exec(ctx, "SELECT pg_sleep(600)")
	}()
	defer func() { cancel(); <-done }()
	admin := server.Connect(t, "postgres", "postgres")
	pgtest.Wait(t, "the sleep", func() bool {
		var n int
		err := admin.QueryRow(context.Background(),
			"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").Scan(&n)
		return err == nil && n == 1
	})
	capturer, err := capture.New(capture.Config{AwaitNames: true, LinesWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	pids := []int{int(sleeper.PgConn().PID()), int(admin.PgConn().PID())}
	for _, pid := range pids { // the answer to the last statement can still be on its way
		pgtest.Wait(t, "a session at rest", func() bool {
			stat, err := process.ReadStat(pid)
			return err == nil && stat.State == 'S'
		})
	}
	p, _ := collect(context.Background(), t, Options{
		DataDir: server.DataDir, Mode: OffCPU, Duration: 500 * time.Millisecond, Capturer: capturer,
	})
	for _, pid := range pids {
		tr, err := capturer.Capture(context.Background(), process.Target{PID: pid, UID: -1}, capture.Options{NoContext: true})
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for i := range tr.Threads[0].Frames {
			f := &tr.Threads[0].Frames[i]
			want = append(want, fmt.Sprintf("%s at 0x%x in %s", f.Label(), f.Address, f.BuildID))
		}
		seen := false
		for _, s := range p.Sample {
			if label(s, LabelPID) != strconv.Itoa(pid) {
				continue
			}
			var got []string
			for _, l := range s.Location {
				for _, line := range l.Line {
					got = append(got, fmt.Sprintf("%s at 0x%x in %s", line.Function.Name, l.Address, l.Mapping.BuildID))
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("process %d:\n%s\na capture has\n%s", pid, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			seen = true
		}
		if !seen {
			t.Errorf("no sample of process %d", pid)
		}
	}
}

// TestServerRestarts expects the samples that were collected until the server ended.
func TestServerRestarts(t *testing.T) {
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	if err := clusterbpf.Check(); err != nil {
		t.Skip(err)
	}
	sampled, restarted := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(restarted)
		<-sampled
		server.Restart("fast")
	}()
	p, s := collect(context.Background(), t, Options{
		DataDir: server.DataDir, Mode: Wall, Duration: pgtest.Patience,
		Progress: func(time.Duration, int) {
			select {
			case <-sampled:
			default:
				close(sampled)
			}
		},
	})
	<-restarted
	if !s.ServerEnded || s.Took > pgtest.Patience*5/6 || len(p.Sample) == 0 || s.Ended == 0 {
		t.Errorf("%+v", *s)
	}
	if !strings.Contains(strings.Join(s.Notes(), " "), "restarted") {
		t.Errorf("%q", s.Notes())
	}
}

// TestCostLimit expects that a profile ends by itself when the programs cost more than they may.
func TestCostLimit(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	_, s := collect(context.Background(), t, Options{
		DataDir: server.DataDir, Mode: Wall, Duration: pgtest.Patience, CostLimit: 1e-9,
	})
	if !s.StoppedByCost || s.Took > pgtest.Patience*5/6 {
		t.Errorf("%+v", *s)
	}
}

// TestFilters expects only samples that pass, and an error if none does.
func TestFilters(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	conn := server.Connect(t, "postgres", "template1")
	pid := strconv.Itoa(int(conn.PgConn().PID()))
	for name, f := range map[string]Filter{
		"database": {Databases: []string{"template1"}}, "oid": {Databases: []string{"1"}},
		"user": {Users: []string{"postgres"}, Databases: []string{"template1"}},
		"pid":  {PIDs: []int{int(conn.PgConn().PID())}},
		"type": {BackendTypes: []string{"client backend"}},
	} {
		p, _ := collect(context.Background(), t, Options{
			DataDir: server.DataDir, Mode: OffCPU, Duration: 200 * time.Millisecond, Filter: f,
		})
		for _, s := range p.Sample {
			if label(s, LabelPID) != pid && label(s, LabelBackendType) != "autovacuum worker" { // it comes and goes
				t.Errorf("%s: %v", name, s.Label)
			}
		}
	}
	_, s, err := Collect(context.Background(), Options{
		DataDir: server.DataDir, Mode: OffCPU, Duration: 100 * time.Millisecond, Filter: Filter{QueryIDs: []int64{1}},
	})
	if err == nil || !strings.Contains(err.Error(), "no samples") || s == nil {
		t.Errorf("%v, %v", s, err)
	}
}

// TestThousandSessions samples a server with a thousand sessions, some of which work.
func TestThousandSessions(t *testing.T) {
	if os.Getenv("PGSB_PROFILE_SOAK") == "" {
		t.Skip("PGSB_PROFILE_SOAK is not set: a thousand sessions take a minute")
	}
	const sessions, busy = 1000, 20
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Conf: []string{"max_connections = 1100"}})
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	defer func() { cancel(); working.Wait() }()
	for i := range sessions {
		c := server.Connect(t, "postgres", "postgres")
		if i >= busy {
			continue
		}
		working.Go(func() {
			for ctx.Err() == nil {
				_, _ = c.Exec(ctx, "SELECT count(*) FROM generate_series(1, 10000)")
			}
		})
	}
	p, s := collect(context.Background(), t, Options{DataDir: server.DataDir, Mode: Wall, Duration: 10 * time.Second})
	pids := make(map[string]bool)
	for _, s := range p.Sample {
		if label(s, LabelBackendType) == "client backend" {
			pids[label(s, LabelPID)] = true
		}
	}
	if len(pids) < sessions || s.LabelledShare() < 0.99 || s.Lost > 0 {
		t.Errorf("%d sessions; %+v", len(pids), *s)
	}
	want := float64(s.Processes) * s.Took.Seconds()
	if got := (s.CPU + s.OffCPU).Seconds(); math.Abs(got/want-1) > 0.01 {
		t.Errorf("%.1f s of %d processes in %.2f s", got, s.Processes, s.Took.Seconds())
	}
	if float64(s.WithoutStack) > 0.01*float64(s.CPU+s.OffCPU) {
		t.Errorf("%v of %v without a stack", s.WithoutStack, s.CPU+s.OffCPU)
	}
}
