package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// The errors that all ways of copying a process have in common. All errors of this package wrap one of these, or the
// error of a failed system call.
var (
	// ErrExited: there is no such process, or it ended before or during the capture.
	ErrExited = errors.New("process does not exist or has exited")
	// ErrNotPermitted: the kernel denies access; see PermissionError.
	ErrNotPermitted = errors.New("not permitted to trace")
	// ErrTraced: another process traces the target; see TracedError.
	ErrTraced = errors.New("already being traced")
	// ErrRecycled: the process is not the process that Target describes; see RecycledError.
	ErrRecycled = errors.New("not the expected process")
	// ErrInvalidPID: the number cannot name a process: not positive, too large, or a thread of a process.
	ErrInvalidPID = errors.New("not a process id")
	// ErrSelf: a process cannot trace itself.
	ErrSelf = errors.New("cannot trace the own process")
)

// MainThreadError means that the main thread of a process has exited, and that other threads run: they can be captured
// with Options.AllThreads. It is an ErrExited.
type MainThreadError struct {
	PID     int
	Threads int // number of threads that have not exited
}

func (e *MainThreadError) Error() string {
	return fmt.Sprintf("process %d: main thread has exited, %d other threads run", e.PID, e.Threads)
}

// Unwrap makes errors.Is(err, ErrExited) true.
func (e *MainThreadError) Unwrap() error { return ErrExited }

// Reason is the kernel's check that denied tracing a process.
type Reason string

// The known reasons.
const (
	ReasonYama         Reason = "yama"          // kernel.yama.ptrace_scope
	ReasonUID          Reason = "uid"           // other user, and no CAP_SYS_PTRACE
	ReasonCapability   Reason = "capability"    // the target has capabilities that this process lacks
	ReasonNamespace    Reason = "namespace"     // CAP_SYS_PTRACE does not reach into the target's user namespace
	ReasonDumpable     Reason = "dumpable"      // the target has made itself untraceable (PR_SET_DUMPABLE)
	ReasonKernelThread Reason = "kernel thread" // has no user stack
	ReasonHidden       Reason = "hidepid"       // /proc is mounted with hidepid, the process is another user's
	ReasonSeccomp      Reason = "seccomp"       // this process runs under a seccomp filter, as in containers
	ReasonPerf         Reason = "perf"          // kernel.perf_event_paranoid forbids to sample it
	ReasonRights       Reason = "rights"        // its rights are not Target.Rights
	ReasonUnknown      Reason = "unknown"       // another reason: a security module such as SELinux or AppArmor
)

// PermissionError describes why the kernel denies tracing a process. It is an ErrNotPermitted.
type PermissionError struct {
	PID    int
	Reason Reason
	Detail string // for users, for example "kernel.yama.ptrace_scope is 2 and CAP_SYS_PTRACE is missing"
}

func (e *PermissionError) Error() string {
	return fmt.Sprintf("process %d: %v: %s", e.PID, ErrNotPermitted, e.Detail)
}

// Unwrap makes errors.Is(err, ErrNotPermitted) true.
func (e *PermissionError) Unwrap() error { return ErrNotPermitted }

// TracedError names the tracer of the target. It is an ErrTraced.
type TracedError struct {
	PID    int
	Tracer int    // process id of the tracer; 0 when it is outside this PID namespace
	Name   string // the tracer's name, "" if unknown
}

func (e *TracedError) Error() string {
	if e.Tracer == 0 {
		return fmt.Sprintf("process %d: %v: its tracer is in another PID namespace", e.PID, ErrTraced)
	}
	if e.Name == "" {
		return fmt.Sprintf("process %d: %v by process %d", e.PID, ErrTraced, e.Tracer)
	}
	return fmt.Sprintf("process %d: %v by process %d (%s)", e.PID, ErrTraced, e.Tracer, e.Name)
}

// Unwrap makes errors.Is(err, ErrTraced) true.
func (e *TracedError) Unwrap() error { return ErrTraced }

// RecycledError describes the difference from the Target. It is an ErrRecycled.
type RecycledError struct {
	PID       int
	Property  string // "start time", "parent", "user", "program"
	Want, Got uint64
}

func (e *RecycledError) Error() string {
	if e.Want == e.Got {
		return fmt.Sprintf("process %d: %v: its %s keeps changing", e.PID, ErrRecycled, e.Property)
	}
	return fmt.Sprintf("process %d: %v: its %s is %d instead of %d", e.PID, ErrRecycled, e.Property, e.Got, e.Want)
}

// Unwrap makes errors.Is(err, ErrRecycled) true.
func (e *RecycledError) Unwrap() error { return ErrRecycled }

// Exited returns the error for a process or thread that has ended: ErrExited with its id.
func Exited(pid int) error {
	return fmt.Errorf("process %d: %w", pid, ErrExited)
}

// LacksResources reports whether a read failed because this process can open no more files or get no more memory. Such
// an error does not say whether the target has ended.
func LacksResources(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// Failed adds to err the id of a process or thread, and the failed step (what), for example "read registers".
func Failed(pid int, what string, err error) error {
	return fmt.Errorf("process %d: %s: %w", pid, what, err)
}
