package waitevent

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/waits"
	"pg_stat_backtrace/worker/pgcluster"
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
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
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
	timer := NewTimer(Config{Method: waits.Blocked, Log: zerolog.Nop(), Current: func() (pgcluster.Cluster, error) {
		return pgcluster.ByDataDir(server.DataDir)
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
