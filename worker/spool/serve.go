package spool

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// loop is the state of one Serve.
type loop struct {
	s        *Spool
	handle   func(context.Context, Request) Answer
	overflow bool
	lost     bool
	due      time.Time // of the next housekeeping
}

func (l *loop) event(ctx context.Context, e event) {
	switch {
	case e.overflow:
		l.overflow = true
	case e.lost:
		l.lost = true
	case e.changed:
		l.due = time.Time{}
	case e.written && strings.HasSuffix(e.name, reqSuffix):
		l.request(ctx, e.name, true)
	case e.read && strings.HasSuffix(e.name, repSuffix):
		l.s.consumed(e.name)
	}
}

// request takes a request from the directory. Closed says that its writer has
// closed it; otherwise one that is not complete is left alone for a while.
func (l *loop) request(ctx context.Context, name string, closed bool) {
	id := strings.TrimSuffix(name, reqSuffix)
	data, age, err := l.s.take(name, closed)
	if err != nil || data == nil {
		l.s.cfg.report(err)
		return
	}
	// Counted back from now, so that the deadline is one of the monotonic clock.
	var req Request
	for _, k := range l.s.keys.accepted() {
		if req, err = parse(id, data, k, time.Now().Add(-age)); err == nil {
			break
		}
	}
	switch {
	case err != nil:
		l.s.cfg.report(err)
	case time.Until(req.Deadline) <= 0: // the caller has gone
	case l.s.pending.Add(1) > int64(l.s.cfg.pending()):
		l.s.pending.Add(-1)
		l.s.deliver(req, Busy())
	default:
		l.s.running.Go(func() {
			defer l.s.pending.Add(-1)
			l.s.deliver(req, l.answer(ctx, req))
		})
	}
}

// answer waits for its turn and has the handler answer.
func (l *loop) answer(ctx context.Context, req Request) (a Answer) {
	ctx, cancel := req.context(ctx)
	defer cancel()
	select {
	case l.s.slots <- struct{}{}:
		defer func() { <-l.s.slots }()
	case <-ctx.Done():
		return Busy()
	}
	defer func() {
		if r := recover(); r != nil {
			l.s.cfg.report(fmt.Errorf("request %s: panic: %v\n%s", req.ID, r, debug.Stack()))
			a = failure("XX000", "internal error of the pg_stat_backtrace worker", "Its log says more.")
		}
	}()
	return l.handle(ctx, req)
}

// Busy is the answer to a request that waited for its turn in vain.
func Busy() Answer {
	return failure("53400", "too many requests are waiting for the pg_stat_backtrace worker", "Ask again later.")
}

// take reads and removes a request file, and returns its age. What is no
// request is removed and reported; nil without an error is a file that is not
// there (any more), or not complete yet.
func (s *Spool) take(name string, closed bool) ([]byte, time.Duration, error) {
	if !isUUID(strings.TrimSuffix(name, reqSuffix)) {
		return nil, 0, s.reject(name, errors.New("not named after a UUID"))
	}
	fd, err := unix.Openat(s.dir.fd(), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, 0, nil
	} else if err != nil { // a symbolic link, a socket, no permission
		return nil, 0, s.reject(name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, 0, s.reject(name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxRequest {
		return nil, 0, s.reject(name, fmt.Errorf("mode %o, %d bytes", st.Mode, st.Size))
	}
	// A clock that was set back makes an age negative, one set forward makes it large: then a call in flight is lost.
	age := max(0, time.Since(time.Unix(st.Mtim.Unix())))
	buf := make([]byte, st.Size+1) // it may have grown; what is not whole is rejected below
	n, err := unix.Read(fd, buf)
	switch complete := n > 0 && buf[n-1] == '\n'; {
	case err != nil:
		return nil, 0, s.reject(name, err)
	case !complete && !closed && age < settle:
		return nil, 0, nil
	case !complete:
		s.notice() // a full file system cuts requests short
		return nil, 0, s.reject(name, fmt.Errorf("%d bytes, not a whole line", n))
	}
	return buf[:n], age, s.dir.unlink(name)
}

// reject removes what is no request.
func (s *Spool) reject(name string, why error) error {
	err := s.dir.unlink(name)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(s.dir.fd(), name, unix.AT_REMOVEDIR)
	}
	return errors.Join(fmt.Errorf("%w %q: %w", ErrBadRequest, name, why), err)
}
