package capture

import (
	"context"
	"errors"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// errUnfinished is the error for callers that shared a capture which ended in a panic.
var errUnfinished = errors.New("the shared capture ended in a panic")

// sharing lets concurrent callers with the same request share one capture, until its snapshot is taken. Callers that
// come later would get a stack from before their calls. The first caller runs the capture in its own goroutine, because
// starting another goroutine would take as long as unwinding.
type sharing struct {
	mu     sync.Mutex
	active map[requestKey]*sharedCapture
}

// requestKey has everything that callers must have in common to share a capture.
type requestKey struct {
	target  process.Target // without Rights, a pointer that differs between callers
	options Options
	rights  process.Rights
}

func newRequestKey(target process.Target, o Options) requestKey {
	q := requestKey{target: target, options: o}
	if target.Rights != nil {
		q.target.Rights, q.rights = nil, *target.Rights
	}
	return q
}

// sharedCapture is a capture in progress.
type sharedCapture struct {
	callers int    // callers that wait for the capture, the first one included; guarded by sharing.mu
	cancel  func() // cancels the capture
	done    chan struct{}

	trace *backtrace.Trace // valid when done is closed
	err   error
}

// sharedWork is a capture. It calls taken after each snapshot. From the first call on, later callers do not join.
type sharedWork func(ctx context.Context, taken func()) (*backtrace.Trace, error)

// do joins the capture in progress for q, or runs capture if there is none. A canceled caller leaves, and the capture
// continues for the others. When the last caller has left, do cancels the capture. The first caller always stays until
// the capture ends.
func (s *sharing) do(ctx context.Context, q requestKey, capture sharedWork) (*backtrace.Trace, error) {
	s.mu.Lock()
	if c := s.active[q]; c != nil {
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
	// This is not the caller's context, because other callers wait for the capture too.
	during, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	c := &sharedCapture{callers: 1, cancel: cancel, done: make(chan struct{}), err: errUnfinished}
	if s.active == nil {
		s.active = make(map[requestKey]*sharedCapture)
	}
	s.active[q] = c
	s.mu.Unlock()
	defer context.AfterFunc(ctx, func() { s.leave(q, c) })()
	defer s.finish(q, c)
	c.trace, c.err = capture(during, func() { s.remove(q, c) })
	if c.err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return c.trace, c.err
}

// leave removes a cancelled caller. After the last one has left, a new call starts a new capture.
func (s *sharing) leave(q requestKey, c *sharedCapture) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.callers--; c.callers == 0 {
		if s.active[q] == c {
			delete(s.active, q)
		}
		c.cancel()
	}
}

func (s *sharing) finish(q requestKey, c *sharedCapture) {
	s.remove(q, c)
	close(c.done)
}

// remove ends the joining: further callers start a capture of their own.
func (s *sharing) remove(q requestKey, c *sharedCapture) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active[q] == c {
		delete(s.active, q)
	}
}

// unreachable returns the error for a process whose memory could not be read since a time.
func unreachable(pid int, since time.Time) error {
	return &observe.Error{PID: pid, After: time.Since(since), Attempts: 1, Blocked: process.ErrUnreachable}
}

// acquire waits for a place among the concurrent captures. release frees it. A capture that takes longer than limit is
// assumed to block in the kernel, and loses its place.
func (c *Capturer) acquire(ctx context.Context, limit time.Duration) (release func(), err error) {
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
