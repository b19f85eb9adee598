package verb

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/serve/queue"
	"pg_stat_backtrace/worker/serve/spool"
)

// Sizes of captures and answers, in bytes.
const (
	// copiedStack is the largest copy of a stack, frameSize the size of a frame with its name and levels, and lineSize
	// the size of the frame's line or row in an answer.
	copiedStack = 1 << 20
	frameSize   = 512
	lineSize    = 256
)

// usualFrames is the number of frames for which a role pays one token (see limits.Rate): the limit of a stack without
// the setting max_frames.
const usualFrames = unwind.DefaultMaxFrames

// bounds limit how much roles use the worker.
type bounds struct {
	places   *limits.Gate // number of captures at the same time
	captures *limits.Gate // bytes of these captures
	answers  *limits.Gate
	trees    *limits.Gate // number of processes whose memory contexts are read
	files    *limits.Gate // number of requests that read the recorder's files, which a disk can delay for any time
	barriers *limits.Gate // one read of the postmaster's memory for barriers
	// summaries bounds the number of summaries in progress.
	summaries *limits.Gate
	refusals  limits.Repeats
}

func newBounds(concurrency int) *bounds {
	return &bounds{
		places:   limits.NewGate(limits.Share(int64(cmp.Or(max(concurrency, 0), limits.Captures)))),
		captures: limits.NewGate(limits.Share(limits.CaptureBytes)),
		answers:  limits.NewGate(limits.Share(limits.AnswerBytes)),
		trees:    limits.MemoryTrees(),
		files:    limits.MemoryTrees(),
		barriers: limits.One(), summaries: limits.NewGate(limits.Share(limits.Summaries)),
	}
}

func user(c authz.Caller) limits.Who {
	return limits.Who{Role: c.OID, Superuser: c.Superuser}
}

// frames returns the number of frames for which a capture needs room, of all threads of a server process together.
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

// capturing waits until the gates have room for another capture. It returns limits.ErrBusy if ctx ends before.
func (b *bounds) capturing(ctx context.Context, who authz.Caller, o capture.Options) (done func(), err error) {
	place, err := b.places.Acquire(ctx, user(who), 1)
	if err != nil {
		return nil, limits.ErrBusy
	}
	memory, err := b.captures.Acquire(ctx, user(who), copiedStack+frames(o)*frameSize)
	if err != nil {
		place()
		return nil, limits.ErrBusy
	}
	// A capture that never ends must not occupy the gates for ever.
	once := sync.OnceFunc(func() { memory(); place() })
	timer := time.AfterFunc(hung*cmp.Or(o.Deadline, snapshot.DefaultDeadline), once)
	return func() {
		timer.Stop()
		once()
	}, nil
}

// hung is the time, as a multiple of a capture's deadline, after which the capture is assumed to hang in the kernel.
const hung = 3

// answering waits until the gate has room for an answer about one process. It is the gate of the verbs for the stack of
// one process.
func (s *Service) answering(ctx context.Context, c call) (done func(), err error) {
	return s.bounds.answering(ctx, caller(c.Request), c.options, 1)
}

// answering waits until the gate has room for an answer about this number of processes. It returns limits.ErrBusy if
// ctx ends before.
func (b *bounds) answering(ctx context.Context, who authz.Caller, o capture.Options, processes int) (func(), error) {
	size := int64(max(processes, 1)) * (frames(o) + 8) * lineSize
	done, err := b.answers.Acquire(ctx, user(who), min(size, limits.MaxRows))
	if err != nil {
		return nil, limits.ErrBusy
	}
	return done, nil
}

// charge takes the tokens that a request costs: one for each process that it names, and at least one. Superusers pay none.
// charge is called before the worker does anything for the request, so requests that fail cost the same. It returns an error
// if the role has too few tokens.
func (s *Service) charge(req spool.Request) error {
	if req.Superuser {
		return nil
	}
	return s.limiter.TakeAll(req.Caller, max(1, len(req.Targets)))
}

// chargeFrames takes one more token from a role for each usualFrames frames of a stack. Superusers pay none.
func chargeFrames(l *limits.Limiter, who authz.Caller, depth int) {
	if extra := depth / usualFrames; extra > 0 && !who.Superuser {
		l.Charge(who.OID, float64(extra))
	}
}

// captured has the figures of a capture: the engine, how long the process was stopped, and the number of frames.
type captured struct {
	engine string
	pause  time.Duration
	depth  int
}

// take captures a process when the gates have room, and passes the trace to the callback render. The trace can be freed
// after this call: it takes ten times the memory of its text, and other captures wait for room.
func (s *Service) take(
	ctx context.Context, who authz.Caller, target process.Target, o capture.Options, render func(*backtrace.Trace),
) (captured, error) {
	done, err := s.bounds.capturing(ctx, who, o)
	if err != nil {
		return captured{}, err
	}
	defer done()
	t, err := s.cfg.Capturer.Capture(ctx, target, o)
	if err != nil {
		return captured{}, err
	}
	s.cfg.Metrics.Captured(t.Engine, t.Pause)
	render(s.visible(t, who.Superuser))
	return captured{engine: t.Engine, pause: t.Pause, depth: t.Depth()}, nil
}

// refuse answers a request that exceeds the rate of its role. Such requests cost no tokens, so a role can make any number of
// them. Therefore all refusals of a role in a second share one line in the log and one row in the journal.
func (s *Service) refuse(req spool.Request, err error) spool.Answer {
	a := failure(0, err)
	s.bounds.refusals.Add(req.Caller, func(times int, since time.Time) {
		row := journalRow(req, since, captured{}, a)
		if times > 1 {
			row.Result.Detail = units.Plural(times, "%d {request was|requests were} refused since ") + since.Format(time.RFC3339) + "."
			row.Result.Hint = ""
		}
		s.cfg.Journal.Add(req.Database, row)
		s.event(req).Str("sqlstate", a.SQLState).AnErr("error", err).Int("requests", times).Msg("request refused")
	})
	return a
}

// waited reports whether a request used all its time to wait for room in the gates. It is false if the process did not
// stop in time (ptrace.ErrDeadline).
func waited(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ptrace.ErrDeadline)
}

// figures sets the columns of a queued result, or of a journal row, that describe the capture.
func (c captured) figures(r queue.Result) queue.Result {
	r.Engine, r.Pause, r.Depth = c.engine, c.pause, c.depth
	return r
}
