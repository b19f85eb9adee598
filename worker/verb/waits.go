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
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/serve/spool"
)

// The verbs about wait events. A verb that ends in _own asks only for the caller's own backends. For all other verbs
// the extension has checked the caller's privilege.
const (
	verbWaits       = "waits"
	verbWaitsOwn    = "waits_own"
	verbOverflow    = "waits_lost"
	verbOverflowOwn = "waits_lost_own"
	verbQueries     = "waits_queries"
	verbReset       = "waits_reset"
	verbResetAll    = "waits_reset_all"
	verbOff         = "waits_off"
	verbStats       = "waits_stats"
	verbTrace       = "waits_trace"
	verbUntrace     = "waits_untrace"
	verbRecords     = "waits_records"
)

var (
	_ = registerWaits(verbWaits)
	_ = registerWaits(verbWaitsOwn)
	_ = registerWaits(verbOverflow)
	_ = registerWaits(verbOverflowOwn)
	_ = registerWaits(verbQueries)
	_ = registerWaits(verbReset)
	_ = registerWaits(verbResetAll)
	_ = registerWaits(verbOff)
	_ = registerWaits(verbStats)
	_ = registerWaits(verbTrace)
	_ = registerWaits(verbUntrace)
	_ = registerWaits(verbRecords)
)

// registerWaits adds a verb about wait events. Its gate reserves the largest size of an answer.
func registerWaits(name string) struct{} { //nolint:unparam // for variables of the package
	return register(Verb{
		Name: name, answer: (*Service).answerWaits,
		gate: func(s *Service, ctx context.Context, c call) (func(), error) {
			return s.bounds.answers.Acquire(ctx, user(caller(c.Request)), limits.MaxRows)
		},
	})
}

// answerWaits answers a request about wait events.
func (s *Service) answerWaits(ctx context.Context, c call) spool.Answer {
	req, began := c.Request, c.began
	rows, err := s.waitRows(ctx, req)
	s.log1(req, func(e *zerolog.Event) {
		e.AnErr("error", err).Int("rows", len(rows)).Dur("took_ms", time.Since(began)).Msg("request")
	})
	if err != nil {
		return waitFailure(err, s.cfg.Waits.Limits(), req.Superuser)
	}
	if rows == nil {
		rows = [][]string{}
	}
	a := spool.Answer{Rows: rows}
	switch req.Verb {
	case verbStats:
		if l := s.cfg.Waits.Limits(); l.Sampled {
			return onlySampled(l)
		}
	case verbWaits, verbWaitsOwn, verbOverflow, verbOverflowOwn, verbQueries:
		s.noteRestart(&a)
	case verbRecords:
		s.noteGap(&a, req.Targets[0])
	}
	return a
}

// noteGap adds a notice to the answer if the process has no trace, or if its trace lacks records or the starts and ends
// of the executor.
func (s *Service) noteGap(a *spool.Answer, pid int) {
	gap, err := s.cfg.Waits.Gap(pid)
	alone := fmt.Sprintf("SELECT pg_wait_event_capture('trace', %d).", pid)
	switch {
	case err != nil:
		return
	case gap.Untraced:
		a.Message, a.Hint = fmt.Sprintf("process %d has no trace", pid), "To trace it, call "+alone
	case gap.Lost > 0:
		a.Message = units.Plural(gap.Lost, "%d {record|records} of traces {is|are} missing: {it|they} came faster than the worker could read")
		a.Hint = "Trace fewer processes."
	case gap.OfAll:
		a.Message = "a trace of all processes has no starts and ends of the executor"
		a.Hint = "To add them for this process, call " + alone
	case gap.Executor != nil:
		a.Message = fmt.Sprintf("the trace has no starts and ends of the executor: %v", gap.Executor)
		a.Hint = "They need Linux 6.6."
	default:
		return
	}
	a.Level = "NOTICE"
}

// noteRestart adds a notice to the answer if the figures began again from zero without a request, for example after a
// restart of the server.
func (s *Service) noteRestart(a *spool.Answer) {
	reason, since := s.cfg.Waits.Restarted()
	if reason == "" {
		return
	}
	a.Level = "NOTICE"
	a.Message = fmt.Sprintf("wait events are counted from zero since %s, because %s",
		since.UTC().Format("2006-01-02 15:04:05-07"), reason)
	a.Hint = "To end this notice, call pg_stat_reset_wait_event_timing_all()."
}

func (s *Service) waitRows(ctx context.Context, req spool.Request) ([][]string, error) {
	switch req.Verb {
	case verbWaits, verbWaitsOwn, verbOverflow, verbOverflowOwn:
		return s.reportRows(ctx, req)
	case verbQueries:
		return s.queryRows()
	case verbRecords:
		return s.recordRows(ctx, req)
	case verbResetAll:
		return nil, s.cfg.Waits.ResetAll()
	case verbOff:
		return nil, s.cfg.Waits.SetLevel(waitevent.Off)
	case verbStats:
		return nil, s.cfg.Waits.SetLevel(waitevent.Stats)
	}
	if req.Verb == verbTrace && len(req.Targets) == 0 {
		return nil, s.cfg.Waits.SetLevel(waitevent.Trace)
	}
	return nil, s.changeWaits(req)
}

// changeWaits resets figures, or starts or ends traces.
func (s *Service) changeWaits(req spool.Request) error {
	for _, pid := range req.Targets {
		if req.Verb != verbReset {
			if err := s.cfg.Waits.Trace(pid, req.Verb == verbTrace); err != nil {
				return err
			}
			continue
		}
		known, err := s.cfg.Waits.Reset(pid)
		if err == nil && !known {
			err = waitevent.ErrNoWaits
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reportRows returns a row for each process and event or, for the verbs of lost waits, a row for each process. The
// verbs that end in _own have only the rows of the caller's backends.
func (s *Service) reportRows(ctx context.Context, req spool.Request) ([][]string, error) {
	own := req.Verb == verbWaitsOwn || req.Verb == verbOverflowOwn
	var before map[int]process.ID
	if own {
		var err error
		if before, err = s.identities(); err != nil { // before the figures are read: another process may get a process id after it
			return nil, err
		}
	}
	report, err := s.cfg.Waits.Report()
	if err != nil {
		return nil, err
	}
	if own {
		if err := s.keepOwn(ctx, req, &report, before); err != nil {
			return nil, err
		}
	}
	var rows [][]string
	for _, p := range report.Processes {
		if req.Verb == verbOverflow || req.Verb == verbOverflowOwn {
			rows = append(rows, []string{strconv.Itoa(p.PID), "0", number64(p.Overflow), number64(p.Resets)})
			continue
		}
		for i := range p.Rows {
			rows = append(rows, waitRow(report.Info, strconv.Itoa(p.PID), strconv.Itoa(p.Slot), &p.Rows[i]))
		}
	}
	switch req.Verb {
	case verbWaits:
		for i := range report.Ended {
			rows = append(rows, waitRow(report.Info, "", "", &report.Ended[i]))
		}
	case verbOverflow:
		rows = append(rows, []string{"", number64(report.Lost.Processes), number64(report.Lost.Overflow), "0"})
	}
	return rows, nil
}

// identities returns the server's processes, by the process id that the server sees.
func (s *Service) identities() (map[int]process.ID, error) {
	server, err := s.cfg.Server()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoServer, err)
	}
	pids, err := server.Children()
	if err != nil {
		return nil, err
	}
	ids := make(map[int]process.ID, len(pids))
	for _, pid := range pids {
		if id, err := process.IDOf(server.Local(pid)); err == nil {
			ids[pid] = id
		}
	}
	return ids, nil
}

// keepOwn removes the processes whose backtrace the caller may not see (authz.Decide) from the report. The parameter before is the
// result of identities before the figures were read. keepOwn also removes processes that have ended since then, because the caller's
// rights may be rights for another process with the same id.
func (s *Service) keepOwn(ctx context.Context, req spool.Request, report *waitevent.Report, before map[int]process.ID) error {
	pids := make([]int, len(report.Processes))
	for i, p := range report.Processes {
		pids[i] = p.PID
	}
	facts, err := s.cfg.Looker.LookAll(ctx, pids, req.Caller)
	if err != nil {
		return err
	}
	report.Processes = slices.DeleteFunc(report.Processes, func(p waitevent.ProcessRows) bool {
		id, known := before[p.PID]
		now, err := process.IDOf(id.PID)
		return !known || err != nil || now != id || authz.Decide(caller(req), p.PID, facts[p.PID]) != nil
	})
	return nil
}

// waitRow returns the row of an event in pg_stat_wait_event_timing. Counts and longest waits are empty if the method
// does not know them.
func waitRow(info waits.Info, pid, slot string, r *waitevent.Row) []string {
	calls, average, longest, histogram := "", "", "", ""
	if info.Counts && r.Calls > 0 {
		calls = number64(r.Calls)
		average = micro(r.Total / time.Duration(r.Calls))
		longest = micro(r.Longest)
		buckets := make([]string, len(r.Buckets))
		for i, n := range r.Buckets {
			buckets[i] = number64(n)
		}
		histogram = "{" + strings.Join(buckets, ",") + "}"
	}
	return []string{
		pid, slot, r.Type, r.Name, calls, milli(r.Total), average, longest, histogram, string(info.Method),
	}
}

// queryRows returns a row for each query and event. It returns an error if the method attributes no waits to queries.
func (s *Service) queryRows() ([][]string, error) {
	queries, info, err := s.cfg.Waits.Queries()
	if err != nil {
		return nil, err
	}
	if !info.Queries {
		return nil, fmt.Errorf("%w: the method %s attributes no waits to queries", waits.ErrUnsupported, info.Method)
	}
	rows := make([][]string, len(queries))
	for i, q := range queries {
		share := ""
		if q.Share >= 0 {
			share = strconv.FormatFloat(q.Share, 'f', 4, 64)
		}
		rows[i] = []string{
			queryID(q.Query), q.Type, q.Name, number64(q.Calls), milli(q.Total), share, string(info.Method),
		}
	}
	return rows, nil
}

// recordRows returns a row for each record of a traced process, at most limits.MaxRecords.
func (s *Service) recordRows(ctx context.Context, req spool.Request) ([][]string, error) {
	if len(req.Targets) != 1 {
		return nil, errNoProcess
	}
	var started uint64 // of any process
	if !req.Superuser {
		server, err := s.cfg.Server()
		if err != nil {
			return nil, err
		}
		id, gone := process.IDOf(server.Local(req.Targets[0])) // before the check: another process may get the id after it
		if err := s.permit().Allow(ctx, caller(req), req.Targets[0]); err != nil {
			return nil, err
		}
		if gone != nil {
			return nil, waitevent.ErrNoWaits
		}
		started = id.StartTime
	}
	records, err := s.cfg.Waits.Records(req.Targets[0], limits.MaxRecords, started)
	if err != nil {
		return nil, err
	}
	kinds := map[waits.Kind]string{
		waits.Wait: "wait", waits.QueryStart: "query start", waits.QueryEnd: "query end",
		waits.ExecutorStart: "executor start", waits.ExecutorEnd: "executor end",
	}
	rows := make([][]string, len(records))
	for i, r := range records {
		took, query := "", ""
		if r.Kind != waits.QueryStart && r.Kind != waits.ExecutorStart && (r.Kind != waits.ExecutorEnd || r.Took != 0) {
			took = micro(r.Took)
		}
		if r.Query != 0 {
			query = queryID(r.Query)
		}
		rows[i] = []string{
			number64(r.Number), r.At.UTC().Format("2006-01-02 15:04:05.000000-07"), kinds[r.Kind], r.Type, r.Name, took, query,
		}
	}
	return rows, nil
}

// queryID prints a query id as a signed number, like the server.
func queryID(id uint64) string { return strconv.FormatInt(int64(id), 10) }

func number64(n uint64) string { return strconv.FormatUint(n, 10) }

func milli(d time.Duration) string {
	return strconv.FormatFloat(float64(d.Nanoseconds())/1e6, 'f', 6, 64)
}

func micro(d time.Duration) string {
	return strconv.FormatFloat(float64(d.Nanoseconds())/1e3, 'f', 3, 64)
}

// sentence returns the text of an error with an upper-case first letter and a full stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// Hints about the timing of wait events.
const (
	hintStart    = "Start it with SELECT pg_wait_event_capture('stats')."
	hintAskStart = "A superuser, or a role with EXECUTE on the function, starts it with SELECT pg_wait_event_capture('stats')."
	hintDoctor   = "Run \"pg_stat_backtrace doctor\" on the server's host."
	hintOption   = "Restart the worker with --wait-event-capture=stats, which keeps its right to load programs into the kernel."
)

// onlySampled returns the answer to a request for the level stats if the timing gives estimates only.
func onlySampled(l waitevent.Limits) spool.Answer {
	hint := hintDoctor
	if l.Restricted {
		hint = hintOption
	}
	return spool.Answer{
		Level: "WARNING", SQLState: "01000", Message: "wait events are only sampled: their times are estimates, and they are not counted",
		Hint: hint,
	}
}

// waitFailure returns the answer to the SQL caller for an error about wait events.
func waitFailure(err error, l waitevent.Limits, superuser bool) spool.Answer {
	fault := &render.Fault{SQLState: render.NotInPrerequisiteState, Message: "wait events cannot be timed"}
	switch {
	case errors.Is(err, waitevent.ErrOff):
		hint := hintAskStart
		if superuser {
			hint = hintStart
		}
		return spool.Answer{
			Level: "WARNING", SQLState: render.NotInPrerequisiteState, Message: "wait events are not being timed", Hint: hint,
		}
	case errors.Is(err, waitevent.ErrNoWaits):
		return spool.Answer{Level: "WARNING", SQLState: "01000", Message: "the process is unknown, or has not waited yet"}
	case errors.Is(err, waitevent.ErrBusy):
		fault.Message = "the request about wait events was not answered in time"
		fault.Detail = sentence(err.Error())
		fault.Hint = "Retry later."
	case errors.Is(err, waits.ErrServerGone):
		fault.Message = "wait events are not being timed at the moment"
		fault.Hint = "The server has restarted. Retry in a second."
	case errors.Is(err, waits.ErrUnsupported), errors.Is(err, unix.EPERM):
		fault.Detail = sentence(strings.TrimPrefix(err.Error(), waits.ErrUnsupported.Error()+": "))
		fault.Hint = hintDoctor
		if l.Restricted {
			fault.Hint = hintOption
		}
	default:
		return failure(0, err)
	}
	return spool.Answer{
		Level: "ERROR", SQLState: fault.SQLState, Message: fault.Message, Detail: fault.Detail, Hint: fault.Hint,
	}
}
