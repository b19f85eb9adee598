package waitevent

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/pg/cluster"
)

// fakeTracer is a provider with the given processes and records.
type fakeTracer struct {
	waits.Provider

	waiting map[int]bool // processes that have waited, and live
	probes  map[int]bool
	records []waits.Record
}

func (f *fakeTracer) SetTraced(pid int, _ bool) bool { return f.waiting[pid] }

func (f *fakeTracer) SetExecutorTraced(pid int, on bool) error {
	f.probes[pid] = on
	return nil
}

func (f *fakeTracer) TraceAll(bool) error { return nil }

func (f *fakeTracer) Records() []waits.Record {
	records := f.records
	f.records = nil
	return records
}

func (f *fakeTracer) Snapshot() (*waits.Snapshot, error) { return &waits.Snapshot{}, nil }

// fakeTimer makes a timer with a fakeTracer in which the processes have waited.
func fakeTimer(pids ...int) (*Timer, *fakeTracer) {
	f := &fakeTracer{waiting: make(map[int]bool), probes: make(map[int]bool)}
	for _, pid := range pids {
		f.waiting[pid] = true
	}
	t := NewTimer(Config{Log: zerolog.Nop()})
	t.level, t.server, t.provider = Stats, &Server{}, f
	return t, f
}

// sleeper starts a process that sleeps until the test or end ends it.
func sleeper(t *testing.T) (pid int, end func()) {
	t.Helper()
	command := exec.Command("sleep", "3600")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}
	t.Cleanup(end)
	return command.Process.Pid, end
}

// TestTraceOffAfterProcess ends the trace of a process that has ended. Its probe has to end too.
func TestTraceOffAfterProcess(t *testing.T) {
	pid, end := sleeper(t)
	timer, f := fakeTimer(pid)
	if err := timer.Trace(pid, true); err != nil || !f.probes[pid] {
		t.Fatalf("%v, probes %v", err, f.probes)
	}
	end()
	delete(f.waiting, pid)
	if err := timer.Trace(pid, false); err != nil || f.probes[pid] {
		t.Errorf("%v, probes %v", err, f.probes)
	}
	for _, on := range []bool{true, false} {
		if err := timer.Trace(pid, on); !errors.Is(err, ErrNoWaits) || f.probes[pid] {
			t.Errorf("an unknown process, %v: %v, probes %v", on, err, f.probes)
		}
	}
}

// TestTraceOfReusedID traces a process that has the id of an ended one, whose records must not be its own.
func TestTraceOfReusedID(t *testing.T) {
	pid := os.Getpid()
	timer, f := fakeTimer(pid)
	trace := func() {
		t.Helper()
		if err := timer.Trace(pid, true); err != nil {
			t.Fatal(err)
		}
	}
	trace()
	f.records = []waits.Record{{PID: pid, Kind: waits.ExecutorStart}}
	timer.collect()
	trace()
	if n := len(timer.traces[pid].records); n != 1 {
		t.Errorf("%d records after a second start of the same trace", n)
	}
	timer.traces[pid].started-- // an earlier process
	trace()
	if n := len(timer.traces[pid].records); n != 0 {
		t.Errorf("%d records of another process", n)
	}
}

// uprobes counts the links to probes of several functions that this process has.
func uprobes(t *testing.T) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err == nil && strings.Contains(string(text), "link_type:\tuprobe_multi") {
			n++
		}
	}
	return n
}

// TestTraceOfEndedSession traces sessions that end. Their probes must not stay, with and without a request to end the
// trace.
func TestTraceOfEndedSession(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	timer := runTimer(t, server)
	for name, off := range map[string]bool{"off": true, "alone": false} {
		t.Run(name, func(t *testing.T) {
			c := server.Connect(t, "postgres", "postgres")
			pid := number[int](t, c, "SELECT pg_backend_pid()")
			pgtest.Wait(t, "the session's first wait", func() bool {
				_, _ = c.Exec(t.Context(), "SELECT pg_sleep(0.001)")
				return timer.Trace(pid, true) == nil
			})
			if gap, err := timer.Gap(pid); err != nil || gap.Executor != nil {
				t.Skip(gap.Executor, err)
			}
			if uprobes(t) != 1 {
				t.Skipf("%d links are shown by this kernel", uprobes(t))
			}
			endSession(t, timer, c, pid)
			if off {
				if err := timer.Trace(pid, false); err != nil {
					t.Error(err)
				}
				if n := uprobes(t); n != 0 {
					t.Errorf("%d probes after the end of the trace", n)
				}
			}
			pgtest.Wait(t, "the end of the probe", func() bool { return uprobes(t) == 0 })
		})
	}
}

// runTimer times the waits of a server until the test ends.
func runTimer(t *testing.T, server *pgtest.Server) *Timer {
	t.Helper()
	timer := NewTimer(Config{Method: waits.Blocked, Log: zerolog.Nop(), Current: func() (cluster.Cluster, error) {
		return cluster.ByDataDir(server.DataDir)
	}})
	if err := timer.SetLevel(Stats); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		timer.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return timer
}

// endSession ends a session, and waits until the kernel's programs have no slot of its process.
func endSession(t *testing.T, timer *Timer, c *pgx.Conn, pid int) {
	t.Helper()
	if err := c.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the end of the process", func() bool {
		known, err := timer.Reset(pid)
		if err != nil {
			t.Fatal(err)
		}
		return startOf(pid) == 0 && !known
	})
}

// later is a time after the start of each process, in the year 2106.
const later = 1 << 32

// many returns n records of a process. A process with a larger pid has newer records.
func many(pid, n int) []waits.Record {
	records := make([]waits.Record, n)
	for i := range records {
		records[i] = waits.Record{PID: pid, Kind: waits.QueryEnd, At: time.Unix(later+int64(pid), int64(i))}
	}
	return records
}

// TestExecutorWithWaits expects the duration of an executor that waits: the start of its statement is reported with the
// first wait, after the start of the executor. A run that ended by an error has no end.
func TestExecutorWithWaits(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(1000+second), 0) }
	var trace traced
	for _, r := range []waits.Record{
		{Kind: waits.ExecutorStart, At: at(1)}, // ends by an error
		{Kind: waits.ExecutorStart, At: at(4)},
		{Kind: waits.QueryStart, At: at(3)},
		{Kind: waits.Wait, At: at(5), Took: time.Second},
		{Kind: waits.ExecutorEnd, At: at(9)},
	} {
		trace.add(r)
	}
	if got := trace.records[len(trace.records)-1].Took; got != 5*time.Second || len(trace.starts) != 0 {
		t.Errorf("the executor took %v, and %d runs have not ended", got, len(trace.starts))
	}
}

// TestRecordsOfReusedID expects no records from before the start of the process that has the id now.
func TestRecordsOfReusedID(t *testing.T) {
	pid, end := sleeper(t)
	timer, f := fakeTimer(pid)
	if err := timer.Trace(pid, true); err != nil {
		t.Fatal(err)
	}
	f.records = []waits.Record{
		{PID: pid, Kind: waits.QueryEnd, At: time.Now().Add(-time.Hour)},
		{PID: pid, Kind: waits.QueryEnd, At: time.Now()},
	}
	if rows, err := timer.Records(pid, 10, 0); err != nil || len(rows) != 1 || rows[0].Number != 2 {
		t.Errorf("%+v, %v", rows, err)
	}
	started := startOf(pid)
	if rows, err := timer.Records(pid, 10, started); err != nil || len(rows) != 1 {
		t.Errorf("of the process: %+v, %v", rows, err)
	}
	if rows, err := timer.Records(pid, 10, started-1); !errors.Is(err, ErrNoWaits) {
		t.Errorf("of an earlier process: %+v, %v", rows, err)
	}
	end()
	if rows, err := timer.Records(pid, 10, started); !errors.Is(err, ErrNoWaits) {
		t.Errorf("of the process, which has ended: %+v, %v", rows, err)
	}
	if rows, err := timer.Records(pid, 10, 0); err != nil || len(rows) != 2 {
		t.Errorf("of an ended process: %+v, %v", rows, err)
	}
}

// TestGapBehindTrace traces a process alone, and then with all others. The later records have no starts and ends of the
// executor, and Gap must say so.
func TestGapBehindTrace(t *testing.T) {
	pid, _ := sleeper(t)
	timer, f := fakeTimer(pid)
	timer.level = Trace
	gap := func(when string, want bool) {
		t.Helper()
		f.records = many(pid, 1)
		timer.collect()
		if got, err := timer.Gap(pid); err != nil || got.OfAll != want || got.Untraced {
			t.Errorf("%s: %+v, %v", when, got, err)
		}
	}
	gap("with all others", true)
	if err := timer.Trace(pid, true); err != nil {
		t.Fatal(err)
	}
	gap("alone", false)
	if err := timer.Trace(pid, false); err != nil {
		t.Fatal(err)
	}
	gap("with all others again", true)
}

// TestTracedProcessesStay traces processes without records, while others have more records than are kept. The entry of
// a process stays while the process lives and its trace has not ended.
func TestTracedProcessesStay(t *testing.T) {
	quiet, _ := sleeper(t)
	ended, end := sleeper(t)
	off, _ := sleeper(t)
	timer, f := fakeTimer(quiet, ended, off)
	for pid := range f.waiting {
		if err := timer.Trace(pid, true); err != nil {
			t.Fatal(err)
		}
	}
	end()
	if err := timer.Trace(off, false); err != nil {
		t.Fatal(err)
	}
	for pid := -1; pid >= -10; pid-- { // no process has such an id
		timer.traces[pid] = &traced{first: 1, records: many(pid, maxRecords)}
	}
	timer.collect()
	for pid, want := range map[int]bool{quiet: false, ended: true, off: true} {
		if gap, err := timer.Gap(pid); err != nil || gap.Untraced != want {
			t.Errorf("process %d of %d, %d, %d: %+v, %v", pid, quiet, ended, off, gap, err)
		}
	}
	f.records = many(quiet, 3)
	timer.collect()
	if rows, err := timer.Records(quiet, 10, 0); err != nil || len(rows) != 3 {
		t.Errorf("%d records of the process that was quiet, %v", len(rows), err)
	}
}

// TestRecordsBounded keeps the newest records of many processes, however many they are.
func TestRecordsBounded(t *testing.T) {
	const most = 64
	for _, test := range []struct{ processes, of, left, each int }{
		{1, 64, 1, 64},
		{1, 65, 1, 16}, // a half, for two processes with the one without records
		{7, 10, 7, 4},
		{31, 3, 31, 1},
		{33, 2, 16, 1}, // more than half as many processes as records: the newest stay
		{1000, 1, 16, 1},
	} {
		live, _ := sleeper(t)
		timer, _ := fakeTimer(live)
		if err := timer.Trace(live, true); err != nil {
			t.Fatal(err)
		}
		for pid := -test.processes; pid < 0; pid++ {
			timer.traces[pid] = &traced{first: 1, records: many(pid, test.of)}
		}
		timer.bound(most)
		if timer.traces[live] == nil {
			t.Errorf("%+v: the traced process has no entry", test)
		}
		delete(timer.traces, live)
		if n := len(timer.traces); n != test.left {
			t.Errorf("%+v: %d processes are left", test, n)
		}
		for pid, trace := range timer.traces {
			last := trace.records[len(trace.records)-1]
			if len(trace.records) != test.each || last.At.Nanosecond() != test.of-1 || -pid > len(timer.traces) {
				t.Errorf("%+v: process %d has %d records until %v", test, pid, len(trace.records), last.At)
			}
		}
	}
}

// TestFullTraceIsCutSeldom: most looks at a full trace do not move its records. The newest records always stay.
func TestFullTraceIsCutSeldom(t *testing.T) {
	pid, _ := sleeper(t)
	timer, f := fakeTimer(pid)
	if err := timer.Trace(pid, true); err != nil {
		t.Fatal(err)
	}
	f.records = many(pid, maxRecords)
	timer.collect()
	trace, cuts := timer.traces[pid], 0
	for range 1000 {
		first := trace.first
		f.records = many(pid, 100)
		timer.collect()
		if trace.first != first {
			cuts++
		}
		if n := len(trace.records); n < maxRecords || n > maxRecords*9/8 {
			t.Fatalf("%d records", n)
		}
	}
	if next := trace.first + uint64(len(trace.records)); cuts < 1 || cuts > 10 || next != 1+maxRecords+100_000 {
		t.Errorf("%d cuts, next number %d", cuts, next)
	}
}

// TestActiveTraceKeepsRecord bounds the records where there are more traced processes than records to keep.
func TestActiveTraceKeepsRecord(t *testing.T) {
	first, _ := sleeper(t)
	second, _ := sleeper(t)
	timer, f := fakeTimer(first, second)
	for pid := range f.waiting {
		if err := timer.Trace(pid, true); err != nil {
			t.Fatal(err)
		}
		timer.traces[pid].records = many(pid, 3)
	}
	timer.bound(2)
	for pid := range f.waiting {
		if trace := timer.traces[pid]; trace == nil || len(trace.records) != 1 {
			t.Errorf("process %d of %d and %d: %+v", pid, first, second, trace)
		}
	}
}
