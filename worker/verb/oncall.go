package verb

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/spool"
)

// The verb for on-call staff; see pg_get_backtrace_on_call in sql/. EXECUTE on the function is the only privilege that
// it needs.
var _ = register(Verb{Name: "oncall", Processes: One, gate: (*Service).answering, answer: (*Service).answerOnCall})

// answerOnCall answers with one row: phrase, stack, and whether texts and names are left out.
func (s *Service) answerOnCall(ctx context.Context, c call) (a spool.Answer) {
	req := c.Request
	o := outcome{pid: req.Targets[0]}
	o.captured, o.err = s.captureOnCall(ctx, c, func(t *backtrace.Trace, named bool) {
		text := render.Options{ASCII: req.Encoding != encodingUTF8, MaxBytes: limits.MaxText}
		if len(t.Threads) > 0 {
			o.phrase = render.PlainPhrase(t.Threads[0].Frames, t.Wait, "", 0)
		}
		phrase := o.phrase
		if named {
			phrase = render.Phrase(t).Text
		}
		a.Rows = [][]string{{phrase, stackText(&req, t, text), strconv.FormatBool(!named)}}
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

// captureOnCall is like capture, but follows the rules of authz.Policy.AllowOnCall. The trace that it passes to the
// callback render contains only what the caller may see.
func (s *Service) captureOnCall(ctx context.Context, c call, render func(t *backtrace.Trace, named bool)) (captured, error) {
	who, pid := caller(c.Request), c.Targets[0]
	server, err := s.cfg.Server()
	if err != nil {
		return captured{}, fmt.Errorf("%w: %w", errNoServer, err)
	}
	target, err := member(server, pid)
	if err != nil {
		return captured{}, err
	}
	defer target.Held.Release()
	named, err := s.permit().AllowOnCall(ctx, who, pid)
	if err != nil {
		return captured{}, err
	}
	got, err := s.take(ctx, who, target, c.options, func(t *backtrace.Trace) {
		if !named {
			t = t.WithoutNames()
		}
		render(t, named)
	})
	chargeFrames(s.limiter, who, got.depth)
	return got, err
}
