package ptrace

import (
	"context"
	"errors"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/ptrace/thread"
)

// Capture stops the process t, copies the registers and the stack of its main thread (or of all threads), and resumes
// it. When Capture returns, the target is detached. Only if a system call of the capture has not returned (see
// DeadlineError.During), the detach happens later. Capture is safe for concurrent use. Captures of the same process
// wait for each other.
//
// Errors: ErrInvalidPID, ErrSelf, ErrExited, ErrNotPermitted, ErrTraced, ErrDumping, ErrRecycled, ErrDeadline and,
// wrapped, the error of ctx.
func Capture(ctx context.Context, t process.Target, o snapshot.Options) (*snapshot.Snapshot, error) {
	return captureWith(ctx, t, o, nil)
}

// captureWith is Capture with a function for tests, called at each step outside of the target's pause; nil: none.
func captureWith(
	ctx context.Context, t process.Target, o snapshot.Options, hook func(step),
) (*snapshot.Snapshot, error) {
	o = o.WithDefaults()
	if err := process.CheckPID(t.PID); err != nil {
		return nil, err
	}
	thread.BeginWork()
	defer thread.EndWork()
	started := time.Now()
	const attempts = 3
	for range attempts {
		f := &captureCall{
			ctx: ctx, target: t, options: o, hook: hook, started: started, limit: o.Deadline, done: make(chan struct{}),
		}
		if err := f.enter(); err != nil {
			return nil, err
		}
		f.start()
		snapshot, err := f.wait()
		if !errors.Is(err, errAgain) {
			return snapshot, err
		}
		o.MapsSnapshot = nil
	}
	return nil, &process.RecycledError{PID: t.PID, Property: "program"}
}
