// Package ptrace stops a process for some microseconds, copies its registers and its stack, and lets it go; or, where
// a stop is not wanted or not possible, observes it without one (Observe). It interprets nothing: what the registers
// mean, whose functions the addresses are and whether somebody may look are matters of other packages. The positions
// of the registers in the kernel's structures are all it knows of an architecture.
//
// # What it promises to the target
//
// The target is seized (PTRACE_SEIZE, never PTRACE_ATTACH) and interrupted. No signal is sent to it, none is lost and
// none overtakes another: a stop that turns out to be a signal on its way serves as well as the interruption, and
// the signal is handed on with the detach. Stops are looked at with WNOWAIT, which leaves the signal in the kernel's
// hands, so even this process being killed between look and detach loses nothing. A process that somebody stopped
// (SIGSTOP) stays stopped and can be continued. Whatever goes wrong, cancellation, deadline and panics included, the
// target is detached: by PTRACE_DETACH where it stops within a tenth of a second, else (uninterruptible sleep) by the
// end of the thread that traced it, at which the kernel lets go without any stop.
//
// What ptrace itself changes, no tracer can avoid: a few system calls (epoll_wait, semop, semtimedop, sigtimedwait,
// io_getevents, io_uring_enter) return EINTR after a stop although no handler ran; and a set-user-ID program started in
// just these microseconds runs without its privilege. The kernel's own threads in a process (workers of io_uring) are
// not touched: the request that one works on would fail.
//
// # While the target stands still
//
// Between stop and detach run three system calls per thread (PTRACE_GETREGSET, process_vm_readv, PTRACE_DETACH) and
// some clock reads, in functions that do not allocate, do not check their stack and run with all signals blocked. From
// the stop on, or from a third of a millisecond without one, all of it is one system call to the Go scheduler: the
// thread needs none of its processors, so no target stands still while its capture waits for its turn among the
// goroutines, and neither the scheduler nor the garbage collector can step in between. The memory that receives the
// copy exists and has been touched before. Maps and everything else from /proc are read before the interruption, or
// were read for an earlier capture (Options.Layout).
//
// So that no other thread of this process runs for the stop's sake, the first capture sets SA_NOCLDSTOP for SIGCHLD:
// this process gets that signal only for children that have ended, which is what everybody wants of it.
//
// Snapshot.Pause is an upper bound: from the last look that found a thread still running (at most half a microsecond
// before the first stop was seen, unless the target took longer than the spinning phase to stop) to the return of the
// last detach. A target with a signal on its way when it was seized, or stopped by somebody else before, stood still
// longer, by the time from then to the interruption, which is not seen from here.
package ptrace
