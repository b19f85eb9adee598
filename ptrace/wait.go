package ptrace

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/snapshot"
)

// phase is the state of a thread in a capture.
type phase uint8

const (
	failed   phase = iota // was never seized
	seized                // attached and running
	stopped               // attached and stopped
	detached              // detached by this package
	exited                // a zombie that is not reaped yet
	reaped                // it has ended and was reaped, or the code of this process that started it will reap it
	gone                  // not our tracee any more, although we have not detached it
)

// tracee is the state of one thread during a capture. Everything that is written while the thread is stopped has
// space here in advance.
type tracee struct {
	tid   int
	name  string
	state byte
	err   error

	phase    phase
	executed bool    // stopped because it has executed another program: detached without a copy
	foreign  bool    // turned out to be a thread of another process: detached without changes
	signal   uintptr // the signal for which the thread stopped; the detach delivers it; 0: none

	info   siginfo
	errno  unix.Errno // error of copying the registers, 0: none
	cut    bool
	length int // of registers
	local  iovec
	remote iovec
	vector iovec

	stackStart uint64
	stackAt    int // in the session's arena
	stackLen   int

	registers [snapshot.MaxRegisters]byte
	floating  [snapshot.FloatingSize]byte
	hasFloat  bool

	parts  [maxParts]part // of its coroutines
	nParts int
}

// iovec is struct iovec. Its addresses are numbers, so that storing them needs no write barrier. The session keeps the memory
// at these addresses alive, and Go's heap does not move.
type iovec struct {
	base, length uintptr
}

// siginfo is the part of siginfo_t that waitid(2) fills, on every architecture of snapshot/regs_*.go.
type siginfo struct {
	signo, errno, code, _ int32
	pid                   int32
	uid                   uint32
	status                int32
	_                     [100]byte
}

// cldDumped is CLD_DUMPED, the highest of the si_codes that mean the end of a thread (CLD_EXITED, CLD_KILLED, CLD_DUMPED).
const cldDumped = 3

// looking are the options of waitid(2) that report stops and ends of this thread's tracees only (WNOTHREAD), not of
// other children. The events stay in the kernel (WNOWAIT), so a signal in a stop is not lost if this process dies.
const looking = unix.WEXITED | unix.WSTOPPED | unix.WNOHANG | unix.WNOWAIT | unix.WALL | unix.WNOTHREAD

// look updates the phase of an attached thread.
//
//go:nosplit
//go:norace
func (t *tracee) look() {
	t.info.signo = 0
	_, _, errno := unix.RawSyscall6(unix.SYS_WAITID, unix.P_PID, uintptr(t.tid),
		uintptr(unsafe.Pointer(&t.info)), looking, 0, 0)
	switch {
	case errno == unix.ECHILD:
		t.phase = gone
	case errno != 0 || t.info.signo == 0:
	case t.info.code <= cldDumped:
		t.phase = exited
	default:
		t.phase = stopped
		t.signal = signalOf(t.info.status)
		t.executed = t.executed || t.info.status>>8 == unix.PTRACE_EVENT_EXEC
	}
}

// signalOf returns the signal that a stop with this status is about to deliver; 0: none. A PTRACE_EVENT_STOP delivers
// none, whatever its low byte says: it is the requested stop, or a group stop, which the kernel restores after the
// detach. A PTRACE_EVENT_EXEC delivers none either.
//
//go:nosplit
//go:norace
func signalOf(status int32) uintptr {
	if status>>8 != 0 {
		return 0
	}
	return uintptr(status & 0x7f)
}

// interrupt asks a running tracee to stop. A repeated call does no harm. It is needed if the first one reached a thread whose
// id another thread has then taken over by executing a program.
//
//go:nosplit
//go:norace
func (t *tracee) interrupt() {
	_, _, _ = unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_INTERRUPT, uintptr(t.tid), 0, 0, 0, 0)
}

// detach resumes and detaches a stopped tracee. If the tracee was killed meanwhile, it is not stopped any more, and
// remains our tracee until it has ended.
//
//go:nosplit
//go:norace
func (t *tracee) detach() {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(t.tid), 0, t.signal, 0, 0)
	if errno == 0 {
		t.phase = detached
	} else {
		t.phase = seized
	}
}

// reap reaps a tracee that has ended, so that the kernel notifies its parent. If own is set, it only checks for the end. It does
// nothing if the kernel does not report the end yet: it reports the end of a main thread after those of the other threads.
//
// ECHILD does not mean an end, even if the thread looked dead. A thread that executes another program takes over the
// process's id, and leaves its own id to the dead main thread. The thread may still be our tracee. A stop is not an end
// either: the kernel reports a tracee's stops even without WSTOPPED (wait_task_stopped in kernel/exit.c), and only once.
//
//go:nosplit
//go:norace
func (t *tracee) reap(own bool) {
	for _, options := range [...]uintptr{looking, looking &^ (unix.WNOWAIT | unix.WSTOPPED)} {
		t.info.signo = 0
		_, _, errno := unix.RawSyscall6(unix.SYS_WAITID, unix.P_PID, uintptr(t.tid),
			uintptr(unsafe.Pointer(&t.info)), options, 0, 0)
		switch {
		case errno == unix.ECHILD:
			t.phase = gone
			return
		case errno != 0 || t.info.signo == 0 || t.info.code > cldDumped:
			return
		case own:
			t.phase = reaped
			return
		}
	}
	t.phase = reaped
}
