package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	"pg_stat_backtrace/worker/serve/queue"
	"pg_stat_backtrace/worker/serve/spool"
)

// Sizes of captures and answers, in bytes.
const (
	// copiedStack is the most that a capture copies of a stack, frameSize the size of a frame with its name and levels,
	// and lineSize its line or row in an answer.
	copiedStack = 1 << 20
	frameSize   = 512
	lineSize    = 256
)

// usualFrames is the number of frames that a token pays for: what a stack has that was captured without max_frames.
const usualFrames = unwind.DefaultMaxFrames

// bounds keep the use that roles make of the worker within limits.
type bounds struct {
	places   *limits.Gate // captures that run side by side
	captures *limits.Gate // and their bytes
	answers  *limits.Gate
	trees    *limits.Gate // readings of memory contexts
	barriers *limits.Gate // reads of the postmaster for barriers
	// summaries are summaries that are being added up.
	summaries *limits.Gate
	refusals  limits.Repeats
}

func newBounds(concurrency int) *bounds {
	return &bounds{
		places:   limits.NewGate(limits.Share(int64(cmp.Or(max(concurrency, 0), limits.Captures)))),
		captures: limits.NewGate(limits.Share(limits.CaptureBytes)),
		answers:  limits.NewGate(limits.Share(limits.AnswerBytes)),
		trees:    limits.MemoryTrees(),
		barriers: limits.One(), summaries: limits.NewGate(limits.Share(limits.Summaries)),
	}
}

func user(c authz.Caller) limits.Who {
	return limits.Who{Role: c.OID, Superuser: c.Superuser}
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
		return nil, limits.ErrBusy
	}
	memory, err := b.captures.Acquire(ctx, user(who), copiedStack+frames(o)*frameSize)
	if err != nil {
		place()
		return nil, limits.ErrBusy
	}
	// A capture that does not come back must not keep others from theirs.
	once := sync.OnceFunc(func() { memory(); place() })
	timer := time.AfterFunc(hung*cmp.Or(o.Deadline, snapshot.DefaultDeadline), once)
	return func() {
		timer.Stop()
		once()
	}, nil
}

// hung is a number of deadlines. A capture that takes longer probably never returns from the kernel.
const hung = 3

// answering waits until another answer about one process fits in.
func (s *Service) answering(ctx context.Context, c call) (done func(), err error) {
	return s.bounds.answering(ctx, caller(c.Request), c.options, 1)
}

// answering waits until another answer fits in, about so many processes.
func (b *bounds) answering(ctx context.Context, who authz.Caller, o capture.Options, processes int) (func(), error) {
	size := int64(max(processes, 1)) * (frames(o) + 8) * lineSize
	done, err := b.answers.Acquire(ctx, user(who), min(size, limits.MaxRows))
	if err != nil {
		return nil, limits.ErrBusy
	}
	return done, nil
}

// charge takes what a request costs before anything is done for it, also for what turns out to be an error: a token for
// each process that it names.
func (s *Service) charge(req spool.Request) error {
	if req.Superuser {
		return nil
	}
	return s.limiter.TakeAll(req.Caller, max(1, len(req.Targets)))
}

// chargeFrames takes what a stack costs beyond the usual.
func chargeFrames(l *limits.Limiter, who authz.Caller, depth int) {
	if extra := depth / usualFrames; extra > 0 && !who.Superuser {
		l.Charge(who.OID, float64(extra))
	}
}

// captured is the outcome of a capture, without its frames.
type captured struct {
	engine string
	pause  time.Duration
	depth  int
}

// take has a process captured when its turn comes, and hands the trace to render. The trace is freed then: its text is
// a tenth of it, and other captures wait.
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

// refuse answers a request that a role may not make so soon. Such requests cost the role nothing, so there may be any
// number of them: once a second one line of the log and one row of the journal stand for all.
func (s *Service) refuse(req spool.Request, err error) spool.Answer {
	a := failure(0, err)
	s.bounds.refusals.Add(req.Caller, func(times int, since time.Time) {
		row := journalRow(req, since, captured{}, a)
		if times > 1 {
			row.Result.Detail = fmt.Sprintf("%d requests were refused since %s.", times, since.Format(time.RFC3339))
			row.Result.Hint = ""
		}
		s.cfg.Journal.Add(req.Database, row)
		s.event(req).Str("sqlstate", a.SQLState).AnErr("error", err).Int("requests", times).Msg("request refused")
	})
	return a
}

// waited reports that a request spent its time waiting for its turn: neither the server nor the process asked about
// kept it from being answered.
func waited(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ptrace.ErrDeadline)
}

// figures are the columns of the table and the journal for a capture.
func (c captured) figures(r queue.Result) queue.Result {
	r.Engine, r.Pause, r.Depth = c.engine, c.pause, c.depth
	return r
}
