package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/limits/admission"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/sqlerror"
	"pg_stat_backtrace/worker/serve/queue"
	"pg_stat_backtrace/worker/serve/spool"
)

// What requests may have in use at a time, in bytes. The worker's own data and Go's collector take about as much again,
// and the unit's MemoryMax is 512 MB.
const (
	captureMemory = 64 << 20 // captures under way: copied stacks, frames and their names
	answerMemory  = 64 << 20 // texts of answers until they are delivered

	// readTrees is how many processes have their memory contexts read at a time. Each reading keeps up to 64 MB.
	readTrees = 3

	// copiedStack is what a capture copies of a stack at most, frameSize what a frame takes with its name and levels,
	// and lineSize its line or row in an answer.
	copiedStack = 1 << 20
	frameSize   = 512
	lineSize    = 256
)

// usualFrames is the number of frames that a token pays for: what a stack has that was captured without max_frames.
const usualFrames = unwind.DefaultMaxFrames

// bounds keep the use that roles make of the worker within limits. A quarter of everything is for superusers alone, and
// a role that is not a superuser gets half.
type bounds struct {
	places   *admission.Gate // captures that run side by side
	captures *admission.Gate // and their bytes
	answers  *admission.Gate
	trees    *admission.Gate // readings of memory contexts
	barriers *admission.Gate // reads of the postmaster for barriers
	refusals repeats
	lines    *authz.Limiter // lines of the log that are about one role
	unlogged counts
}

func newBounds(concurrency int) *bounds {
	if concurrency <= 0 {
		concurrency = capture.DefaultConcurrency
	}
	shares := func(total int64) admission.Limits {
		return admission.Limits{Total: total, Ordinary: total - total/4, Role: (total + 1) / 2}
	}
	return &bounds{
		places: admission.New(shares(int64(concurrency))), captures: admission.New(shares(captureMemory)),
		answers:  admission.New(shares(answerMemory)),
		trees:    admission.New(admission.Limits{Total: readTrees, Ordinary: readTrees - 1, Role: 1}),
		barriers: admission.New(admission.Limits{Total: 1, Ordinary: 1, Role: 1}),
		lines:    authz.NewLimiter(authz.Limits{PerSecond: 10, Burst: 100}),
	}
}

func user(c authz.Caller) admission.Who {
	return admission.Who{Role: c.OID, Superuser: c.Superuser}
}

// frames bounds the frames of a capture, of the threads that a process of the server has together.
func frames(o capture.Options) int64 {
	n := int64(usualFrames)
	if o.MaxFrames > 0 {
		n = int64(o.MaxFrames)
	}
	if o.AllThreads {
		n *= 2
	}
	return n
}

// capturing waits until another capture fits in.
func (b *bounds) capturing(ctx context.Context, who authz.Caller, o capture.Options) (done func(), err error) {
	place, err := b.places.Acquire(ctx, user(who), 1)
	if err != nil {
		return nil, errBusy
	}
	memory, err := b.captures.Acquire(ctx, user(who), copiedStack+frames(o)*frameSize)
	if err != nil {
		place()
		return nil, errBusy
	}
	// A capture that does not come back must not keep others from theirs.
	once := sync.OnceFunc(func() { memory(); place() })
	timer := time.AfterFunc(hung*cmp.Or(o.Deadline, usualDeadline), once)
	return func() {
		timer.Stop()
		once()
	}, nil
}

// A capture is taken for one that the kernel does not come back from after so many times its deadline.
const (
	hung          = 3
	usualDeadline = 3 * time.Second
)

// answering waits until another answer fits in, about so many processes.
func (b *bounds) answering(ctx context.Context, who authz.Caller, o capture.Options, processes int) (func(), error) {
	size := int64(max(processes, 1)) * (frames(o) + 8) * lineSize
	done, err := b.answers.Acquire(ctx, user(who), min(size, maxTogether))
	if err != nil {
		return nil, errBusy
	}
	return done, nil
}

// errBusy is the answer to a request that waited for its turn in vain.
var errBusy = func() error {
	a := spool.Busy()
	return &sqlerror.Fault{SQLState: a.SQLState, Message: a.Message, Hint: a.Hint}
}()

// charge takes what a request costs before anything is done for it, also for what turns out to be an error: a token for
// each process that it names.
func (w *Worker) charge(req spool.Request) error {
	if req.Superuser {
		return nil
	}
	return w.limiter.TakeAll(req.Caller, max(1, len(req.Targets)))
}

// chargeFrames takes what a stack costs beyond the usual.
func chargeFrames(l *authz.Limiter, who authz.Caller, depth int) {
	if extra := depth / usualFrames; extra > 0 && !who.Superuser {
		l.Charge(who.OID, float64(extra))
	}
}

// captured is what came of a capture, without its frames.
type captured struct {
	engine string
	pause  time.Duration
	depth  int
}

// take has a process captured when its turn comes, and hands the trace to render. The trace is freed then: its text is
// a tenth of it, and other captures wait.
func (w *Worker) take(
	ctx context.Context, who authz.Caller, target process.Target, o capture.Options, render func(*backtrace.Trace),
) (captured, error) {
	done, err := w.bounds.capturing(ctx, who, o)
	if err != nil {
		return captured{}, err
	}
	defer done()
	t, err := w.capturer.Capture(ctx, target, o)
	if err != nil {
		return captured{}, err
	}
	w.metrics.Captured(t.Engine, t.Pause)
	render(w.visible(t, who.Superuser))
	return captured{engine: t.Engine, pause: t.Pause, depth: t.Depth()}, nil
}

// refuse answers a request that a role may not make so soon. Such requests cost the role nothing, so there may be any
// number of them: once a second one line of the log and one row of the journal stand for all.
func (w *Worker) refuse(req spool.Request, err error) spool.Answer {
	a := failure(0, err)
	w.bounds.refusals.add(req.Caller, func(times int, since time.Time) {
		row := journalRow(req, since, captured{}, a)
		if times > 1 {
			row.Result.Detail = fmt.Sprintf("%d requests were refused since %s.", times, since.Format(time.RFC3339))
			row.Result.Hint = ""
		}
		w.ledger.Add(req.Database, row)
		w.event(req).Str("sqlstate", a.SQLState).AnErr("error", err).Int("requests", times).Msg("request refused")
	})
	return a
}

// maxRepeats bounds the roles whose refusals are counted one by one; the others are counted together.
const maxRepeats = 1024

// repeats report what happens again and again: at once the first time, then once a second how often it has happened.
type repeats struct {
	mu     sync.Mutex
	byRole map[uint32]*repeated
}

type repeated struct {
	times  int
	since  time.Time
	report func(times int, since time.Time) // of the last time
}

func (r *repeats) add(role uint32, report func(times int, since time.Time)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.byRole == nil {
		r.byRole = make(map[uint32]*repeated)
	}
	if len(r.byRole) >= maxRepeats && r.byRole[role] == nil {
		role = 0 // no role has this oid
	}
	if e := r.byRole[role]; e != nil {
		if e.times == 0 {
			e.since = now
		}
		e.times++
		e.report = report
		return
	}
	r.byRole[role] = &repeated{}
	time.AfterFunc(time.Second, func() { r.flush(role) })
	report(1, now)
}

// flush reports what has happened in the last second.
func (r *repeats) flush(role uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byRole[role]
	if e.times == 0 {
		delete(r.byRole, role)
		return
	}
	e.report(e.times, e.since)
	e.times, e.report = 0, nil
	time.AfterFunc(time.Second, func() { r.flush(role) })
}

// counts are numbers by role. There are as many roles as have lines in the log, at most maxRepeats.
type counts struct {
	mu     sync.Mutex
	byRole map[uint32]int
}

func (c *counts) add(role uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byRole == nil {
		c.byRole = make(map[uint32]int)
	}
	if len(c.byRole) >= maxRepeats && c.byRole[role] == 0 {
		role = 0
	}
	c.byRole[role]++
}

// take returns the number and sets it to 0.
func (c *counts) take(role uint32) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.byRole[role] + c.byRole[0]
	delete(c.byRole, role)
	delete(c.byRole, 0)
	return n
}

// distinct returns the processes in order, each once.
func distinct(pids []int) []int {
	pids = slices.Clone(pids)
	slices.Sort(pids)
	return slices.Compact(pids)
}

// waited reports that a request spent its time waiting for its turn: neither the server nor the process asked about
// kept it from being answered.
func waited(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ptrace.ErrDeadline)
}

// figures are what the table and the journal hold of a capture.
func (c captured) figures(r queue.Result) queue.Result {
	r.Engine, r.Pause, r.Depth = c.engine, c.pause, c.depth
	return r
}
