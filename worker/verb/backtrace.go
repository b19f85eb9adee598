package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/spool"
)

// encodingUTF8 is the database encoding for which answers may have characters beyond ASCII.
const encodingUTF8 = "UTF8"

// The verbs for the stack of one process: as a text (get), as a text for the server log (log), and as rows (frames).
var (
	_ = register(Verb{Name: "get", Processes: One, Queued: true, gate: (*Service).answering, answer: (*Service).answerOne})
	_ = register(Verb{Name: "log", Processes: One, Queued: true, gate: (*Service).answering, answer: (*Service).answerOne})
	_ = register(Verb{Name: verbFrames, Processes: One, gate: (*Service).answering, answer: (*Service).answerOne})
)

const verbFrames = "frames"

// An outcome is the result of the capture of one process: a stack as text, or an error.
type outcome struct {
	captured

	pid   int
	stack string
	// phrase says what the process did, without names of objects.
	phrase string
	err    error
	// sqlState is the SQLSTATE of the answer, if failure does not know the error.
	sqlState string
}

// answerOne answers with the stack of one process.
func (s *Service) answerOne(ctx context.Context, c call) (a spool.Answer) {
	req := c.Request
	text := render.Options{ASCII: req.Encoding != encodingUTF8, MaxBytes: limits.MaxText}
	o := outcome{pid: req.Targets[0]}
	o.captured, o.err = s.capture(ctx, caller(req), o.pid, c.options, func(t *backtrace.Trace) {
		if len(t.Threads) > 0 {
			o.phrase = render.PlainPhrase(t.Threads[0].Frames, t.Wait, "", 0)
		}
		if req.Verb == verbFrames {
			a.Rows = render.Rows(t, text)
		} else {
			a.Text = stackText(&req, t, text)
		}
	})
	switch {
	case waited(ctx, o.err):
		a = spool.Busy()
	case o.err != nil:
		a = failure(o.pid, o.err)
	}
	s.journal(req, o, time.Since(c.began))
	s.cfg.Journal.Add(req.Database, journalRow(req, c.began, o.captured, a))
	return a
}

// journal writes a log line about a request for one process: the caller, and either the pause and the number of frames, or
// the error.
func (s *Service) journal(req spool.Request, o outcome, took time.Duration) {
	s.log1(req, func(event *zerolog.Event) {
		event.Int("pid", o.pid).Dur("took_ms", took)
		if o.err != nil {
			event.Str("sqlstate", cmp.Or(o.sqlState, failure(o.pid, o.err).SQLState)).AnErr("error", o.err).Msg("request failed")
			return
		}
		event.Str("engine", o.engine).Dur("pause_ms", o.pause).Int("frames", o.depth)
		if o.phrase != "" {
			event.Str("phrase", o.phrase)
		}
		event.Msg("request")
	})
}

// capture checks the caller's permission, captures the process, and passes the trace to the callback render. It identifies
// the process first. The capture fails if the stopped process is not the identified process.
func (s *Service) capture(
	ctx context.Context, who authz.Caller, pid int, options capture.Options, render func(*backtrace.Trace),
) (captured, error) {
	c, err := s.cfg.Server()
	if err != nil {
		return captured{}, fmt.Errorf("%w: %w", errNoServer, err)
	}
	target, err := member(c, pid)
	if err != nil {
		return captured{}, err
	}
	defer target.Held.Release()
	if err := s.permit().Allow(ctx, who, pid); err != nil {
		return captured{}, refusal(err, target, endsIn)
	}
	got, err := s.take(ctx, who, target, options, render)
	chargeFrames(s.limiter, who, got.depth)
	return got, err
}

// endsIn is the longest time that a backend takes to end after it has left pg_stat_activity.
const endsIn = 200 * time.Millisecond

// refusal returns the error for the caller if a process is not captured. err is the refusal of package authz, or nil. A
// process that is ending is no longer listed with its role. So if err is about an unlisted process, refusal waits for
// the end of the process, at most for the time wait, and returns process.ErrExited if it has ended.
func refusal(err error, target process.Target, wait time.Duration) error {
	var denied *authz.Denied
	if errors.As(err, &denied) && denied.Unlisted && target.Held.EndsWithin(wait) {
		return fmt.Errorf("process %d: %w", target.PID, process.ErrExited)
	}
	return err
}

func (s *Service) permit() *authz.Policy {
	return &authz.Policy{Looker: s.cfg.Looker, Limiter: s.limiter}
}

// member identifies a process of the cluster. It refuses the postmaster, which must not be stopped.
func member(c cluster.Cluster, pid int) (process.Target, error) {
	target, err := c.Contains(pid)
	switch {
	case errors.Is(err, cluster.ErrPostmaster):
		return target, postmaster(pid)
	case errors.Is(err, process.ErrNotPermitted):
		return target, err
	case errors.Is(err, cluster.ErrNotMember):
		return target, fmt.Errorf("%w: %w", errNoProcess, err)
	case err != nil:
		return target, err
	}
	return target, nil
}
