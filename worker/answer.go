package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cluster"
	"pg_stat_backtrace/worker/fault"
	"pg_stat_backtrace/worker/policy"
	"pg_stat_backtrace/worker/render"
	"pg_stat_backtrace/worker/spool"
	"pg_stat_backtrace/worker/trace"
)

// maxText bounds an answer: the deepest stack that a caller may ask for, with
// the longest names, should not become a problem of the server's memory.
const maxText = 1 << 20

// maxFrames is the largest value of pg_stat_backtrace.max_frames.
const maxFrames = 65536

// answer carries out one request. It is called concurrently.
func (w *Worker) answer(ctx context.Context, req spool.Request) spool.Answer {
	began := time.Now()
	t, err := w.capture(ctx, req)
	var a spool.Answer
	if err != nil {
		a = failure(req.Target, err)
	} else {
		a.Text = render.Text(t, render.Options{ASCII: req.Encoding != "UTF8", MaxBytes: maxText})
	}
	w.journal(req, t, a.SQLState, err, time.Since(began))
	return a
}

// journal logs a request: who asked for which process, what came of it, and
// how long the process stood still.
func (w *Worker) journal(req spool.Request, t *trace.Trace, state string, err error, took time.Duration) {
	event := w.log.Info().Str("verb", req.Verb).Int("pid", req.Target).Str("role", req.CallerName).
		Str("database", req.Database).Int("backend", req.Backend).Dur("took_ms", took)
	if err != nil {
		event.Str("sqlstate", state).AnErr("error", err).Msg("request failed")
		return
	}
	event.Str("engine", t.Engine).Dur("pause_ms", t.Pause).Int("frames", len(t.Threads[0].Frames)).Msg("request")
}

// errNoProcess is answered with a warning and NULL, so that a query over many
// processes goes on when one of them has ended.
var errNoProcess = errors.New("not a PostgreSQL server process")

// capture checks the request and has the process captured. The identity that
// the process has now is the one that the stopped process must have.
func (w *Worker) capture(ctx context.Context, req spool.Request) (*trace.Trace, error) {
	if req.Verb != "get" && req.Verb != "log" {
		return nil, &fault.Fault{
			SQLState: fault.NotInPrerequisiteState,
			Message:  fmt.Sprintf("the pg_stat_backtrace worker cannot %q", req.Verb),
			Hint:     "Install worker and extension of the same release.",
		}
	}
	options, err := settings(req.Settings)
	if err != nil {
		return nil, err
	}
	c, err := w.current()
	if err != nil {
		return nil, err
	}
	target, err := c.Contains(req.Target)
	switch {
	case errors.Is(err, cluster.ErrPostmaster):
		return nil, postmaster(req.Target)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errNoProcess, err)
	}
	permit := policy.Policy{Looker: policy.Lookup{Server: w}, Limiter: w.limiter}
	if err := permit.Allow(ctx, policy.Caller{OID: req.Caller, Superuser: req.Superuser}, req.Target); err != nil {
		return nil, err
	}
	return w.capturer.Capture(ctx, target, options)
}

// settings reads the session's settings that the request carries.
func settings(s map[string]string) (capture.Options, error) {
	var o capture.Options
	for name, value := range s {
		var err error
		switch name {
		case "max_frames":
			o.MaxFrames, err = number(name, value, maxFrames, "")
		case "timeout":
			var ms int
			ms, err = number(name, value, 99999, " milliseconds")
			o.Deadline = time.Duration(ms) * time.Millisecond
		}
		if err != nil {
			return o, err
		}
	}
	return o, nil
}

func number(name, value string, limit int, unit string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > limit {
		return 0, &fault.Fault{
			SQLState: fault.InvalidParameterValue,
			Message:  fmt.Sprintf("invalid value for parameter \"pg_stat_backtrace.%s\": %q", name, value),
			Hint:     fmt.Sprintf("It is a number from 1 to %d%s.", limit, unit),
		}
	}
	return n, nil
}

func postmaster(pid int) error {
	return &fault.Fault{
		SQLState: fault.InsufficientPrivilege,
		Message:  fmt.Sprintf("cannot capture the backtrace of the postmaster, process %d", pid),
		Detail:   "No connection is accepted, and no process started or restarted, while the postmaster stands still.",
		Hint:     "On the server's host, \"pg_stat_backtrace capture\" captures any process.",
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
	var denied *policy.Denied
	if errors.As(err, &denied) {
		return spool.Answer{
			Level: "ERROR", SQLState: denied.SQLState,
			Message: denied.Message, Detail: denied.Detail, Hint: denied.Hint,
		}
	}
	f := fault.Of(pid, err)
	return spool.Answer{Level: "ERROR", SQLState: f.SQLState, Message: f.Message, Detail: f.Detail, Hint: f.Hint}
}
