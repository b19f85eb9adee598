package process

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const capSysPtrace = 1 << unix.CAP_SYS_PTRACE

// Explain returns the reason why the kernel denied tracing a thread, as an error. It repeats the checks of ptrace_attach,
// __ptrace_may_access (kernel/ptrace.c), yama and the user namespaces in their order. It runs after the denial, so
// the state of the thread may have changed.
func Explain(pid, tid int) error {
	status, err := ReadTaskStatus(pid, tid)
	switch {
	case errors.Is(err, ErrGone):
		return Exited(tid)
	case err != nil:
		return &PermissionError{tid, ReasonUnknown, err.Error()}
	case IsDead(status.State), IsEnding(pid, tid):
		return Exited(tid)
	case status.TracerPID != 0:
		return tracedError(tid, status.TracerPID)
	}
	self, err := ReadTaskStatus(unix.Getpid(), unix.Gettid())
	if err != nil {
		return &PermissionError{tid, ReasonUnknown, err.Error()}
	}
	reason, detail := explainAccess(&self, &status)
	return &PermissionError{tid, reason, detail}
}

// ExplainAttach is Explain for a thread to which the kernel denied an attach. It also finds a tracer outside of this PID
// namespace, for which Status shows 0. The kernel's check for reading memory is the same as for an attach, except that it
// allows a thread with a tracer, and ignores a seccomp filter for ptrace. So if the memory can be read, there is such a
// tracer.
func ExplainAttach(pid, tid int) error {
	err := Explain(pid, tid)
	var denied *PermissionError
	if errors.As(err, &denied) && denied.Reason != ReasonSeccomp && accessible(tid) {
		return &TracedError{PID: tid}
	}
	return err
}

// accessible reports whether the kernel permits reading the memory of a thread.
func accessible(tid int) bool {
	_, errno := readOnce(tid, anyAddress, make([]byte, 1))
	return errno == 0 || errno == unix.EFAULT // the address need not be mapped
}

// Denied returns the reason why the kernel denied reading a thread's files or memory. Unlike for Explain, a tracer is not a
// reason.
func Denied(pid, tid int) error {
	status, err1 := ReadTaskStatus(pid, tid)
	self, err2 := ReadTaskStatus(unix.Getpid(), unix.Gettid())
	switch {
	case errors.Is(err1, ErrGone):
		return Exited(tid)
	case err1 != nil || err2 != nil:
		return &PermissionError{tid, ReasonUnknown, "its status cannot be read"}
	case IsDead(status.State), IsEnding(pid, tid):
		return Exited(tid)
	}
	reason, detail := explainAccess(&self, &status)
	return &PermissionError{tid, reason, detail}
}

// ReadError replaces ErrGone and ErrDenied, from reading a thread's files, by ErrExited and the reason for the denial.
func ReadError(pid, tid int, err error) error {
	switch {
	case errors.Is(err, ErrGone):
		return Exited(tid)
	case errors.Is(err, ErrDenied):
		return Denied(pid, tid)
	}
	return err
}

func tracedError(tid, tracer int) error {
	e := &TracedError{PID: tid, Tracer: tracer}
	if s, err := ReadStatus(tracer); err == nil {
		e.Tracer, e.Name = s.TGID, s.Name
	}
	return e
}

// filtered reports whether a seccomp filter forbids PTRACE_SEIZE. For a PID beyond all limits the kernel itself
// reports that there is no such process.
func filtered() bool {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, math.MaxInt32, 0, 0, 0, 0)
	return errno != unix.ESRCH
}

// explainAccess compares the credentials of this process and of the target.
func explainAccess(self, target *Status) (Reason, string) {
	privileged := self.CapEff&capSysPtrace != 0
	foreign := inOtherNamespace(target.PID)
	yama := yamaScope()
	switch {
	case yama == 3:
		return ReasonYama, "kernel.yama.ptrace_scope is 3: nothing can be traced until the next boot"
	case self.Seccomp != 0 && filtered():
		return ReasonSeccomp, "this process runs under a seccomp filter that forbids ptrace"
	case privileged && foreign:
		return ReasonNamespace, "it is in another user namespace, into which CAP_SYS_PTRACE does not reach"
	case privileged:
		return ReasonUnknown, "it does so although CAP_SYS_PTRACE is there"
	case !sameUser(self, target):
		return ReasonUID, fmt.Sprintf(
			"it runs as user %d, group %d, this process as user %d, group %d without CAP_SYS_PTRACE",
			target.UID[0], target.GID[0], self.UID[0], self.GID[0])
	case undumpable(target):
		return ReasonDumpable, "it has made itself untraceable (PR_SET_DUMPABLE), and CAP_SYS_PTRACE is missing"
	case foreign:
		return ReasonNamespace, "it is in another user namespace, and CAP_SYS_PTRACE is missing there"
	case target.CapPrm&^self.CapPrm != 0:
		return ReasonCapability, fmt.Sprintf("it has capabilities that this process lacks (0x%x)", target.CapPrm&^self.CapPrm)
	case yama > 0:
		return ReasonYama, fmt.Sprintf("kernel.yama.ptrace_scope is %d and CAP_SYS_PTRACE is missing", yama)
	}
	return ReasonUnknown, "it does so although user and group are the same"
}

// sameUser compares like PTRACE_MODE_REALCREDS: our real ids with the target's real, effective and saved ids.
func sameUser(self, target *Status) bool {
	for i := range 3 {
		if target.UID[i] != self.UID[0] || target.GID[i] != self.GID[0] {
			return false
		}
	}
	return true
}

// undumpable reports whether the process is not dumpable (PR_SET_DUMPABLE). The kernel then gives its files in /proc to root.
func undumpable(target *Status) bool {
	owner, err := Owner(target.PID)
	return err == nil && owner != target.UID[1]
}

// inOtherNamespace reports whether the process is known to be in another user namespace than this process.
func inOtherNamespace(pid int) bool {
	theirs, err1 := Namespace(pid, "user")
	ours, err2 := Namespace(unix.Getpid(), "user")
	return err1 == nil && err2 == nil && theirs != ours
}

// yamaScope reads kernel.yama.ptrace_scope; 0 also if the kernel has no yama.
func yamaScope() int {
	text, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return 0
	}
	scope, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return scope
}
