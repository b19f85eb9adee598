package ptrace

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The errors of Capture besides those of package process.
var (
	// ErrDeadline: the target could not be stopped in time; see DeadlineError. The target has been detached.
	ErrDeadline = errors.New("could not be stopped in time")
	// ErrDumping: the target has crashed and is writing its core file. It is not stopped, because a stop would end
	// the file.
	ErrDumping = errors.New("is writing its core file")
)

// DeadlineError describes the state of a target that did not stop. It is an ErrDeadline.
type DeadlineError struct {
	PID     int
	After   time.Duration // time from the call to the error
	State   byte          // as process.Stat.State; 'D' is uninterruptible sleep; 0 if unknown
	Channel string        // the function of the kernel in which the target sleeps, "" if unknown
	During  string        // why the capture did not end in time, for a message; "" if the target did not stop
}

func (e *DeadlineError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "process %d: %v (%v", e.PID, ErrDeadline, e.After.Round(time.Millisecond))
	if e.State != 0 {
		fmt.Fprintf(&b, ", state %c", e.State)
	}
	if e.Channel != "" {
		fmt.Fprintf(&b, " in %s", e.Channel)
	}
	if e.During != "" {
		fmt.Fprintf(&b, ", %s", e.During)
	}
	b.WriteByte(')')
	return b.String()
}

// Unwrap makes errors.Is(err, ErrDeadline) true.
func (e *DeadlineError) Unwrap() error { return ErrDeadline }
