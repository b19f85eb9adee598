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

// errUnfinished is the error for callers that share a capture that ended in a panic.
var errUnfinished = errors.New("the shared capture ended in a panic")

// sharing lets concurrent callers with the same request share one capture. A caller can join until the snapshot is
// taken: afterwards it would get a stack from before its call. The first caller runs the capture in its own goroutine,
// because starting another goroutine would take as long as unwinding.
type sharing struct {
	mu     sync.Mutex
	active map[requestKey]*sharedCapture
}

// requestKey has all values that must be equal for callers to share a capture.
type requestKey struct {
	target  process.Target // with Rights nil: this pointer differs between callers, so rights has the value
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

// sharedWork is the function that captures. It calls the callback taken after each snapshot. After the first call of
// taken, no caller can join the capture.
type sharedWork func(ctx context.Context, taken func()) (*backtrace.Trace, error)

// do joins the capture in progress for q. If there is none, do calls the function capture. If a caller's context is
// canceled, the caller returns and the capture continues for the others. When the contexts of all callers are canceled,
// do cancels the capture. The first caller returns only when the capture has ended.
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
	// The capture does not use the caller's context, because other callers wait for the capture too.
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

// leave removes a cancelled caller. After the last caller it cancels the capture, and a new call starts a new capture.
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

// remove makes further callers start a capture of their own instead of joining c.
func (s *sharing) remove(q requestKey, c *sharedCapture) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active[q] == c {
		delete(s.active, q)
	}
}

// unreachable returns the error for a process whose memory could not be read from the time since until now.
func unreachable(pid int, since time.Time) error {
	return &observe.Error{PID: pid, After: time.Since(since), Attempts: 1, Blocked: process.ErrUnreachable}
}

// acquire waits until fewer captures than Config.Concurrency run, and takes a place. The function release that it
// returns gives the place back. A capture that takes longer than limit is assumed to block in the kernel, and loses its
// place.
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
