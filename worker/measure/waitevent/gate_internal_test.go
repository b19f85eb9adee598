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

// slow is a provider whose first snapshot takes until end is closed.
type slow struct {
	tracing

	begun, end chan struct{}
}

func (s slow) Info() waits.Info { return waits.Info{} }

func (s slow) Snapshot() (*waits.Snapshot, error) {
	select {
	case s.begun <- struct{}{}:
		<-s.end
	default:
	}
	return &waits.Snapshot{}, nil
}

// TestSlowRequest checks that a request that takes long does not block others. Requests that only read get an answer,
// and other requests get an error after a bounded time. The same holds for a start of the timing that takes long.
func TestSlowRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		unreachable := func() (cluster.Cluster, error) { <-end; return cluster.Cluster{}, errors.New("no server") }
		timer := NewTimer(Config{Current: unreachable, Level: Stats, Log: zerolog.Nop()})
		s := slow{begun: make(chan struct{}, 1), end: make(chan struct{})}
		timer.provider, timer.server = s, &Server{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); timer.Run(ctx) }()
		first := make(chan error)
		go func() { _, err := timer.Report(); first <- err }()
		<-s.begun
		s.begun <- struct{}{} // the next snapshot takes no time
		began := time.Now()
		for range 10 {
			time.Sleep(time.Second)
			if _, err := timer.Report(); err != nil {
				t.Errorf("beside a slow request: %v", err)
			}
		}
		if took := time.Since(began) - 10*time.Second; took > 10*gateTurn {
			t.Errorf("ten requests took %s", took)
		}
		began = time.Now()
		if err := timer.SetLevel(Off); !errors.Is(err, ErrBusy) || time.Since(began) != gateTimeout {
			t.Errorf("a change beside a slow request: %v after %s", err, time.Since(began))
		}
		close(s.end)
		if err := <-first; err != nil {
			t.Errorf("the slow request: %v", err)
		}
		if err := timer.SetLevel(Off); err != nil {
			t.Error(err)
		}
		starts := make(chan error)
		go func() { starts <- timer.SetLevel(Stats) }()
		synctest.Wait()
		began = time.Now()
		if _, err := timer.Report(); !errors.Is(err, ErrBusy) || time.Since(began) != gateTimeout {
			t.Errorf("during a slow start: %v after %s", err, time.Since(began))
		}
		close(end)
		if err := <-starts; !errors.Is(err, waits.ErrServerGone) {
			t.Errorf("the slow start: %v", err)
		}
		cancel()
		<-ended
	})
}
