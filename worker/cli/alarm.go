package cli

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm is a clock that wakes the program up (timerfd_create(2)). The timers of the Go runtime wait for whole
// milliseconds and then for the rest, wake its monitor as well, and hand the time slice of the last round on to the
// next, so that it ends in the middle of a capture: on a busy machine that was a third of all context switches.
type alarm struct {
	file *os.File
	fd   int
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	return &alarm{os.NewFile(uintptr(fd), "timerfd"), fd}, nil
}

func (a *alarm) close() { _ = a.file.Close() }

// wait waits for d, or until ctx ends, which it reports as false.
func (a *alarm) wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	once := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	if unix.TimerfdSettime(a.fd, 0, &once, nil) != nil {
		return false // not with these arguments
	}
	forget := context.AfterFunc(ctx, func() { _ = a.file.SetReadDeadline(time.Unix(1, 0)) })
	defer forget()
	var rings [8]byte
	_, err := a.file.Read(rings[:])
	return err == nil && ctx.Err() == nil
}
