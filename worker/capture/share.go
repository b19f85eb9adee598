package capture

import (
	"context"
	"errors"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/worker/trace"
)

// errUnfinished is what those get who shared a capture that ended in a panic.
var errUnfinished = errors.New("the capture did not end as it should")

// sharing lets callers that ask for the same at the same time share one
// capture. The first of them makes it, by itself: to hand it to a goroutine
// would cost as much as unwinding does.
type sharing struct {
	mu    sync.Mutex
	under map[requestKey]*sharedCapture
}

// requestKey is what callers must have in common to get the same answer.
type requestKey struct {
	target  ptrace.Target
	options Options
}

// sharedCapture is a capture under way.
type sharedCapture struct {
	callers int    // that wait for it, its maker included; guarded by sharing.mu
	cancel  func() // ends it
	done    chan struct{}

	trace *trace.Trace // valid when done is closed
	err   error
}

// do returns what a call of capture for q gives that was under way or is begun
// now. A caller that gives up leaves it to the others, and it ends with the
// last of them; the one that makes it stays until then.
func (s *sharing) do(ctx context.Context, q requestKey, capture func(context.Context) (*trace.Trace, error)) (
	*trace.Trace, error,
) {
	s.mu.Lock()
	if c := s.under[q]; c != nil {
		c.callers++
		s.mu.Unlock()
		select {
		case <-c.done:
			return c.trace, c.err
		case <-ctx.Done():
			s.leave(q, c)
			return nil, ctx.Err()
		}
	}
	// Not this caller's context: the others wait for the capture too.
	during, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	c := &sharedCapture{callers: 1, cancel: cancel, done: make(chan struct{}), err: errUnfinished}
	if s.under == nil {
		s.under = make(map[requestKey]*sharedCapture)
	}
	s.under[q] = c
	s.mu.Unlock()
	defer context.AfterFunc(ctx, func() { s.leave(q, c) })()
	defer s.finish(q, c)
	c.trace, c.err = capture(during)
	if c.err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return c.trace, c.err
}

// leave is for a caller that gives up. Who comes after the last of them begins anew.
func (s *sharing) leave(q requestKey, c *sharedCapture) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.callers--; c.callers == 0 {
		if s.under[q] == c {
			delete(s.under, q)
		}
		c.cancel()
	}
}

func (s *sharing) finish(q requestKey, c *sharedCapture) {
	s.mu.Lock()
	if s.under[q] == c {
		delete(s.under, q)
	}
	s.mu.Unlock()
	close(c.done)
}

// unreachable is the error of a capture whose process cannot be looked at.
func unreachable(pid int, since time.Time) error {
	return &ptrace.ObserveError{PID: pid, After: time.Since(since), Attempts: 1, Blocked: ptrace.ErrUnreachable}
}

// place waits for a place among the captures that run side by side. Release gives it to others. A capture that takes
// longer than the limit is taken for one that the kernel does not come back from, and loses its place at once.
func (c *Capturer) place(ctx context.Context, limit time.Duration) (release func(), err error) {
	if err := c.limit.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	once := sync.OnceFunc(func() { c.limit.Release(1) })
	timer := time.AfterFunc(limit, once)
	return func() {
		timer.Stop()
		once()
	}, nil
}
