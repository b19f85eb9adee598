package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/host/gomaxprocs"
	"pg_stat_backtrace/worker/pgcluster"
	"pg_stat_backtrace/worker/render"
	"pg_stat_backtrace/worker/spool"
	"pg_stat_backtrace/worker/sqlerror"
	"pg_stat_backtrace/worker/trace"
)

// sideBySide is how many captures of one request run at a time. They keep a processor busy each: more of them than
// there are processors would only make the pauses longer. Some may have to wait for their target to stop.
func sideBySide() int { return 2 * gomaxprocs.All() }

// maxTogether bounds the text of an answer about many processes, in bytes; each gets its share of it.
const maxTogether = 6 << 20

// answerMany answers about many processes with a row for each: pid, kind of process, engine, pause in microseconds,
// depth, stack, and level, SQLSTATE and message of what went wrong instead (type backtrace.answer in sql/).
func (w *Worker) answerMany(ctx context.Context, req spool.Request, options capture.Options) spool.Answer {
	began := time.Now()
	outcomes, err := w.captureMany(ctx, req, options)
	if err != nil {
		w.event(req).AnErr("error", err).Msg("request failed")
		w.ledger.Add(req.Database, journalRow(req, began, nil, failure(0, err)))
		return failure(0, err)
	}
	a := spool.Answer{Rows: make([][]string, len(outcomes))}
	text := render.Options{
		ASCII: req.Encoding != "UTF8", MaxBytes: min(maxText, maxTogether/max(1, len(outcomes))),
	}
	captured, pause := 0, time.Duration(0)
	var longest *trace.Trace
	for i, o := range outcomes {
		a.Rows[i] = row(o, kind(w.server().Local(o.pid)), req.Verb, text)
		if o.err == nil {
			captured++
			if o.trace.Pause >= pause {
				pause, longest = o.trace.Pause, o.trace
			}
		}
	}
	w.event(req).Int("processes", len(outcomes)).Int("captured", captured).Dur("longest_pause_ms", pause).
		Dur("took_ms", time.Since(began)).Msg("request")
	w.ledger.Add(req.Database, journalRow(req, began, longest, spool.Answer{}))
	return a
}

func row(o outcome, kind, verb string, text render.Options) []string {
	pid := strconv.Itoa(o.pid)
	if o.err != nil {
		f := failure(o.pid, o.err)
		return []string{pid, kind, "", "", "", "", f.Level, f.SQLState, f.Message}
	}
	stack := render.Text(o.trace, text)
	if verb == "summary" {
		stack = render.Names(o.trace, text)
	}
	return []string{
		pid, kind, o.trace.Engine, strconv.FormatFloat(float64(o.trace.Pause.Nanoseconds())/1e3, 'f', 1, 64),
		strconv.Itoa(o.trace.Depth()), stack, "", "", "",
	}
}

// kind names the kinds of process that the server's own statistics do not know (the collector exists in 14 only), by
// the name that they give themselves.
func kind(pid int) string {
	title := strings.TrimRight(pgcluster.Title(pid), " ")
	for _, name := range []string{"logger", "stats collector"} {
		if strings.HasSuffix(title, ": "+name) {
			return name
		}
	}
	return ""
}

// captureMany captures the processes that the request asks for, side by side. An error is one of the whole request.
func (w *Worker) captureMany(ctx context.Context, req spool.Request, options capture.Options) ([]outcome, error) {
	c, err := w.current()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoServer, err)
	}
	pids := slices.Clone(req.Targets)
	if len(pids) == 0 {
		if pids, err = c.Children(); err != nil {
			return nil, err
		}
	}
	slices.Sort(pids)
	outcomes := make([]outcome, 0, len(pids))
	for _, pid := range slices.Compact(pids) {
		outcomes = append(outcomes, outcome{pid: pid})
	}
	// First who each of them is, then whether the caller may, then the capture, which is held to that identity.
	targets := make([]ptrace.Target, len(outcomes))
	each(outcomes, func(i int, o *outcome) { targets[i], o.err = target(c, o.pid, req.Backend) })
	defer func() {
		for i := range targets {
			targets[i].Held.Release()
		}
	}()
	refused := w.permit().AllowAll(ctx, caller(req), identified(outcomes))
	// Processes that cannot be stopped must not use up the time that there is for all.
	if options.Deadline == 0 {
		options.Deadline = time.Until(req.Deadline)
	}
	options.Deadline /= 3
	each(outcomes, func(i int, o *outcome) {
		if o.err = refusal(refused[o.pid], targets[i]); o.err == nil {
			o.trace, o.err = w.capturer.Capture(ctx, targets[i], options)
			o.trace = w.visible(o.trace, req.Superuser)
		}
	})
	if len(req.Targets) == 0 {
		// Processes that have ended meanwhile, and what the postmaster has started that is no server process, such as a
		// shell for archive_command.
		outcomes = slices.DeleteFunc(outcomes, func(o outcome) bool {
			return errors.Is(o.err, errNoProcess) || errors.Is(o.err, ptrace.ErrExited)
		})
	}
	return outcomes, nil
}

// each calls f for those that nothing has gone wrong with yet, side by side.
func each(outcomes []outcome, f func(int, *outcome)) {
	var group errgroup.Group
	group.SetLimit(sideBySide())
	for i := range outcomes {
		if outcomes[i].err == nil {
			group.Go(func() error {
				f(i, &outcomes[i])
				return nil
			})
		}
	}
	_ = group.Wait() // each outcome has its own error
}

func identified(outcomes []outcome) []int {
	pids := make([]int, 0, len(outcomes))
	for _, o := range outcomes {
		if o.err == nil {
			pids = append(pids, o.pid)
		}
	}
	return pids
}

// target identifies one of the processes; the caller's own backend is none that can be captured.
func target(c pgcluster.Cluster, pid, backend int) (ptrace.Target, error) {
	if pid == backend {
		return ptrace.Target{}, &sqlerror.Fault{
			SQLState: sqlerror.NotInPrerequisiteState, Message: "cannot capture the backtrace of the current backend",
		}
	}
	return member(c, pid)
}
