package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Target is the process to capture. The fields after PID guard against a reuse of the id by another process. Capture
// compares them with the process while it is attached.
type Target struct {
	PID       int
	StartTime uint64  // as process.Stat.StartTime; 0: any
	PPID      int     // 0: any
	UID       int     // real, effective and saved user; -1: any. Mind that the zero value is root.
	Held      *Handle // the expected process; nil: any. The caller must not release it before the capture returns.
	// Rights are the rights that the process must have; nil: any. Set them if another user has requested the capture,
	// because this process may have capabilities that the user lacks.
	Rights *Rights
	// Proof has the state and the rights of the process. As long as Proof.Holds returns true, they are not read again;
	// nil: no proof.
	Proof *Proof
}

const maxPID = 1<<31 - 1

// CheckPID returns ErrInvalidPID, ErrSelf or ErrExited unless pid is the id of another live process.
func CheckPID(pid int) error {
	switch {
	case pid <= 0 || pid > maxPID:
		return fmt.Errorf("process %d: %w: must be between 1 and %d", pid, ErrInvalidPID, maxPID)
	case pid == unix.Getpid():
		return fmt.Errorf("process %d: %w", pid, ErrSelf)
	}
	// Signal 0 only checks whether pid is the id of a process's main thread.
	if err := unix.Tgkill(pid, pid, 0); !errors.Is(err, unix.ESRCH) {
		return nil
	}
	status, err := ReadStatus(pid)
	if err != nil || status.TGID == pid {
		return Exited(pid)
	}
	if status.TGID == unix.Getpid() {
		return fmt.Errorf("process %d: %w: it is one of its threads", pid, ErrSelf)
	}
	return fmt.Errorf("process %d: %w: it is a thread of process %d", pid, ErrInvalidPID, status.TGID)
}

// ReadTarget reads the process's stat file. It returns an error for an ended, a kernel's or a hidden process.
func ReadTarget(pid int) (Stat, error) {
	stat, err := ReadStat(pid)
	switch {
	case errors.Is(err, ErrGone):
		if unix.Kill(pid, 0) == nil || errors.Is(unix.Kill(pid, 0), unix.EPERM) {
			return stat, &PermissionError{pid, ReasonHidden, "it is not visible in /proc (mount option hidepid)"}
		}
		return stat, Exited(pid)
	case err != nil:
		return stat, err
	case stat.Flags&KernelThread != 0:
		return stat, &PermissionError{pid, ReasonKernelThread, "it is a thread of the kernel and has no user stack"}
	case HasEnded(&stat):
		return stat, Exited(pid)
	}
	return stat, nil
}

// CheckMainThread returns a MainThreadError if the main thread has exited before other threads.
func CheckMainThread(stat *Stat) error {
	if !IsDead(stat.State) || stat.Threads <= 1 {
		return nil
	}
	return &MainThreadError{PID: stat.PID, Threads: stat.Threads - 1}
}

// IsDead reports whether a thread with this state (Stat.State) has ended.
//
//go:nosplit
//go:norace
func IsDead(state byte) bool { return state == 'Z' || state == 'X' || state == 'x' }

// IsEnding reports whether a thread is exiting or gone, even if IsDead is false. After a process has lost its memory, the
// kernel gives its /proc files to root, and denies accesses that it would have allowed before.
func IsEnding(pid, tid int) bool {
	stat, err := ReadTaskStat(pid, tid)
	return errors.Is(err, ErrGone) || err == nil && stat.Flags&Exiting != 0
}

// KernelPlace returns where in the kernel a thread sleeps: see WaitChannel and KernelStack. A result that the kernel does not
// show is empty.
func KernelPlace(pid, tid int) (channel string, stack []string) {
	channel, _ = WaitChannel(pid, tid)
	stack, _ = KernelStack(pid, tid)
	return channel, stack
}

// Identify returns the errors of Compare and CompareUser. now is the present stat file of the process.
func (t *Target) Identify(now *Stat) error {
	if err := t.Compare(now); err != nil {
		return err
	}
	return t.CompareUser()
}

// Compare returns a RecycledError if the start time or the parent in now differs from the target's.
func (t *Target) Compare(now *Stat) error {
	switch {
	case t.StartTime != 0 && now.StartTime != t.StartTime:
		return mismatch(t.PID, "start time", t.StartTime, now.StartTime)
	case t.PPID != 0 && now.PPID != t.PPID:
		return mismatch(t.PID, "parent", uint64(t.PPID), uint64(now.PPID))
	}
	return nil
}

// CompareUser returns a RecycledError if the process's user differs from the target's, and the errors of Rights.Verify.
func (t *Target) CompareUser() error {
	if t.Rights == nil && t.UID < 0 {
		return nil
	}
	if t.Proof.Holds() {
		return t.compareProof()
	}
	status, err := ReadStatus(t.PID)
	if err != nil {
		return ReadError(t.PID, t.PID, err)
	}
	if t.Rights != nil {
		if err := t.Rights.VerifyStatus(t.PID, &status); err != nil {
			return err
		}
	}
	return t.compareUID(&status)
}

// compareProof is CompareUser with the rights at the time of the proof.
func (t *Target) compareProof() error {
	if t.Rights != nil {
		if err := t.Rights.VerifyProof(t.Proof); err != nil {
			return err
		}
	}
	return t.compareUID(&t.Proof.Status)
}

func (t *Target) compareUID(status *Status) error {
	if t.UID < 0 {
		return nil
	}
	for _, uid := range status.UID[:3] {
		if uid != t.UID {
			return mismatch(t.PID, "user", uint64(t.UID), uint64(uid))
		}
	}
	return nil
}

// CompareThread returns an error if the rights of a thread of the process differ from the target's.
func (t *Target) CompareThread(tid int) error {
	if t.Rights == nil || tid == t.PID {
		return nil
	}
	return t.Rights.VerifyThread(t.PID, tid)
}

func mismatch(pid int, property string, want, got uint64) error {
	return &RecycledError{PID: pid, Property: property, Want: want, Got: got}
}
