// Package ptrace stops a process for some microseconds, copies its registers and its stack, and resumes it. If a stop
// is not wanted or not possible, package observe makes the copy without a stop. Package ptrace does not interpret the
// copies: other packages interpret the registers, name functions, and check permissions.
//
// # Guarantees for the target
//
// The target is seized (PTRACE_SEIZE, never PTRACE_ATTACH) and interrupted. The package sends no signal to the target.
// The target loses no signal, and gets its signals in the same order. If the target stops for a signal before it is
// interrupted, the package uses this stop, and the detach delivers the signal. The package waits for stops with WNOWAIT,
// which leaves the signal in the kernel. So no signal is lost even if this process is killed before the detach.
//
// A process that was stopped before (SIGSTOP) stays stopped and can be continued. The target is detached in all
// cases, including cancellation, deadline and panics. If it stops within a tenth of a second, PTRACE_DETACH detaches
// it. Otherwise (uninterruptible sleep) the tracing thread ends, and the kernel then detaches the target without a
// stop.
//
// No tracer can avoid the effects of ptrace itself. A few system calls (epoll_wait, semop, semtimedop, sigtimedwait,
// io_getevents, io_uring_enter) return EINTR after a stop although no handler ran. A set-user-ID program that is
// started in just these microseconds runs without its privilege. The package does not stop the kernel's own threads
// in a process (workers of io_uring), because their current request would fail.
//
// # While the target is stopped
//
// Between stop and detach, three system calls run for each thread (PTRACE_GETREGSET, process_vm_readv,
// PTRACE_DETACH), and some clock reads. They run in functions that do not allocate, do not check their stack, and
// have all signals blocked. From the stop on, or if the target has not stopped after a third of a millisecond, the Go
// scheduler treats all of this as one system call. The thread then needs none of the scheduler's processors. So a stopped
// target does not wait until its capture gets a turn among the goroutines, also when it stops only after the deadline. There
// are two exceptions: a thread that stops after its capture has left it out, and a target that stops more than a tenth of a
// second after the deadline. The scheduler and the garbage collector cannot
// interrupt. The memory for the copy is allocated and touched in advance. Maps and all other files in /proc are read
// before the interruption, or were read for an earlier capture (Options.MapsSnapshot).
//
// The stop must not cause other threads of this process to run. The first capture therefore sets SA_NOCLDSTOP for
// SIGCHLD. This process then gets that signal only for children that have ended, as most programs expect.
//
// Snapshot.Pause is an upper bound of the pause. It begins at the last check that found the threads still running. This is
// at most half a microsecond before the first stop was seen, unless the target took longer than the spinning phase to
// stop. It ends with the return of the last detach. A target that was already stopped when it was seized, or had a
// pending signal, was stopped for longer, because the package cannot see the time before the interruption.
package ptrace
