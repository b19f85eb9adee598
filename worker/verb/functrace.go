package verb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/measure/functrace"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/spool"
)

// The verbs of pg_trace_function: start a trace, and poll for its result. The extension polls several times a second.
// If it stops polling, the trace ends.
const (
	verbTraceStart = "functrace"
	verbTracePoll  = "functrace_poll"
)

var (
	_ = register(Verb{Name: verbTraceStart, answer: (*Service).answerFunctionTrace})
	_ = register(Verb{Name: verbTracePoll, answer: (*Service).answerFunctionTrace})
)

// Times of traces whose caller has stopped polling.
const (
	// traceAbandoned is the longest time between two polls of a caller. After it, the caller's trace ends.
	traceAbandoned = 10 * time.Second
	// expireEvery is the interval at which expire checks whether the caller of an ended trace still polls.
	expireEvery = time.Second
)

// functionTraces are the traces of SQL callers, by the process id of the waiting backend.
type functionTraces struct {
	mu      sync.Mutex
	byPID   map[int]*functionTrace
	running map[*functionTrace]bool // also replaced and abandoned traces, until they end
	ended   sync.WaitGroup          // counts the running traces
	stopped bool
}

// run calls the callback trace in a goroutine. After stop was called, run does not call trace, and returns false.
func (f *functionTraces) run(t *functionTrace, trace func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return false
	}
	if f.running == nil {
		f.running = make(map[*functionTrace]bool)
	}
	f.running[t] = true
	f.ended.Go(func() {
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.running, t)
		}()
		trace()
	})
	return true
}

// stop cancels all traces and waits until they have ended. After stop, no trace starts.
func (f *functionTraces) stop() {
	f.mu.Lock()
	f.stopped = true
	for t := range f.running {
		t.cancel()
	}
	clear(f.byPID)
	f.mu.Unlock()
	f.ended.Wait()
}

// functionTrace is the trace of one SQL caller. The fields done, result and err are the outcome, and polled is the time
// of the last poll.
type functionTrace struct {
	caller uint32
	cancel context.CancelFunc

	mu     sync.Mutex
	polled time.Time
	done   bool
	result *functrace.Result
	err    error
}

// Errors of traces; functionTraceFailure has their words for SQL.
var (
	errTraceLost = errors.New("the trace has ended, or was never started")
	errTraces    = errors.New("too many traces at a time")
)

// answerFunctionTrace starts a trace, or answers with the state of a trace. The first row has the state, "running" or
// "done", and a warning or "". If the trace is done, a row for each stack follows.
func (s *Service) answerFunctionTrace(_ context.Context, c call) spool.Answer {
	req, began := c.Request, c.began
	var rows [][]string
	err := s.mayTrace(req)
	switch {
	case err != nil:
	case req.Verb == verbTraceStart:
		rows = [][]string{{"running", ""}}
		err = s.startFunctionTrace(req)
	default:
		rows, err = s.pollFunctionTrace(req)
	}
	var a spool.Answer
	if err != nil {
		a = functionTraceFailure(req, err)
	} else {
		a = spool.Answer{Rows: rows}
	}
	if req.Verb == verbTraceStart || err != nil {
		s.log1(req, func(e *zerolog.Event) {
			e.AnErr("error", err).Str("function", shortened(req.Settings["trace"])).Msg("trace of a function")
		})
		s.cfg.Journal.Add(req.Database, journalRow(req, began, captured{}, a))
	}
	return a
}

// mayTrace returns nil if the caller may trace functions, or an error with the reason.
func (s *Service) mayTrace(req spool.Request) error {
	switch {
	case !req.Superuser:
		return &render.Fault{
			SQLState: render.InsufficientPrivilege, Message: "must be superuser to trace functions",
		}
	case !s.cfg.TraceFunctions:
		return &render.Fault{
			SQLState: render.NotInPrerequisiteState, Message: "functions cannot be traced",
			Detail: "The worker was started without the option --trace-functions, and has given up the capabilities " +
				"CAP_BPF and CAP_PERFMON.",
			Hint: "Restart the worker as root with --trace-functions.",
		}
	}
	return nil
}

// startFunctionTrace starts a trace in the background. The trace replaces an earlier trace of the same backend.
func (s *Service) startFunctionTrace(req spool.Request) error {
	milliseconds, name, ok := strings.Cut(req.Settings["trace"], " ")
	ms, err := strconv.ParseInt(milliseconds, 10, 64)
	d := time.Duration(ms) * time.Millisecond
	if !ok || err != nil || d <= 0 || d > limits.MaxTraceTime || len(req.Targets) != 1 {
		return errOneProcess
	}
	c, err := s.cfg.Server()
	if err != nil {
		return fmt.Errorf("%w: %w", errNoServer, err)
	}
	o := functrace.Options{Functions: []string{name}, MaxOverhead: limits.TraceOverhead, Title: cluster.Title}
	if static, is := strings.CutPrefix(name, "usdt:"); is {
		o.Functions, o.Static = nil, []string{static}
	}
	var held *process.Handle // keeps the target's id from being used again, so that no other process gets the probes
	rights, err := c.Rights()
	if err != nil {
		return err
	}
	o.Rights = &rights
	if pid := req.Targets[0]; pid == 0 {
		o.Postmaster = c.PostmasterPID
	} else {
		target, err := c.Contains(pid)
		switch {
		case errors.Is(err, cluster.ErrPostmaster):
			o.PIDs = []int{c.PostmasterPID}
		case errors.Is(err, process.ErrNotPermitted):
			return err
		case errors.Is(err, cluster.ErrNotMember):
			return fmt.Errorf("%w: %w", errNoProcess, err)
		case err != nil:
			return err
		default:
			o.PIDs = []int{target.PID}
			held = target.Held
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	t := &functionTrace{caller: req.Caller, cancel: cancel, polled: time.Now()}
	if err := s.functions.add(req.Backend, t); err != nil {
		cancel()
		held.Release()
		return err
	}
	if !s.functions.run(t, func() { s.runFunctionTrace(ctx, req.Backend, t, o, held, d) }) {
		cancel()
		held.Release()
		s.functions.remove(req.Backend, t)
		return errTraceLost
	}
	return nil
}

// add adds the trace of a backend, cancels the backend's earlier trace and all abandoned traces, and returns errTraces
// if there are too many traces.
func (f *functionTraces) add(backend int, t *functionTrace) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for pid, other := range f.byPID {
		if pid == backend || other.abandoned() {
			other.cancel()
			delete(f.byPID, pid)
		}
	}
	if len(f.byPID) >= limits.Traces {
		return errTraces
	}
	if f.byPID == nil {
		f.byPID = make(map[int]*functionTrace)
	}
	f.byPID[backend] = t
	return nil
}

// abandoned reports whether the last poll is longer ago than traceAbandoned.
func (t *functionTrace) abandoned() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.polled) > traceAbandoned
}

// expire removes an ended trace with its result when the trace is abandoned. Until then it calls itself again every
// expireEvery. It does nothing if the trace was replaced or fetched.
func (f *functionTraces) expire(backend int, t *functionTrace) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.byPID[backend] != t: // another trace has replaced t, the result was fetched, or the worker ends
	case t.abandoned():
		delete(f.byPID, backend)
	default:
		time.AfterFunc(expireEvery, func() { f.expire(backend, t) })
	}
}

// runFunctionTrace runs a trace for the time d. It ends the trace earlier if the trace is abandoned.
func (s *Service) runFunctionTrace(
	ctx context.Context, backend int, t *functionTrace, o functrace.Options, held *process.Handle, d time.Duration,
) {
	defer t.cancel()
	defer held.Release()
	ended := make(chan struct{})
	var watch sync.WaitGroup
	defer watch.Wait()
	defer close(ended)
	watch.Go(func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				if t.abandoned() {
					t.cancel()
				}
			}
		}
	})
	var result *functrace.Result
	err := host.Catch("a trace of a function", func() (err error) {
		result, err = s.traceFunction(ctx, o, held, d)
		return err
	})
	var failed *host.Panic
	if errors.As(err, &failed) {
		s.cfg.Log.Error().Err(err).Msg("trace of a function failed")
	}
	t.finish(result, err)
	s.functions.expire(backend, t)
}

// finish stores the result, unless the trace is abandoned.
func (t *functionTrace) finish(result *functrace.Result, err error) {
	if t.abandoned() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done, t.result, t.err = true, result, err
}

// traceFunction calibrates the cost of probes, attaches the probes, and traces for the time d.
func (s *Service) traceFunction(
	ctx context.Context, o functrace.Options, held *process.Handle, d time.Duration,
) (*functrace.Result, error) {
	cost, err := probe.Calibrate()
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	t, err := functrace.New(s.cfg.Capturer, o)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := t.Attach(cost); err != nil {
		return nil, err
	}
	if held != nil && !held.Lives() {
		return nil, fmt.Errorf("process %d: %w", o.PIDs[0], process.ErrExited)
	}
	one := t.Traced()[0]
	s.cfg.Log.Info().Str("function", one.Name).Str("module", one.Module).Bool("single_step", one.Stepped).
		Dur("duration_ms", d).Msg("tracing a function")
	// When the trace is canceled, the hits that are not counted yet are dropped.
	return t.Run(ctx, d, func(*functrace.Event) error { return ctx.Err() })
}

// pollFunctionTrace returns the rows for a poll: the state of the backend's trace and, if it is done, the result. It
// then removes the trace.
func (s *Service) pollFunctionTrace(req spool.Request) ([][]string, error) {
	s.functions.mu.Lock()
	t := s.functions.byPID[req.Backend]
	s.functions.mu.Unlock()
	if t == nil || t.caller != req.Caller {
		return nil, errTraceLost
	}
	done, result, err := t.poll()
	if !done {
		return [][]string{{"running", ""}}, nil
	}
	s.functions.remove(req.Backend, t)
	if err != nil {
		return nil, err
	}
	return functionTraceRows(result, render.Options{ASCII: req.Encoding != encodingUTF8, MaxBytes: limits.MaxText}), nil
}

// poll records the time of the poll, and returns the result if the trace is done.
func (t *functionTrace) poll() (done bool, result *functrace.Result, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.polled = time.Now()
	result, t.result = t.result, nil
	return t.done, result, t.err
}

// remove removes the trace of a backend, unless another trace has replaced it.
func (f *functionTraces) remove(backend int, t *functionTrace) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byPID[backend] == t {
		delete(f.byPID, backend)
	}
}

// functionTraceRows returns the rows of pg_trace_function: the number of calls and the stack. The numbers add up to all
// calls: the last row, with an empty stack, has the calls whose stack is unknown or left out.
func functionTraceRows(r *functrace.Result, o render.Options) [][]string {
	notes := slices.Clone(r.Notes)
	f := &r.Functions[0]
	sum := f.Total()
	counts := make(map[*backtrace.Thread]uint64)
	var order []*backtrace.Thread
	for i := range f.Stacks {
		s := &f.Stacks[i]
		if counts[s.Thread] == 0 {
			order = append(order, s.Thread)
		}
		counts[s.Thread] += s.Count
	}
	texts := make(map[string]uint64)
	var list []string
	for _, th := range order {
		text := render.Names(&backtrace.Trace{Threads: []backtrace.Thread{*th}}, o)
		if texts[text] == 0 {
			list = append(list, text)
		}
		texts[text] += counts[th]
	}
	rows := [][]string{nil}
	size, shown := 0, uint64(0)
	for _, text := range list {
		if size += len(text); size > limits.MaxTraceBytes || len(rows) > limits.MaxTraceRows {
			notes = append(notes, fmt.Sprintf("only %d of %d different stacks are shown", len(rows)-1, len(list)))
			break
		}
		rows = append(rows, []string{number64(texts[text]), text})
		shown += texts[text]
	}
	if left := sum.Hits - min(shown, sum.Hits); left > 0 {
		rows = append(rows, []string{number64(left), ""})
	}
	rows[0] = []string{"done", strings.Join(notes, "; ")}
	return rows
}

// functionTraceFailure returns the answer to the SQL caller for an error.
func functionTraceFailure(req spool.Request, err error) spool.Answer {
	a := spool.Answer{Level: "ERROR", SQLState: render.NotInPrerequisiteState, Message: "functions cannot be traced"}
	var find *functrace.FindError
	switch {
	case errors.As(err, &find):
		a.SQLState = render.InvalidParameterValue
		a.Message, a.Detail, a.Hint = fmt.Sprintf("cannot trace %q", find.Name), sentence(find.Reason), find.Hint
	case errors.Is(err, errTraceLost):
		a.Message = "the trace of the function is lost"
		a.Detail = "The worker was restarted, or another trace of this session has taken its place."
	case errors.Is(err, errTraces):
		a.SQLState = render.ConfigurationLimit
		a.Message = fmt.Sprintf("no more than %d functions can be traced at a time", limits.Traces)
		a.Hint = "Retry when another trace has ended."
	case errors.Is(err, probe.ErrUnsupported), errors.Is(err, unix.EPERM):
		a.Detail = sentence(err.Error())
		a.Hint = "Run \"pg_stat_backtrace doctor\" on the server's host."
	case errors.Is(err, probe.ErrEnded), errors.Is(err, probe.ErrNotInPlace):
		a.Detail = sentence(err.Error())
	default:
		pid := 0
		if len(req.Targets) > 0 {
			pid = req.Targets[0]
		}
		return failure(pid, err)
	}
	return a
}
