package capture

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pg_stat_backtrace/ptrace"
)

const (
	defaultDeadline = 3 * time.Second
	// patience is how long a process in uninterruptible sleep, which does not
	// stop before that ends, is given to end it: most such sleeps are short.
	patience = 300 * time.Millisecond
	// lookTime bounds the look at a thread without a stop where a stop was
	// impossible; at all threads it may take as long again as the stop did.
	lookTime = 500 * time.Millisecond
)

// NotStoppedError says that a process could be neither stopped nor seen without
// that. Errors.Is and As find both reasons.
type NotStoppedError struct {
	Stop    error // why it could not be stopped
	Observe error // why it could not be seen either
}

func (e *NotStoppedError) Error() string { return fmt.Sprintf("%v; %v", e.Stop, e.Observe) }

// Unwrap returns both reasons.
func (e *NotStoppedError) Unwrap() []error { return []error{e.Stop, e.Observe} }

// snapshot has the process copied: without a stop if that is asked for, or if
// a stop is impossible; then notStopped says why.
func snapshot(
	ctx context.Context, target ptrace.Target, o ptrace.Options, nonStop bool,
) (snap *ptrace.Snapshot, notStopped string, err error) {
	if nonStop {
		snap, err = ptrace.Observe(ctx, target, o)
		return snap, "", err
	}
	started := time.Now()
	deadline := o.Deadline
	if deadline <= 0 {
		deadline = defaultDeadline
	}
	o.Patience = patience
	for {
		snap, err = ptrace.Capture(ctx, target, o)
		if err == nil || !impossible(ctx, err) {
			return snap, "", err
		}
		look := o
		look.Deadline = deadline
		if !o.AllThreads {
			look.Deadline = min(deadline, lookTime)
		}
		seen, observeErr := ptrace.Observe(ctx, target, look)
		if observeErr == nil {
			return seen, reason(err), nil
		}
		o.Deadline = deadline - time.Since(started)
		if o.Deadline <= 0 || o.Patience == 0 || !errors.Is(err, ptrace.ErrDeadline) {
			return nil, "", &NotStoppedError{Stop: err, Observe: observeErr}
		}
		o.Patience = 0
	}
}

// impossible tells the errors that stand for a process that cannot be stopped.
func impossible(ctx context.Context, err error) bool {
	return ctx.Err() == nil &&
		(errors.Is(err, ptrace.ErrTraced) || errors.Is(err, ptrace.ErrDeadline) || errors.Is(err, ptrace.ErrDumping))
}

// reason words in short why a process was not stopped.
func reason(err error) string {
	var traced *ptrace.TracedError
	var late *ptrace.DeadlineError
	switch {
	case errors.As(err, &traced) && traced.Name != "":
		return fmt.Sprintf("traced by process %d (%s)", traced.Tracer, traced.Name)
	case errors.As(err, &traced):
		return fmt.Sprintf("traced by process %d", traced.Tracer)
	case errors.Is(err, ptrace.ErrDumping):
		return "it has crashed and is writing its core file"
	case errors.As(err, &late) && late.State == 'D':
		return "in uninterruptible sleep"
	case errors.As(err, &late):
		return fmt.Sprintf("no stop within %s", late.After.Round(time.Millisecond))
	}
	return err.Error()
}

// kernel is where in the kernel a thread was seen.
func kernel(th *ptrace.Thread) []string {
	if len(th.KernelStack) == 0 && th.WaitChannel != "" {
		return []string{th.WaitChannel}
	}
	return th.KernelStack
}
