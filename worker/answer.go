package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/host/shield"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/sqlerror"
	"pg_stat_backtrace/worker/serve/spool"
)

// encodingUTF8 is the encoding whose answers have characters beyond ASCII.
const encodingUTF8 = "UTF8"

// verbs are what the worker can be asked; see verb_function in sql/src/names.sql.
func verbs() []string {
	return append([]string{"get", "log", "frames", "stat", "logs", "blocking", "summary", verbMemory, verbBarrier,
		verbTraceStart, verbTracePoll},
		waitVerbs()...)
}

// answer carries out one request. It is called concurrently.
func (w *Worker) answer(ctx context.Context, req spool.Request) spool.Answer {
	req.Targets = distinct(req.Targets)
	if err := w.charge(req); err != nil {
		return w.refuse(req, err)
	}
	options, err := settings(req.Settings)
	switch {
	case err != nil:
		return w.fail(req, time.Now(), err)
	case slices.Contains([]string{"get", "log", "frames"}, req.Verb):
		if len(req.Targets) != 1 {
			return w.fail(req, time.Now(), errOneProcess)
		}
		return w.answerOne(ctx, req, options)
	case slices.Contains(waitVerbs(), req.Verb):
		return w.answerWaits(ctx, req)
	case req.Verb == verbMemory:
		if len(req.Targets) != 1 {
			return w.fail(req, time.Now(), errOneProcess)
		}
		return w.answerMemory(ctx, req)
	case req.Verb == verbTraceStart, req.Verb == verbTracePoll:
		return w.answerFunctionTrace(req) //nolint:contextcheck // the trace outlives the request that starts it
	case req.Verb == verbBarrier:
		return w.answerBarrier(ctx, req)
	case slices.Contains(verbs(), req.Verb):
		return w.answerMany(ctx, req, options)
	}
	return w.fail(req, time.Now(), &sqlerror.Fault{
		SQLState: sqlerror.NotInPrerequisiteState,
		Message:  fmt.Sprintf("the pg_stat_backtrace worker cannot %q", req.Verb),
		Hint:     "Install worker and extension of the same release.",
	})
}

// errOneProcess: the functions for one process name one. A list, and none, which would mean all, are for other
// functions and take another privilege.
var errOneProcess = &sqlerror.Fault{
	SQLState: sqlerror.InvalidParameterValue, Message: "this request must name one process",
}

// fail answers a request about which nothing can be done, with its line in the log and its row in the journal.
func (w *Worker) fail(req spool.Request, began time.Time, err error) spool.Answer {
	a := failure(0, err)
	w.log1(req, func(e *zerolog.Event) {
		e.Str("sqlstate", a.SQLState).AnErr("error", err).Msg("request failed")
	})
	w.ledger.Add(req.Database, journalRow(req, began, captured{}, a))
	return a
}

// An outcome is what came of the capture of one process.
type outcome struct {
	captured

	pid   int
	stack string
	err   error
}

func (w *Worker) answerOne(ctx context.Context, req spool.Request, options capture.Options) (a spool.Answer) {
	began := time.Now()
	done, err := w.bounds.answering(ctx, caller(req), options, 1)
	if err != nil {
		return w.fail(req, began, err)
	}
	defer done()
	text := render.Options{ASCII: req.Encoding != encodingUTF8, MaxBytes: limits.MaxText}
	o := outcome{pid: req.Targets[0]}
	o.captured, o.err = w.capture(ctx, caller(req), o.pid, options, func(t *backtrace.Trace) {
		if req.Verb == "frames" {
			a.Rows = render.Rows(t, text)
		} else {
			a.Text = render.Text(t, text)
		}
	})
	switch {
	case waited(ctx, o.err):
		a = spool.Busy()
	case o.err != nil:
		a = failure(o.pid, o.err)
	}
	w.journal(req, o, time.Since(began))
	w.ledger.Add(req.Database, journalRow(req, began, o.captured, a))
	return a
}

func caller(req spool.Request) authz.Caller {
	return authz.Caller{OID: req.Caller, Superuser: req.Superuser}
}

// journal logs a request for one process: who asked for it, what came of it, and how long it stood still.
func (w *Worker) journal(req spool.Request, o outcome, took time.Duration) {
	w.log1(req, func(event *zerolog.Event) {
		event.Int("pid", o.pid).Dur("took_ms", took)
		if o.err != nil {
			event.Str("sqlstate", failure(o.pid, o.err).SQLState).AnErr("error", o.err).Msg("request failed")
			return
		}
		event.Str("engine", o.engine).Dur("pause_ms", o.pause).Int("frames", o.depth).Msg("request")
	})
}

// log1 writes a line about a request, unless the log has too many about its role. Those are counted, and the next line
// has their number.
func (w *Worker) log1(req spool.Request, send func(*zerolog.Event)) {
	if req.Superuser {
		send(w.event(req))
		return
	}
	leftOut, ok := w.bounds.lines.Take(req.Caller)
	if !ok {
		return
	}
	event := w.event(req)
	if leftOut > 0 {
		event.Int("left_out", leftOut)
	}
	send(event)
}

func (w *Worker) event(req spool.Request) *zerolog.Event {
	//nolint:zerologlint // the caller sends it
	return w.log.Info().Str("verb", req.Verb).Str("role", req.CallerName).Str("database", req.Database).
		Int("backend", req.Backend)
}

// errNoProcess is answered with a warning and NULL, so that a query over many
// processes goes on when one of them has ended.
var errNoProcess = errors.New("not a PostgreSQL server process")

// errNoServer: the postmaster has ended, and the caller's backend has not yet.
var errNoServer = &sqlerror.Fault{
	SQLState: sqlerror.NotInPrerequisiteState, Message: "the server is shutting down or starting",
}

// capture checks the request and has the process captured. The identity that
// the process has now is the one that the stopped process must have.
func (w *Worker) capture(
	ctx context.Context, who authz.Caller, pid int, options capture.Options, render func(*backtrace.Trace),
) (captured, error) {
	c, err := w.current()
	if err != nil {
		return captured{}, fmt.Errorf("%w: %w", errNoServer, err)
	}
	target, err := member(c, pid)
	if err != nil {
		return captured{}, err
	}
	defer target.Held.Release()
	if err := w.permit().Allow(ctx, who, pid); err != nil {
		return captured{}, refusal(err, target, endsIn)
	}
	got, err := w.take(ctx, who, target, options, render)
	chargeFrames(w.limiter, who, got.depth)
	return got, err
}

// endsIn is how long a backend takes to end at most when it is no longer listed in pg_stat_activity.
const endsIn = 200 * time.Millisecond

// refusal returns the error for the caller if a process is not captured. A process that is ending is no longer listed
// with its role. So refusal waits some time for the end of such a process, and then reports that the process has
// exited.
func refusal(err error, target process.Target, wait time.Duration) error {
	var denied *authz.Denied
	if errors.As(err, &denied) && denied.Unlisted && target.Held.EndsWithin(wait) {
		return fmt.Errorf("process %d: %w", target.PID, process.ErrExited)
	}
	return err
}

func (w *Worker) permit() *authz.Policy {
	return &authz.Policy{Looker: w.looker, Limiter: w.limiter}
}

// member identifies a process of the cluster that may be asked about.
func member(c cluster.Cluster, pid int) (process.Target, error) {
	target, err := c.Contains(pid)
	switch {
	case errors.Is(err, cluster.ErrPostmaster):
		return target, postmaster(pid)
	case errors.Is(err, process.ErrNotPermitted):
		return target, err
	case err != nil:
		return target, fmt.Errorf("%w: %w", errNoProcess, err)
	}
	return target, nil
}

func postmaster(pid int) error {
	return &sqlerror.Fault{
		SQLState: sqlerror.InsufficientPrivilege,
		Message:  fmt.Sprintf("cannot capture the backtrace of the postmaster, process %d", pid),
		Detail:   "No connection is accepted, and no process started or restarted, while the postmaster is stopped.",
		Hint: "On the server's host, \"pg_stat_backtrace capture --nonstop\" captures the postmaster " +
			"without stopping it.",
	}
}

// failure words an error for the SQL caller.
func failure(pid int, err error) spool.Answer {
	if errors.Is(err, errNoProcess) {
		return spool.Answer{
			Level: "WARNING", SQLState: "01000",
			Message: fmt.Sprintf("PID %d is not a PostgreSQL server process", pid),
		}
	}
	var failed *shield.Panic
	if errors.As(err, &failed) {
		return spool.Answer{
			Level: "ERROR", SQLState: sqlerror.InternalError, Message: "internal error of the pg_stat_backtrace worker",
			Hint: "See the log of the worker.",
		}
	}
	var denied *authz.Denied
	if errors.As(err, &denied) {
		return spool.Answer{
			Level: "ERROR", SQLState: denied.SQLState,
			Message: denied.Message, Detail: denied.Detail, Hint: denied.Hint,
		}
	}
	var exceeded *limits.Exceeded
	if errors.As(err, &exceeded) {
		return spool.Answer{
			Level: "ERROR", SQLState: limits.SQLState,
			Message: exceeded.Message, Detail: exceeded.Detail, Hint: exceeded.Hint,
		}
	}
	f := sqlerror.Of(pid, err)
	if f.SQLState == sqlerror.InternalError {
		// What went wrong is in the worker's log. It may name files, which are not for every caller.
		f = &sqlerror.Fault{
			SQLState: sqlerror.InternalError,
			Message:  fmt.Sprintf("could not capture process with PID %d", pid),
			Hint:     "The log of the pg_stat_backtrace worker says more.",
		}
	}
	return spool.Answer{Level: "ERROR", SQLState: f.SQLState, Message: f.Message, Detail: f.Detail, Hint: f.Hint}
}
