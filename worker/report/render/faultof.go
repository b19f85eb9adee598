package render

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/units"
)

// FaultOf converts the error of a capture of process pid to a Fault. It never returns nil. If the error is not known, the Fault has
// SQLSTATE InternalError and the text of the error.
func FaultOf(pid int, err error) *Fault {
	var own *Fault
	var unread *backtrace.ReadingError
	var main *process.MainThreadError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &main):
		return &Fault{
			SQLState: NotInPrerequisiteState,
			Message:  fmt.Sprintf("main thread of process with PID %d has exited", pid),
			Detail:   units.Plural(main.Threads, "It still runs %d other {thread|threads}."),
			Hint:     "Capture all threads: set pg_stat_backtrace.threads to on, or use capture --threads.",
		}
	case errors.Is(err, process.ErrExited):
		return &Fault{
			SQLState: NotInPrerequisiteState,
			Message:  fmt.Sprintf("process with PID %d has exited", pid),
			Detail:   "It ended before its stack was copied.",
		}
	case errors.Is(err, process.ErrRecycled):
		return &Fault{
			SQLState: InsufficientPrivilege,
			Message:  fmt.Sprintf("PID %d now belongs to another process", pid),
			Detail:   "The process that it belonged to has exited.",
		}
	case errors.Is(err, process.ErrTraced):
		return withLook(traced(pid, err), pid, err)
	case errors.Is(err, ptrace.ErrDumping):
		return withLook(&Fault{
			SQLState: NotInPrerequisiteState,
			Message:  fmt.Sprintf("process with PID %d has crashed and is writing its core file", pid),
			Hint:     "Read the stack from the core file with pg_stat_backtrace capture --core.",
		}, pid, err)
	case errors.Is(err, ptrace.ErrDeadline):
		return withLook(deadline(pid, err), pid, err)
	case errors.Is(err, observe.ErrNotObserved):
		return notObserved(pid, err)
	case errors.Is(err, process.ErrNotPermitted):
		return notPermitted(pid, err)
	case errors.As(err, &unread):
		return reading(pid, unread)
	case errors.Is(err, context.DeadlineExceeded):
		return deadline(pid, err)
	case errors.Is(err, context.Canceled):
		return &Fault{SQLState: QueryCanceled, Message: fmt.Sprintf("capture of process with PID %d was canceled", pid)}
	case errors.Is(err, process.ErrSelf):
		return &Fault{SQLState: NotInPrerequisiteState, Message: "a process cannot capture its own stack"}
	case errors.Is(err, process.ErrInvalidPID):
		return &Fault{
			SQLState: InvalidParameterValue,
			Message:  fmt.Sprintf("%d is not the ID of a process", pid),
			Detail:   sentence(err),
		}
	}
	return &Fault{
		SQLState: InternalError,
		Message:  fmt.Sprintf("could not capture process with PID %d: %v", pid, err),
	}
}

// reading returns the Fault for a copied stack that could not be unwound in time, because a file is still being read.
func reading(pid int, unread *backtrace.ReadingError) *Fault {
	return &Fault{
		SQLState: NotInPrerequisiteState,
		Message: fmt.Sprintf("the stack of process with PID %d could not be read within %s", pid,
			unread.After.Round(time.Millisecond)),
		Detail: fmt.Sprintf("It was copied, but file %q, which is needed to unwind it, is still being read.", unread.File),
		Hint:   "Retry when the file system has responded; the worker then has the file.",
	}
}

func traced(pid int, err error) *Fault {
	f := &Fault{
		SQLState: InsufficientPrivilege,
		Message:  fmt.Sprintf("process with PID %d is already being traced", pid),
		Hint:     "Wait until the debugger has ended, or end it; a process can have only one tracer.",
	}
	var e *process.TracedError
	switch {
	case !errors.As(err, &e):
	case e.Tracer == 0:
		f.Detail = "Its tracer is in another PID namespace."
	case e.Name != "":
		f.Detail = fmt.Sprintf("Its tracer is process %d (%s).", e.Tracer, e.Name)
	default:
		f.Detail = fmt.Sprintf("Its tracer is process %d.", e.Tracer)
	}
	return f
}

// permissionHints has a hint for each reason of a process.PermissionError.
var permissionHints = map[process.Reason]string{
	process.ReasonYama: "Give the worker CAP_SYS_PTRACE (its systemd unit does), " +
		"or set kernel.yama.ptrace_scope to 0. At 3, only a reboot permits tracing again.",
	process.ReasonUID:          "Run the worker as the operating system user that the server runs as, or as root.",
	process.ReasonCapability:   "Give the worker CAP_SYS_PTRACE.",
	process.ReasonNamespace:    "Run the worker in the user namespace of the process.",
	process.ReasonDumpable:     "The process has made itself untraceable. Give the worker CAP_SYS_PTRACE.",
	process.ReasonKernelThread: "Root can read its kernel stack in /proc/PID/stack.",
	process.ReasonHidden: "Mount /proc without hidepid for the worker, " +
		"or run it as the server's operating system user.",
	process.ReasonSeccomp: "Allow ptrace, process_vm_readv and perf_event_open in the worker's seccomp profile " +
		"(in a container, its runtime's).",
	process.ReasonPerf: "Give the worker CAP_PERFMON, set kernel.perf_event_paranoid to 2 or less, " +
		"or let the process be stopped.",
	process.ReasonRights:  "The worker examines only processes that the server's user could trace.",
	process.ReasonUnknown: "A security module such as SELinux or AppArmor may forbid it; see the kernel's audit log.",
}

func notPermitted(pid int, err error) *Fault {
	f := &Fault{
		SQLState: InsufficientPrivilege,
		Message:  fmt.Sprintf("the kernel refuses to let process with PID %d be traced", pid),
		Hint:     permissionHints[process.ReasonUnknown],
	}
	var e *process.PermissionError
	if errors.As(err, &e) {
		if e.Reason == process.ReasonRights {
			f.Message = fmt.Sprintf("process with PID %d has other rights than the server", pid)
		}
		if e.Detail != "" {
			f.Detail = capital(e.Detail) + "."
		}
		if hint, ok := permissionHints[e.Reason]; ok {
			f.Hint = hint
		}
	}
	return f
}

func deadline(pid int, err error) *Fault {
	f := &Fault{
		SQLState: NotInPrerequisiteState,
		Message:  fmt.Sprintf("process with PID %d could not be stopped in time", pid),
		Hint:     "Retry. The process is unaffected.",
	}
	var e *ptrace.DeadlineError
	if !errors.As(err, &e) {
		return f
	}
	f.Message = fmt.Sprintf("process with PID %d could not be stopped within %s", pid, e.After.Round(time.Millisecond))
	switch e.State {
	case 'D':
		f.Detail = "It is in uninterruptible sleep in the kernel."
		if e.Channel != "" {
			f.Detail = fmt.Sprintf("It is in uninterruptible sleep in the kernel, in %s.", e.Channel)
		}
		f.Hint = "Retry when the device or file system for which it waits has responded; " +
			"until then, the process cannot be stopped or ended."
	case 'R':
		f.Detail = "It is runnable but got no processor, or it runs in the kernel."
		f.Hint = "Retry. The process is unaffected. " +
			"On an overloaded machine (see /proc/loadavg) a process may wait seconds for a processor."
	}
	return f
}

// withLook returns f. If err says that the worker has also failed to capture the process without a stop, withLook adds
// the reason to the detail. If the process's memory cannot be read, withLook replaces the hint.
func withLook(f *Fault, pid int, err error) *Fault {
	var e *observe.Error
	if errors.As(err, &e) {
		f.Detail = strings.TrimSpace(f.Detail + " It could not be captured without a stop either: " + looks(e) + ".")
	}
	if errors.Is(err, process.ErrUnreachable) {
		f.Hint = unreachable(pid)
	}
	return f
}

// unreachable returns a hint about a process whose memory cannot be read.
func unreachable(pid int) string {
	return fmt.Sprintf("Retry when its threads no longer wait in the kernel "+
		"(as root, see /proc/%d/task/*/stack; ps may hang too).", pid)
}

func looks(e *observe.Error) string {
	var parts []string
	for _, err := range []error{e.Blocked, e.Running} {
		var denied *process.PermissionError
		switch {
		case err == nil:
		case errors.As(err, &denied):
			parts = append(parts, denied.Detail)
		default:
			parts = append(parts, err.Error())
		}
	}
	return strings.Join(parts, "; ")
}

func notObserved(pid int, err error) *Fault {
	f := &Fault{
		SQLState: NotInPrerequisiteState,
		Message:  fmt.Sprintf("process with PID %d could not be captured without stopping it", pid),
		Hint:     "Retry, or turn nonstop off to let the worker stop the process.",
	}
	var e *observe.Error
	if errors.As(err, &e) {
		f.Detail = fmt.Sprintf("After %d attempts in %s: %s.", e.Attempts, e.After.Round(time.Millisecond), looks(e))
	}
	if errors.Is(err, process.ErrUnreachable) {
		f.Detail, f.Hint = capital(looks(e))+".", unreachable(e.PID)
	}
	var denied *process.PermissionError
	if errors.As(err, &denied) {
		f.SQLState, f.Hint = InsufficientPrivilege, permissionHints[denied.Reason]
	}
	return f
}

// sentence returns the text of an error as a sentence, for a detail.
func sentence(err error) string { return capital(err.Error()) + "." }

// capital returns a text with a capital first letter, if the first word has only the letters a to z. Names such as
// "kernel.yama.ptrace_scope" stay unchanged.
func capital(s string) string {
	for i := range len(s) {
		switch c := s[i]; {
		case c == ' ' && i > 0:
			return upper(s)
		case c < 'a' || c > 'z':
			return s
		}
	}
	return upper(s)
}

func upper(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}
