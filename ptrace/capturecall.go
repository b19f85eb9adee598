package ptrace

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/ptrace/thread"
)

// stopGrace is how long a call waits, after its deadline or cancellation, for the tracing thread to detach and clean up.
const stopGrace = 300 * time.Millisecond

// captureCall is one call of Capture. A separate goroutine, locked to one thread, makes all ptrace requests. The caller's
// goroutine only waits for it, so that it can return even if a request never returns.
type captureCall struct {
	ctx     context.Context //nolint:containedctx // it lives as long as the call
	target  process.Target
	options snapshot.Options
	hook    func(step) // see captureWith
	started time.Time

	limit     time.Duration // deadline of this capture, counted from started; identify may shorten it
	abandoned atomic.Bool   // wait returned before the capture ended
	quit      uint32        // 1: ctx ended while the method wait ran; thread.IsSet reads it

	done     chan struct{} // closed last; snapshot and err are valid then
	snapshot *snapshot.Snapshot
	err      error
}

// activeCaptures are the running captures by process id. A process can have only one tracer, so captures of the same
// process wait for each other. If the thread of a capture hangs in the kernel, further captures of the process return
// an error instead of hanging too.
//
//nolint:gochecknoglobals // the kernel's limit is per process, however many users this package has
var activeCaptures = struct {
	sync.Mutex

	byPID map[int]*captureCall
}{byPID: map[int]*captureCall{}}

// enter waits until no other capture of the process is active.
func (f *captureCall) enter() error {
	for {
		if err := f.canceled(); err != nil {
			return err
		}
		activeCaptures.Lock()
		other := activeCaptures.byPID[f.target.PID]
		if other == nil {
			activeCaptures.byPID[f.target.PID] = f
		}
		activeCaptures.Unlock()
		switch {
		case other == nil:
			return nil
		case other.abandoned.Load():
			return f.deadlineError("an earlier capture of it has not come back from the kernel")
		}
		timer := time.NewTimer(time.Until(f.started.Add(f.options.Deadline)))
		select {
		case <-other.done:
			timer.Stop()
		case <-f.ctx.Done():
			timer.Stop()
		case <-timer.C:
			return f.deadlineError("other captures of it went first")
		}
	}
}

// canceled returns nil as long as ctx has not ended. Afterwards it returns the error of ctx together with the process id.
func (f *captureCall) canceled() error {
	err := f.ctx.Err()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", f.deadlineError("the caller's deadline"), err)
	}
	return fmt.Errorf("process %d: capture canceled: %w", f.target.PID, context.Cause(f.ctx))
}

// expired returns an error if the capture must end: it is canceled or its deadline has passed.
func (f *captureCall) expired() error {
	if err := f.canceled(); err != nil {
		return err
	}
	if time.Since(f.started) >= f.limit {
		return f.deadlineError("")
	}
	return nil
}

func (f *captureCall) deadlineError(during string) error {
	e := &DeadlineError{PID: f.target.PID, After: time.Since(f.started), During: during}
	if s, err := process.ReadStat(e.PID); err == nil {
		e.State = s.State
	}
	if channel, err := process.WaitChannel(e.PID, e.PID); err == nil {
		e.Channel = channel
	}
	return e
}

// wait waits in the caller's goroutine for the result. It gives up stopGrace after the deadline or the cancellation. Then it
// returns an error and sets abandoned.
func (f *captureCall) wait() (*snapshot.Snapshot, error) {
	timer := time.NewTimer(time.Until(f.started.Add(f.options.Deadline)) + stopGrace)
	defer timer.Stop()
	select {
	case <-f.done:
		return f.snapshot, f.err
	case <-timer.C:
	case <-f.ctx.Done():
		atomic.StoreUint32(&f.quit, 1)
		timer.Reset(stopGrace)
		select {
		case <-f.done:
			return f.snapshot, f.err
		case <-timer.C:
		}
	}
	f.abandoned.Store(true)
	if err := f.canceled(); err != nil {
		return nil, err
	}
	return nil, f.deadlineError("the kernel did not come back")
}

// idleWorkers hands captures to idle goroutines. Up to maxIdle goroutines wait for a further capture. Their stacks
// already have the size that a capture needs.
//
//nolint:gochecknoglobals // it belongs to no caller
var idleWorkers = make(chan *captureCall)

const maxIdle = 4

var idleCount atomic.Int32 //nolint:gochecknoglobals // goroutines in idleWorkers

// start starts the capture on an idle goroutine or on a new one.
func (f *captureCall) start() {
	thread.JoinWork()
	select {
	case idleWorkers <- f:
	default:
		go captureWorker(f)
	}
}

// captureWorker is the goroutine that runs captures. If it could not detach a target, it ends with its thread locked. The
// runtime then ends the thread, and the kernel detaches the target because its tracer has ended.
func captureWorker(f *captureCall) {
	for f.run() {
		if idleCount.Add(1) > maxIdle {
			idleCount.Add(-1)
			return
		}
		f = <-idleWorkers
		idleCount.Add(-1)
	}
}

// run captures on a locked thread. If it returns false, the goroutine must end without unlocking the thread.
func (f *captureCall) run() (clean bool) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The runtime never ends the main thread, so the capture must run on another one. The new goroutine cannot get the
		// main thread while this goroutine is locked to it.
		go captureWorker(f)
		<-f.done
		runtime.UnlockOSThread()
		return true
	}
	defer func() {
		if clean {
			runtime.UnlockOSThread() // first, because a waiting goroutine may be given this thread
			f.finish()
			return
		}
		go f.finishAfter(unix.Gettid())
	}()
	return f.capture()
}

// finish makes the result available to wait, and lets the next capture of the process begin.
func (f *captureCall) finish() {
	activeCaptures.Lock()
	delete(activeCaptures.byPID, f.target.PID)
	activeCaptures.Unlock()
	close(f.done)
	thread.EndWork()
}

// finishAfter calls finish when the thread tid of this process has ended, or after 10 s.
func (f *captureCall) finishAfter(tid int) {
	const most = 10 * time.Second
	for begin := time.Now(); time.Since(begin) < most; time.Sleep(50 * time.Microsecond) {
		if errors.Is(unix.Tgkill(unix.Getpid(), tid, 0), unix.ESRCH) {
			break
		}
	}
	f.finish()
}

// capture sets f.snapshot and f.err. It returns true if its thread may serve further captures: the target is detached, no
// panic occurred, and the thread's priority is restored. A panic becomes f.err.
func (f *captureCall) capture() (clean bool) {
	s := newSession(f)
	defer func() {
		problem := recover()
		clean = s.release() && problem == nil
		s.relax()
		clean = clean && !s.urgent
		if problem != nil {
			f.snapshot, f.err = nil, fmt.Errorf("process %d: panic during capture: %v\n%s",
				f.target.PID, problem, debug.Stack())
		}
		if clean {
			s.recycle()
		} else {
			s.arena.free()
		}
	}()
	f.snapshot, f.err = s.capture()
	return true
}
