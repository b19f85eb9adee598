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

// sideBySide is the largest number of captures of one request that run at the same time. Each keeps a processor busy, so many
// more captures than processors would only make the pauses longer. It is twice the number of processors, because some
// captures wait for their target to stop.
func sideBySide() int { return 2 * host.AllProcessors() }

// The verbs for the stacks of many processes: the view pg_stat_backtrace, the server log, the processes that block a
// process, and a summary. The amount that a gate must grant depends on the number of processes, so answerMany passes
// the gate itself.
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

// answerMany answers about many processes with a row for each: pid, kind of process, engine, pause in microseconds, depth,
// stack. If a capture failed, its row has empty values from engine on, and then the level, SQLSTATE and message of the error
// (type backtrace.answer in sql/).
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

// many captures the processes of a request, and answers with the rows that the callback rows returns. The callback text
// returns, for a number of processes, the function that makes a text of each trace.
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

// logPanic logs the error of one process in a request for many processes, if the error is a panic.
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

// kind returns the kind of a process that pg_stat_activity does not list, from the title that the process gives itself,
// and "" for any other process. The statistics collector exists in version 14 only.
func kind(pid int) string {
	title := strings.TrimRight(cluster.Title(pid), " ")
	for _, name := range []string{"logger", "stats collector"} {
		if strings.HasSuffix(title, ": "+name) {
			return name
		}
	}
	return ""
}

// asked returns the ids of the processes that the request is about: the processes that it names. If it names none, a
// request for the view or for a summary is about all processes of the server, and any other request is about none. For
// a summary of an empty array the extension makes no request.
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

// captureMany captures processes side by side, and makes a text of each stack right after its capture.
func (s *Service) captureMany(
	ctx context.Context, c cluster.Cluster, req spool.Request, pids []int, options capture.Options,
	text func(*backtrace.Trace) string,
) []outcome {
	who := caller(req)
	outcomes := make([]outcome, len(pids))
	for i, pid := range pids {
		outcomes[i].pid = pid
	}
	// First identify each process, then check the permissions, then capture. A capture fails if its process is not the
	// identified process.
	targets := make([]process.Target, len(outcomes))
	each(outcomes, func(i int, o *outcome) { targets[i], o.err = target(c, o.pid, req.Backend) })
	defer func() {
		for i := range targets {
			targets[i].Held.Release()
		}
	}()
	refused := s.permit().AllowAll(ctx, who, identified(outcomes), max(1, len(req.Targets)))
	// A process that cannot be stopped must not use the whole time of the request.
	if options.Deadline == 0 {
		options.Deadline = time.Until(req.Deadline)
	}
	options.Deadline /= 3
	wait := endsIn
	if aboutAll(req) {
		wait = 0 // all processes include the logger, which is never listed and does not end
	}
	each(outcomes, func(i int, o *outcome) {
		if o.err = refusal(refused[o.pid], targets[i], wait); o.err == nil {
			s.captureNext(ctx, who, targets[i], options, o, text)
		}
	})
	if aboutAll(req) {
		for i := range outcomes { // some processes have ended during the captures
			outcomes[i].err = refusal(outcomes[i].err, targets[i], 0)
		}
		// Leave out processes that have ended meanwhile, and children of the postmaster that are not server processes,
		// such as a shell for archive_command.
		outcomes = slices.DeleteFunc(outcomes, func(o outcome) bool {
			return errors.Is(o.err, errNoProcess) || errors.Is(o.err, process.ErrExited)
		})
	}
	return outcomes
}

// manyText returns the function that prints each stack in a request for this number of processes.
func manyText(req spool.Request, processes int) func(*backtrace.Trace) string {
	o := render.Options{ASCII: req.Encoding != encodingUTF8, MaxBytes: min(limits.MaxText, limits.MaxRows/max(1, processes))}
	if req.Verb == verbSummary {
		return func(t *backtrace.Trace) string { return render.Names(t, o) }
	}
	return func(t *backtrace.Trace) string { return stackText(&req, t, o) }
}

// captureNext captures one of many processes. It returns an error in o if the stacks captured before have cost more
// tokens than the role had (limits.Limiter.Charge).
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

// each calls f for the outcomes without an error, side by side. A panic in f becomes the error of the outcome.
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

// target identifies one of the processes. It refuses the caller's own backend.
func target(c cluster.Cluster, pid, backend int) (process.Target, error) {
	if pid == backend {
		return process.Target{}, &render.Fault{
			SQLState: render.NotInPrerequisiteState, Message: "cannot capture the backtrace of the current backend",
		}
	}
	return member(c, pid)
}
