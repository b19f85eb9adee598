package cli

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm is a timer of the kernel (timerfd_create(2)). It replaces the timers of the Go runtime, which cause more
// context switches. A Go timer waits for whole milliseconds and then for the rest, and it also wakes the runtime's
// monitor thread. After a Go timer, a round continues in the time slice of the round before, which can end in the
// middle of a capture. On a busy machine, such interruptions were a third of all context switches.
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

// wait waits for d. It returns false if ctx ends before, or the timer fails.
func (a *alarm) wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	once := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	if unix.TimerfdSettime(a.fd, 0, &once, nil) != nil {
		return false // cannot happen with these arguments
	}
	forget := context.AfterFunc(ctx, func() { _ = a.file.SetReadDeadline(time.Unix(1, 0)) })
	defer forget()
	var rings [8]byte
	_, err := a.file.Read(rings[:])
	return err == nil && ctx.Err() == nil
}
