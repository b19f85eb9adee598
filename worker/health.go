package worker

import (
	"fmt"
	"sync"
	"time"

	"pg_stat_backtrace/worker/serve/metrics"
	"pg_stat_backtrace/worker/serve/web"
)

// absence is the time for which something has been missing. The zero value: it is there.
type absence struct {
	mu    sync.Mutex
	since time.Time
}

// begin notes that it is missing, unless it was missing before.
func (a *absence) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since.IsZero() {
		a.since = time.Now()
	}
}

// end notes that it is there.
func (a *absence) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.since = time.Time{}
}

// lasts returns how long it has been missing; 0: it is there.
func (a *absence) lasts() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since.IsZero() {
		return 0
	}
	return max(time.Since(a.since), 1)
}

// lostSessions returns how long the worker has had no sessions in the server.
func (w *Worker) lostSessions() metrics.Lost {
	return metrics.Lost{Main: w.noSession.lasts(), Queue: w.depths.Lost()}
}

// health returns the state of the worker for the listener. A server that is down is no failure of the worker.
func (w *Worker) health() (h web.Health) {
	if !w.serving.Load() {
		h.Failure = "the spool is not open, so no request from SQL is answered"
	}
	lost := w.lostSessions()
	for _, m := range []struct {
		lost time.Duration
		text string
	}{
		{lost.Main, "no session in the server for %s: ordinary roles cannot be checked, superusers are answered"},
		{lost.Queue, "no session for a queue for %s: requests of pg_request_backtrace() wait"},
	} {
		if m.lost > 0 {
			h.Missing = append(h.Missing, fmt.Sprintf(m.text, m.lost.Round(time.Second)))
		}
	}
	return h
}
