package verb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/spool"
)

// sideBySide is how many captures of one request run at a time. They keep a processor busy each: more of them than
// there are processors would only make the pauses longer. Some may have to wait for their target to stop.
func sideBySide() int { return 2 * host.AllProcessors() }

// The verbs for the stacks of many processes: the view, the server log, the processes that block a process, and a
// summary. The gate depends on the number of processes, so answerMany passes it.
var (
	_ = register(Verb{Name: verbStat, answer: (*Service).answerMany})
	_ = register(Verb{Name: "logs", answer: (*Service).answerMany})
	_ = register(Verb{Name: "blocking", answer: (*Service).answerMany})
	_ = register(Verb{Name: verbSummary, answer: (*Service).answerMany})
)

const (
	verbStat    = "stat"
	verbSummary = "summary"
)

// answerMany answers about many processes with a row for each: pid, kind of process, engine, pause in microseconds,
// depth, stack, and level, SQLSTATE and message of what went wrong instead (type backtrace.answer in sql/).
func (s *Service) answerMany(ctx context.Context, r call) spool.Answer {
	text := func(processes int) func(*backtrace.Trace) string { return manyText(r.Request, processes) }
	return s.many(ctx, r, text, func(c cluster.Cluster, outcomes []outcome) [][]string {
		rows := make([][]string, len(outcomes))
		for i, o := range outcomes {
			rows[i] = row(o, kind(c.Local(o.pid)))
		}
		return rows
	})
}

// many captures the processes that a request is about, and answers with rows about them. text returns what each stack of
// so many processes is turned into.
func (s *Service) many(
	ctx context.Context, r call, text func(processes int) func(*backtrace.Trace) string,
	rows func(cluster.Cluster, []outcome) [][]string,
) spool.Answer {
	req, options, began := r.Request, r.options, r.began
	c, err := s.cfg.Server()
	if err != nil {
		return s.fail(req, began, fmt.Errorf("%w: %w", errNoServer, err))
	}
	pids, err := s.asked(c, req)
	if err != nil {
		return s.fail(req, began, err)
	}
	done, err := s.bounds.answering(ctx, caller(req), options, len(pids))
	if err != nil {
		return s.fail(req, began, err)
	}
	defer done()
	outcomes := s.captureMany(ctx, c, req, pids, options, text(len(pids)))
	a := spool.Answer{Rows: rows(c, outcomes)}
	var most captured
	n := 0
	for _, o := range outcomes {
		if o.err == nil {
			if n++; o.pause >= most.pause {
				most = o.captured
			}
			continue
		}
		s.cfg.Metrics.Failed(failure(o.pid, o.err).SQLState)
		s.logPanic(req, o.err)
	}
	s.log1(req, func(e *zerolog.Event) {
		e.Int("processes", len(outcomes)).Int("captured", n).Dur("longest_pause_ms", most.pause).
			Dur("took_ms", time.Since(began)).Msg("request")
	})
	s.cfg.Journal.Add(req.Database, journalRow(req, began, most, spool.Answer{}))
	return a
}

// logPanic logs the error of a process in a request for many if it is a panic.
func (s *Service) logPanic(req spool.Request, err error) {
	var failed *host.Panic
	if errors.As(err, &failed) {
		s.log1(req, func(e *zerolog.Event) {
			e.Str("sqlstate", render.InternalError).AnErr("error", err).Msg("request failed")
		})
	}
}

func row(o outcome, kind string) []string {
	pid := strconv.Itoa(o.pid)
	if o.err != nil {
		f := failure(o.pid, o.err)
		return []string{pid, kind, "", "", "", "", f.Level, f.SQLState, f.Message}
	}
	return []string{
		pid, kind, o.engine, strconv.FormatFloat(float64(o.pause.Nanoseconds())/1e3, 'f', 1, 64),
		strconv.Itoa(o.depth), o.stack, "", "", "",
	}
}

// kind names the kinds of process that the server's own statistics do not know (the collector exists in 14 only), by
// the name that they give themselves.
func kind(pid int) string {
	title := strings.TrimRight(cluster.Title(pid), " ")
	for _, name := range []string{"logger", "stats collector"} {
		if strings.HasSuffix(title, ": "+name) {
			return name
		}
	}
	return ""
}

// asked returns the processes that the request is about. A request for the view or for a summary that names no process
// is about all. The extension makes no request for a summary of an empty array. Other requests that name no process are
// about none.
func (s *Service) asked(c cluster.Cluster, req spool.Request) ([]int, error) {
	if len(req.Targets) > 0 || !aboutAll(req) {
		return req.Targets, nil
	}
	pids, err := c.Children()
	if err != nil {
		return nil, err
	}
	if !req.Superuser {
		s.limiter.Charge(req.Caller, limits.LookCost*float64(len(pids)))
	}
	return distinct(pids), nil
}

func aboutAll(req spool.Request) bool {
	return len(req.Targets) == 0 && (req.Verb == verbStat || req.Verb == verbSummary || req.Verb == verbSummaryText)
}

// captureMany captures processes side by side, and renders each stack at once.
func (s *Service) captureMany(
	ctx context.Context, c cluster.Cluster, req spool.Request, pids []int, options capture.Options,
	text func(*backtrace.Trace) string,
) []outcome {
	who := caller(req)
	outcomes := make([]outcome, len(pids))
	for i, pid := range pids {
		outcomes[i].pid = pid
	}
	// First who each of them is, then whether the caller may, then the capture, which is held to that identity.
	targets := make([]process.Target, len(outcomes))
	each(outcomes, func(i int, o *outcome) { targets[i], o.err = target(c, o.pid, req.Backend) })
	defer func() {
		for i := range targets {
			targets[i].Held.Release()
		}
	}()
	refused := s.permit().AllowAll(ctx, who, identified(outcomes), max(1, len(req.Targets)))
	// Processes that cannot be stopped must not use up the time that there is for all.
	if options.Deadline == 0 {
		options.Deadline = time.Until(req.Deadline)
	}
	options.Deadline /= 3
	wait := endsIn
	if aboutAll(req) {
		wait = 0 // the logger, which always lives and is never listed, is among them
	}
	each(outcomes, func(i int, o *outcome) {
		if o.err = refusal(refused[o.pid], targets[i], wait); o.err == nil {
			s.captureNext(ctx, who, targets[i], options, o, text)
		}
	})
	if aboutAll(req) {
		for i := range outcomes { // some have ended during the captures
			outcomes[i].err = refusal(outcomes[i].err, targets[i], 0)
		}
		// Processes that have ended meanwhile, and what the postmaster has started that is no server process, such as a
		// shell for archive_command.
		outcomes = slices.DeleteFunc(outcomes, func(o outcome) bool {
			return errors.Is(o.err, errNoProcess) || errors.Is(o.err, process.ErrExited)
		})
	}
	return outcomes
}

// manyText returns how the stacks of one of so many processes are printed.
func manyText(req spool.Request, processes int) func(*backtrace.Trace) string {
	o := render.Options{ASCII: req.Encoding != encodingUTF8, MaxBytes: min(limits.MaxText, limits.MaxRows/max(1, processes))}
	if req.Verb == verbSummary {
		return func(t *backtrace.Trace) string { return render.Names(t, o) }
	}
	return func(t *backtrace.Trace) string { return stackText(&req, t, o) }
}

// captureNext captures one of many processes, unless the stacks before it have cost more than the role had.
func (s *Service) captureNext(
	ctx context.Context, who authz.Caller, target process.Target, options capture.Options, o *outcome,
	text func(*backtrace.Trace) string,
) {
	if !who.Superuser {
		if o.err = s.limiter.Solvent(who.OID); o.err != nil {
			return
		}
	}
	o.captured, o.err = s.take(ctx, who, target, options, func(t *backtrace.Trace) { o.stack = text(t) })
	if waited(ctx, o.err) {
		o.err = limits.ErrBusy
	}
	chargeFrames(s.limiter, who, o.depth)
}

// each calls f for those that nothing has gone wrong with yet, side by side. A panic is the error of its process.
func each(outcomes []outcome, f func(int, *outcome)) {
	var group errgroup.Group
	group.SetLimit(sideBySide())
	for i := range outcomes {
		if outcomes[i].err == nil {
			group.Go(func() error {
				if err := host.Catch("a request for many processes", func() error {
					f(i, &outcomes[i])
					return nil
				}); err != nil {
					outcomes[i].err = err
				}
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
func target(c cluster.Cluster, pid, backend int) (process.Target, error) {
	if pid == backend {
		return process.Target{}, &render.Fault{
			SQLState: render.NotInPrerequisiteState, Message: "cannot capture the backtrace of the current backend",
		}
	}
	return member(c, pid)
}
