package spool

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/limits"
)

// loop has the state of one call of Spool.Serve.
type loop struct {
	s        *Spool
	handle   func(context.Context, Request) Answer
	overflow bool      // the kernel has dropped events; see event
	lost     bool      // the directory was removed or moved
	due      time.Time // time of the next housekeeping
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
		l.s.removeFetched(e.name)
	}
}

// request takes a request from the directory, and runs it. The parameter closed is set if an inotify event has reported
// that the server has closed the file after writing. If closed is not set, an incomplete request stays in the directory
// until it is older than settle.
func (l *loop) request(ctx context.Context, name string, closed bool) {
	id := strings.TrimSuffix(name, reqSuffix)
	data, written, err := l.s.take(name, closed)
	if err != nil || data == nil {
		l.s.cfg.report(err)
		return
	}
	// The time is computed back from now, so that the deadline uses the monotonic clock. If the clock was set back
	// since the request was written, the age is negative and counts as 0. If the clock was set forward, the age is
	// large, and the call counts as too old.
	begun := time.Now().Add(-max(0, time.Since(written)))
	var req Request
	for _, k := range l.s.keys.accepted() {
		if req, err = parse(id, data, k, begun); err == nil {
			break
		}
	}
	switch {
	case err != nil:
		l.s.cfg.report(err)
	case time.Until(req.Deadline) <= 0: // the caller no longer waits
	default:
		if c := l.s.calls.begin(ctx, &req, written, closed); c != nil {
			l.admit(c, req, int64(len(data)))
		}
	}
}

// admit runs a request of size bytes. If there are too many requests, it delivers an error at once.
func (l *loop) admit(c *call, req Request, size int64) {
	place, ok := l.s.pending.Try(c.who, 1)
	if ok {
		var memory func()
		if memory, ok = l.s.memory.Try(c.who, size); ok {
			l.run(c, req, func() { memory(); place() })
			return
		}
		place()
	}
	c.cancel()
	l.s.deliver(c, req, Busy())
}

// finish waits until all running requests have their answers and no caller looks for an answer any more. The caller of
// finish must not remove the pid file before, because SQL calls find their answers with it. The extension makes no new
// requests meanwhile, because the file ready is missing.
func (l *loop) finish(ctx context.Context) error {
	const pause = 10 * time.Millisecond
	idle := make(chan struct{})
	go func() {
		l.s.running.Wait()
		close(idle)
	}()
	unhurried := context.WithoutCancel(ctx)
	for !l.lost {
		select {
		case <-idle:
			if !l.s.calls.awaited(time.Now()) {
				return nil
			}
		default:
		}
		if err := l.s.watch.next(unhurried, time.Now().Add(pause), func(e event) { l.event(ctx, e) }); err != nil {
			return err
		}
	}
	return nil
}

// abandonLate waits for the running requests for the time patience, and then abandons the others.
func (l *loop) abandonLate() {
	idle := make(chan struct{})
	go func() {
		l.s.running.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-time.After(patience):
		l.s.calls.abandonAll()
	}
}

// overdue is the time for which a handler may run after its context has ended, before the call gets an error.
const overdue = 300 * time.Millisecond

// run runs a request in a goroutine, and calls the callback free at the end. A handler may block for ever, because the
// kernel may never finish reading a process's memory. The call then gets an error, and run calls free although the
// handler still runs.
func (l *loop) run(c *call, req Request, free func()) {
	l.s.running.Add(1)
	end := sync.OnceFunc(func() {
		if slot := c.slot.Load(); slot != nil {
			(*slot)()
		}
		free()
		l.s.running.Done()
	})
	stop := context.AfterFunc(c.ctx, func() {
		timer := time.NewTimer(overdue)
		defer timer.Stop()
		select {
		case <-c.ended:
		case <-timer.C:
			l.s.deliver(c, req, failure("55000", "the pg_stat_backtrace worker could not finish the request in time",
				"Retry without the process that may hang in the kernel."))
			end()
		}
	})
	go func() {
		defer end()
		defer c.cancel()
		defer stop()
		defer close(c.ended)
		if !l.s.delivered(c, req, l.answer(c, req)) {
			l.s.delivered(c, req, internalError())
		}
	}()
}

// answer waits for a slot, calls the handler, and returns its answer. If there is no slot in time, it returns Busy.
func (l *loop) answer(c *call, req Request) (a Answer) {
	done, err := l.s.slots.Acquire(c.ctx, c.who, 1)
	if err != nil {
		return Busy()
	}
	done = sync.OnceFunc(done)
	c.slot.Store(&done)
	defer done()
	defer func() {
		if r := recover(); r != nil {
			l.s.cfg.report(fmt.Errorf("request %s: panic: %v\n%s", req.ID, r, debug.Stack()))
			a = internalError()
		}
	}()
	return l.handle(c.ctx, req)
}

// delivered calls deliver for an answer. It returns false if deliver panics, for example while it encodes the answer.
func (s *Spool) delivered(c *call, req Request, a Answer) bool {
	err := host.Catch("the delivery of an answer", func() error {
		s.deliver(c, req, a)
		return nil
	})
	if err != nil {
		s.cfg.report(fmt.Errorf("request %s: %w", req.ID, err))
	}
	return err == nil
}

// internalError is the answer to a request whose handler panicked.
func internalError() Answer {
	return failure("XX000", "internal error of the pg_stat_backtrace worker", "See the log of the worker.")
}

// Busy returns the answer to a request for which there was no slot or no room.
func Busy() Answer {
	return failure(limits.SQLState, limits.ErrBusy.Message, limits.ErrBusy.Hint)
}

// take reads and removes a request file. It also returns the time when the file was written. It removes an invalid file
// and returns an error that wraps ErrBadRequest. If the file is missing or not complete yet, data and error are nil. If this process
// lacks descriptors or memory, the file stays for the next sweep.
// The parameter closed has the same meaning as in the method request.
func (s *Spool) take(name string, closed bool) (data []byte, written time.Time, err error) {
	if !isUUID(strings.TrimSuffix(name, reqSuffix)) {
		return nil, written, s.reject(name, errors.New("not named after a UUID"))
	}
	fd, err := unix.Openat(s.dir.fd(), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, written, nil
	} else if err != nil { // the file is a symbolic link or a socket, or may not be read
		return nil, written, s.reject(name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, written, s.reject(name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > limits.MaxRequest {
		return nil, written, s.reject(name, fmt.Errorf("mode %o, %d bytes", st.Mode, st.Size))
	}
	written = time.Unix(st.Mtim.Unix())
	buf := make([]byte, st.Size+1) // the file may have grown; an incomplete line is rejected below
	n, err := unix.Read(fd, buf)
	switch complete := n > 0 && buf[n-1] == '\n'; {
	case err != nil:
		return nil, written, s.reject(name, err)
	case !complete && !closed && time.Since(written) < settle:
		return nil, written, nil
	case !complete:
		s.recheckRoom() // a full file system may have truncated the request
		return nil, written, s.reject(name, fmt.Errorf("%d bytes, not a whole line", n))
	}
	return buf[:n], written, s.dir.unlink(name)
}

// reject removes an invalid file. It returns an error that wraps ErrBadRequest and the reason (the parameter why). If the reason is a
// shortage of this process, the file is not invalid and stays.
func (s *Spool) reject(name string, why error) error {
	for _, shortage := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EINTR} {
		if errors.Is(why, shortage) {
			return fmt.Errorf("request %q is tried again: %w", name, why)
		}
	}
	err := s.dir.unlink(name)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(s.dir.fd(), name, unix.AT_REMOVEDIR)
	}
	return errors.Join(fmt.Errorf("%w %q: %w", ErrBadRequest, name, why), err)
}
