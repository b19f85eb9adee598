package verb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/metrics"
	"pg_stat_backtrace/worker/serve/queue"
	"pg_stat_backtrace/worker/serve/spool"
)

// CarryOut captures the process of a queued request, and returns the result for its row. limiter is the limiter of the
// queue.
func (s *Service) CarryOut(ctx context.Context, req queue.Request, limiter *limits.Limiter) queue.Result {
	s.cfg.Metrics.Requested(metrics.Queued)
	var text string
	got, err := s.captureQueued(ctx, req, func(t *backtrace.Trace) {
		if req.Verb != "log" {
			t = t.WithoutStatements() // even if the caller may see them: roles with pg_read_all_stats can read the table
		}
		text = render.Text(t, render.Options{ASCII: req.ASCII, MaxBytes: limits.MaxQueuedText})
	})
	chargeFrames(limiter, authz.Caller{OID: req.Caller, Superuser: req.Superuser}, got.depth)
	if err != nil {
		answer := failure(req.PID, err)
		s.cfg.Metrics.Failed(answer.SQLState)
		return result(captured{}, answer, req.ASCII)
	}
	return result(got, spool.Answer{Text: text}, req.ASCII)
}

// captureQueued makes the same checks as capture at the time of the capture: since the request was made, the caller may
// have lost a privilege, and another process may have got the process id. It does not check the rate, because the queue
// limits the rate itself.
func (s *Service) captureQueued(
	ctx context.Context, req queue.Request, printed func(*backtrace.Trace),
) (none captured, err error) {
	if !req.Granted {
		return none, &render.Fault{
			SQLState: render.InsufficientPrivilege, Message: "permission denied for function pg_request_backtrace",
		}
	}
	if !verbs[req.Verb].Queued {
		return none, errUnknownVerb(req.Verb)
	}
	options, err := settings(req.Settings)
	if err != nil {
		return none, err
	}
	c, err := s.cfg.Server()
	if err != nil {
		return none, err
	}
	target, err := identify(c, req)
	defer func() { target.Held.Release() }() // a target may have a handle even if identify returns an error
	if err != nil {
		return none, err
	}
	if err := s.allow(ctx, req); err != nil {
		return none, err
	}
	return s.take(ctx, authz.Caller{OID: req.Caller, Superuser: req.Superuser}, target, options, printed)
}

// identify returns the process of a request. The error is process.ErrExited if the process has ended, process.ErrRecycled if
// another process has its id, and errNoProcess if it is no process of the server. The postmaster and processes with other
// rights are refused with errors of their own.
func identify(c cluster.Cluster, req queue.Request) (process.Target, error) {
	target, err := c.Contains(req.PID)
	switch {
	case errors.Is(err, cluster.ErrPostmaster):
		return target, postmaster(req.PID)
	case errors.Is(err, process.ErrNotPermitted), process.LacksResources(err):
		return target, err
	}
	if req.Started == 0 {
		return target, errNoProcess // no such process existed at the time of the request
	}
	stat, statErr := process.ReadStat(c.Local(req.PID))
	switch {
	case errors.Is(statErr, process.ErrGone), statErr == nil && process.HasEnded(&stat):
		return target, process.ErrExited
	case statErr == nil && !started(c, req.Started, stat.StartTime),
		err == nil && !started(c, req.Started, target.StartTime):
		return target, process.ErrRecycled
	case err != nil:
		return target, fmt.Errorf("%w: %w", errNoProcess, err)
	}
	return target, nil
}

// started reports whether two start times are of the same process: the time that the server has read, and the time that
// this program has read. If the server is in another time namespace, they differ by the offset of the namespace, with
// an error of up to one tick.
func started(c cluster.Cluster, server, here uint64) bool {
	offset := int64(c.ServerStart() - c.PostmasterStart)
	difference := int64(server-here) - offset
	return difference == 0 || offset != 0 && (difference == 1 || difference == -1)
}

// allow checks the permission of the caller. A queued request has time, so allow retries for at most the duration
// patience while the worker cannot query the server.
func (s *Service) allow(ctx context.Context, req queue.Request) error {
	permit := authz.Policy{Looker: s.cfg.Looker}
	caller := authz.Caller{OID: req.Caller, Superuser: req.Superuser}
	for began := time.Now(); ; {
		err := permit.Allow(ctx, caller, req.PID)
		if !errors.Is(err, cluster.ErrNoServer) || time.Since(began) > patience {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(askAgain):
		}
	}
}

// askAgain is the pause between two attempts to query the server.
const askAgain = 100 * time.Millisecond

// patience is how long a queued request waits for a server that the worker cannot query.
const patience = 10 * time.Second

// result returns the columns of a queued result for an answer.
func result(got captured, a spool.Answer, ascii bool) queue.Result {
	return got.figures(queue.Result{
		Text: queue.Printable(a.Text, ascii), SQLState: a.SQLState, Message: queue.Printable(a.Message, ascii),
		Detail: queue.Printable(a.Detail, ascii), Hint: queue.Printable(a.Hint, ascii),
	})
}

// journalRow returns the row of the journal for a waiting call. A call for many processes has one row, with the longest
// pause.
func journalRow(req spool.Request, began time.Time, got captured, a spool.Answer) queue.Row {
	a.Text = ""
	row := queue.Row{
		Verb: req.Verb, Caller: req.Caller, CallerName: req.CallerName, Backend: req.Backend,
		Requested: began, Finished: time.Now(), Result: result(got, a, false),
	}
	if len(req.Targets) == 1 {
		row.PID = req.Targets[0]
	} else {
		row.Result.Depth = 0
	}
	return row
}
