package capture

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

const (
	// patience is how long a capture waits for the stop of a process in uninterruptible sleep. Such a process stops
	// only after the sleep, and most of these sleeps are short.
	patience = 300 * time.Millisecond
	// lookTime bounds the capture of a main thread without a stop. All threads have the same deadline as a stop.
	lookTime = 500 * time.Millisecond
)

// NotStoppedError means that a process could not be stopped, and could not be captured without a stop either.
// errors.Is and errors.As find both causes.
type NotStoppedError struct {
	Stop    error // why the stop failed
	Observe error // why the capture without a stop failed
}

func (e *NotStoppedError) Error() string { return fmt.Sprintf("%v; %v", e.Stop, e.Observe) }

// Unwrap returns both causes.
func (e *NotStoppedError) Unwrap() []error { return []error{e.Stop, e.Observe} }

// takeSnapshot copies the process. It copies without a stop if nonStop is set, or if a stop is impossible. If a stop
// was impossible, notStopped has the reason.
func takeSnapshot(
	ctx context.Context, target process.Target, o snapshot.Options, nonStop bool,
) (snap *snapshot.Snapshot, notStopped string, err error) {
	if nonStop {
		snap, err = observe.Observe(ctx, target, o)
		return snap, "", err
	}
	started := time.Now()
	deadline := o.Deadline
	if deadline <= 0 {
		deadline = snapshot.DefaultDeadline
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
		seen, observeErr := observe.Observe(ctx, target, look)
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

// impossible reports whether err means that the process cannot be stopped now: it is traced, does not stop in time, or
// writes a core file.
func impossible(ctx context.Context, err error) bool {
	return ctx.Err() == nil &&
		(errors.Is(err, process.ErrTraced) || errors.Is(err, ptrace.ErrDeadline) || errors.Is(err, ptrace.ErrDumping))
}

// reason returns a short text that says why a process was not stopped.
func reason(err error) string {
	var traced *process.TracedError
	var late *ptrace.DeadlineError
	switch {
	case errors.As(err, &traced) && traced.Tracer == 0:
		return "traced by a process in another PID namespace"
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

// kernel returns the kernel functions in which a thread was, or its wait channel if the stack is unknown.
func kernel(th *snapshot.Thread) []string {
	if len(th.KernelStack) == 0 && th.WaitChannel != "" {
		return []string{th.WaitChannel}
	}
	return th.KernelStack
}
