package worker

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"pg_stat_backtrace/worker/serve/metrics"
	"pg_stat_backtrace/worker/serve/spool"
	"pg_stat_backtrace/worker/serve/web"
)

// absence measures for how long something, such as a session, has been missing. The zero value means that nothing is
// missing.
type absence struct {
	mu    sync.Mutex
	since time.Time
}

// begin notes the time at which the absence begins, unless it has begun before.
func (a *absence) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since.IsZero() {
		a.since = time.Now()
	}
}

// end notes that the thing is there again.
func (a *absence) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.since = time.Time{}
}

// lasts returns how long the absence has lasted until now; 0: nothing is missing.
func (a *absence) lasts() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since.IsZero() {
		return 0
	}
	return max(time.Since(a.since), 1)
}

// lostSessions returns the times for which the worker has had no sessions in the server.
func (w *Worker) lostSessions() metrics.Lost {
	return metrics.Lost{Main: w.noSession.lasts(), Queue: w.depths.Lost()}
}

// health returns the state of the worker for the listener. A server that is down does not count as a failure of the
// worker.
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
	if _, _, failing := w.recorded.Figures(); failing >= healthyGap {
		l := w.recorded.Loss()
		h.Missing = append(h.Missing, strings.TrimSuffix(fmt.Sprintf("the history has not been recorded for %s: %s: %s",
			failing.Round(time.Second), l.Reason, l.Remedy), ": "))
	}
	return h
}

// healthyGap is the time for which recording may fail before health reports it, because a disk can be slow for a
// moment.
const healthyGap = 10 * time.Second

// recorder describes the recorder for the command doctor.
func (w *Worker) recorder() spool.Recorder {
	l := w.recorded.Loss()
	return spool.Recorder{
		Dir: w.cfg.Record.To(), Lost: l.Sweeps, Since: l.Since, Until: l.Until, Failing: l.Failing, Reason: l.Reason, Remedy: l.Remedy,
	}
}

// history returns the numbers of recorded and lost sweeps, and false if the worker records nothing.
func (w *Worker) history() (h metrics.History, recording bool) {
	h.Written, h.Lost, h.Failing = w.recorded.Figures()
	return h, w.cfg.Record.To() != ""
}
