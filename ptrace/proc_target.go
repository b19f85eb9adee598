package ptrace

import (
	"errors"
	"fmt"
	"pg_stat_backtrace/ptrace/procfs"

	"golang.org/x/sys/unix"
)

// Target is the process to capture. All fields except PID guard against a reuse of the id by another process. Capture
// checks them while the process cannot end.
type Target struct {
	PID       int
	StartTime uint64     // as procfs.Stat.StartTime; 0: any
	PPID      int        // 0: any
	UID       int        // real, effective and saved user; -1: any. Mind that the zero value is root.
	Held      *PidHandle // only this process; nil: any. The caller must not release it before the call returns.
}

const maxPID = 1<<31 - 1

// checkPID refuses numbers that cannot be the id of a process that this process may trace.
func checkPID(pid int) error {
	switch {
	case pid <= 0 || pid > maxPID:
		return fmt.Errorf("process %d: %w: must be between 1 and %d", pid, ErrInvalidPID, maxPID)
	case pid == unix.Getpid():
		return fmt.Errorf("process %d: %w", pid, ErrSelf)
	}
	// Signal 0 only checks whether pid exists: is it the main thread of a process?
	if err := unix.Tgkill(pid, pid, 0); !errors.Is(err, unix.ESRCH) {
		return nil
	}
	status, err := procfs.ReadStatus(pid)
	if err != nil || status.TGID == pid {
		return exitedError(pid)
	}
	if status.TGID == unix.Getpid() {
		return fmt.Errorf("process %d: %w: it is one of its threads", pid, ErrSelf)
	}
	return fmt.Errorf("process %d: %w: it is a thread of process %d", pid, ErrInvalidPID, status.TGID)
}

// readTarget reads the process's state, and returns an error if the process cannot be stopped.
func readTarget(pid int) (procfs.Stat, error) {
	stat, err := procfs.ReadStat(pid)
	switch {
	case errors.Is(err, procfs.ErrGone):
		if unix.Kill(pid, 0) == nil || errors.Is(unix.Kill(pid, 0), unix.EPERM) {
			return stat, &PermissionError{pid, ReasonHidden, "it is not visible in /proc (mount option hidepid)"}
		}
		return stat, exitedError(pid)
	case err != nil:
		return stat, err
	case stat.Flags&procfs.KernelThread != 0:
		return stat, &PermissionError{pid, ReasonKernelThread, "it is a thread of the kernel and has no user stack"}
	case isDead(stat.State) && stat.Threads <= 1:
		return stat, exitedError(pid)
	}
	return stat, nil
}

// mainThreadRuns returns a MainThreadError if the main thread has exited before other threads.
func mainThreadRuns(stat *procfs.Stat) error {
	if !isDead(stat.State) || stat.Threads <= 1 {
		return nil
	}
	return &MainThreadError{PID: stat.PID, Threads: stat.Threads - 1}
}

//go:nosplit
//go:norace
func isDead(state byte) bool { return state == 'Z' || state == 'X' || state == 'x' }

// isEnding reports whether a thread that does not look dead yet is exiting. After a process has lost its memory, the
// kernel gives its /proc files to root, and denies accesses that it would have allowed before.
func isEnding(pid, tid int) bool {
	stat, err := procfs.ReadTaskStat(pid, tid)
	return errors.Is(err, procfs.ErrGone) || err == nil && stat.Flags&procfs.Exiting != 0
}

// kernelPlace returns where in the kernel a thread sleeps. It is empty as far as the kernel does not show it.
func kernelPlace(pid, tid int) (channel string, stack []string) {
	channel, _ = procfs.WaitChannel(pid, tid)
	stack, _ = procfs.KernelStack(pid, tid)
	return channel, stack
}

// identify returns a RecycledError if a process is not the target.
func (t *Target) identify(now *procfs.Stat) error {
	if err := t.compare(now); err != nil {
		return err
	}
	return t.compareUser()
}

// compare returns a RecycledError if start time or parent differ from the target's.
func (t *Target) compare(now *procfs.Stat) error {
	switch {
	case t.StartTime != 0 && now.StartTime != t.StartTime:
		return mismatch(t.PID, "start time", t.StartTime, now.StartTime)
	case t.PPID != 0 && now.PPID != t.PPID:
		return mismatch(t.PID, "parent", uint64(t.PPID), uint64(now.PPID))
	}
	return nil
}

// compareUser returns a RecycledError if the process's user differs from the target's.
func (t *Target) compareUser() error {
	if t.UID < 0 {
		return nil
	}
	status, err := procfs.ReadStatus(t.PID)
	if err != nil {
		return exitedError(t.PID)
	}
	for _, uid := range status.UID[:3] {
		if uid != t.UID {
			return mismatch(t.PID, "user", uint64(t.UID), uint64(uid))
		}
	}
	return nil
}

func mismatch(pid int, property string, want, got uint64) error {
	return &RecycledError{PID: pid, Property: property, Want: want, Got: got}
}
