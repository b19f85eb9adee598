package node

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// watch starts a goroutine that waits for the end of a process, without polling, and sends an event then. It returns a function
// that ends the watch; nil: the kernel cannot watch a process in this way (before Linux 5.10).
func (s *supervisor) watch(ctx context.Context, k key) (end func()) {
	fd, err := unix.PidfdOpen(k.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	file := os.NewFile(uintptr(fd), "process")
	conn, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil
	}
	go func() {
		defer func() { _ = file.Close() }()
		err := conn.Read(func(fd uintptr) bool {
			ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(ready, 0)
			return err == nil && n > 0 || hasEnded(k)
		})
		if err != nil {
			return // endWatch was called
		}
		select {
		case s.events <- event{key: k, left: true}:
		case <-ctx.Done():
		}
	}()
	return func() { _ = file.Close() }
}

// endWatch ends the watch for the end of a cluster's postmaster.
func (c *cluster) endWatch() {
	if c.unwatch != nil {
		c.unwatch()
		c.unwatch = nil
	}
}

// leaveEnded calls leave for each running cluster whose postmaster has ended and whose end no watch would report.
func (s *supervisor) leaveEnded() {
	for k, c := range s.clusters {
		if c.phase == running && c.unwatch == nil && hasEnded(k) {
			s.scan.forget(k.pid)
			s.leave(k, c)
		}
	}
}

// hasEnded reports whether a process has ended.
func hasEnded(k key) bool { return process.ID{PID: k.pid, StartTime: k.start}.Ended() }
