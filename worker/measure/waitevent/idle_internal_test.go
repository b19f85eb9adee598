package waitevent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/pg/cluster"
)

// tracing is a provider that can trace, and has nothing to report.
type tracing struct {
	waits.Provider
	waits.Tracer
}

func (tracing) Check() error            { return nil }
func (tracing) Close()                  {}
func (tracing) Records() []waits.Record { return nil }
func (tracing) TraceAll(bool) error     { return nil }

// TestTimerSleeps checks how often the goroutine of a Timer wakes up: never at level off, once a second at level stats,
// also without a server, and more often only while there are traces.
func TestTimerSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := func() (cluster.Cluster, error) { return cluster.Cluster{}, errors.New("no server") }
		timer := NewTimer(Config{Current: gone, Log: zerolog.Nop()})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); timer.Run(ctx) }()
		turns := func(d time.Duration) int64 {
			synctest.Wait()
			before := timer.turns.Load()
			time.Sleep(d)
			synctest.Wait()
			return timer.turns.Load() - before
		}
		const minute = time.Minute
		if n := turns(minute); n != 0 {
			t.Errorf("level off: %d times a minute", n)
		}
		if err := timer.SetLevel(Stats); !errors.Is(err, waits.ErrServerGone) {
			t.Errorf("got %v", err)
		}
		if n := turns(minute); n < 59 || n > 61 {
			t.Errorf("level stats without a server: %d times a minute", n)
		}
		done, err := timer.gate.change()
		if err != nil {
			t.Fatal(err)
		}
		timer.provider, timer.failure = tracing{}, nil
		done()
		if n := turns(minute); n < 59 || n > 61 {
			t.Errorf("level stats: %d times a minute", n)
		}
		if err := timer.SetLevel(Trace); err != nil {
			t.Error(err)
		}
		if n, want := turns(time.Second), int64(time.Second/traceInterval); n < want-1 || n > want+1 {
			t.Errorf("level trace: %d times a second, want %d: the records wait too long", n, want)
		}
		if err := timer.SetLevel(Off); err != nil {
			t.Error(err)
		}
		if n := turns(minute); n != 0 {
			t.Errorf("level off again: %d times a minute", n)
		}
		cancel()
		<-ended
	})
}

// lateTracer knows the process only at the second attempt, as a provider does before a process has waited.
type lateTracer struct {
	tracing

	attempts int
	records  []waits.Record
}

func (l *lateTracer) SetTraced(int, bool) bool { l.attempts++; return l.attempts > 1 }
func (l *lateTracer) Records() []waits.Record  { return l.records }

// TestStatementBeforeProcessKnown: waits of a statement that starts before the provider traces its process may be missing, so its
// start counts as not seen.
func TestStatementBeforeProcessKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer := &lateTracer{}
		r, err := (&Server{}).NewRecording(tracer, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, unbegun := range []int{1, 1} { // only the first statement starts before the trace
			time.Sleep(time.Millisecond)
			tracer.records = nil
			r.Look()
			time.Sleep(time.Millisecond)
			tracer.records = []waits.Record{
				{Kind: waits.QueryStart, Query: 5, At: time.Now()}, {Kind: waits.QueryEnd, Query: 5, Took: time.Millisecond},
			}
			time.Sleep(time.Millisecond)
			r.Look()
			if got := r.report.query(5).unbegun; got != unbegun {
				t.Errorf("%d starts not seen, expected %d", got, unbegun)
			}
		}
	})
}
