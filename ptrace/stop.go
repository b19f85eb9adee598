package ptrace

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/ptrace/thread"
)

// This file contains the code that runs while the target is stopped. The Go scheduler sees it as one system call. This
// call begins when the target has stopped, or if it has not stopped after a third of a millisecond. No other goroutine then
// waits for this thread, however long the target takes, and this thread waits for no goroutine.
//
// If the scheduler did not see it so, the goroutine would wait for one of the scheduler's processors, behind all others,
// while the target is stopped. And a wait for the disk would block one of these processors. Such a wait may last for ever,
// for example in process_vm_readv of a page that userfaultfd provides.
//
// All functions in such a call must be nosplit, because their stack cannot grow. They store no pointers, because the
// garbage collector would not see them. They use preallocated memory, and system calls that bypass the scheduler.
// Signals are blocked meanwhile, except during naps inside that system call.

const (
	spinning  = int64(60 * time.Microsecond)  // how long the first poll for the stop lasts, without a sleep
	idleSpin  = int64(200 * time.Microsecond) // like spinning, if a processor is idle: the target may need long to wake it
	retrySpin = int64(5 * time.Microsecond)   // how long a poll after a sleep lasts: the target may need this processor
	firstNap  = int64(20 * time.Microsecond)  // the first sleep; each further sleep is twice as long
	lastNap   = int64(1 * time.Millisecond)   // the longest sleep
	maxStall  = int64(50 * time.Millisecond)  // how long stopped threads wait for others that do not stop
	drainTime = int64(100 * time.Millisecond) // how long to try to stop threads that must be detached

	// The longest nap before the scheduler sees a system call. With all naps before it, it takes 0.3 ms.
	lastHeldNap = int64(160 * time.Microsecond)
)

// blocked are the signals to block: all signals except those caused by the thread itself.
const blocked = ^uint64(1<<(unix.SIGSEGV-1) | 1<<(unix.SIGBUS-1) | 1<<(unix.SIGFPE-1) | 1<<(unix.SIGILL-1) |
	1<<(unix.SIGTRAP-1) | 1<<(unix.SIGSYS-1))

// clock is the monotonic time in nanoseconds.
//
//go:nosplit
//go:norace
func (s *session) clock() int64 {
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&s.now)), 0)
	return s.now.sec*1e9 + s.now.nsec
}

// stopAndCopy interrupts all threads, waits until they are stopped, copies the requested memory, and detaches them.
// It returns an error if they did not stop in time. release detaches threads that remain.
func (s *session) stopAndCopy() error {
	s.patience, s.nap, s.tries = spinning, firstNap, 0
	if s.raisePriority() && len(s.tracees) == 1 {
		s.patience = idleSpin // several threads may need this processor too
	}
	if (s.urgent || runtime.NumCPU() == 1) && s.processor == currentProcessor() {
		s.patience = retrySpin // the target cannot stop while this thread is on the processor that the target needs
	}
	left := s.call.limit - time.Since(s.call.started)
	s.until = s.clock() + int64(left) // read after left: so s.call.expired returns an error from until on
	for !s.stopAndCopyNoSched() {
		if err := s.call.expired(); err != nil {
			return err
		}
		s.hook(stepWaiting)
	}
	runtime.KeepAlive(s)
	return nil
}

// stopAndCopyNoSched does the work of stopAndCopy. It returns false if the threads have not stopped. Then the capture ends, and
// stopAndCopyNoSched has tried to detach them. With a hook it leaves both to the caller. The first checks come before
// entersyscall, because most targets stop soon. If a thread is in a system call for more than 20 µs, the scheduler takes its
// processor away and wakes another thread to use it. At the end of the call, this thread would have to get a processor again.
//
//go:nosplit
//go:norace
func (s *session) stopAndCopyNoSched() bool {
	stopped, first := false, s.tries == 0
	if first {
		s.block()
		stopped = s.awaitStops()
		for !stopped && s.nap <= lastHeldNap {
			stopped = s.lookLater()
		}
	}
	thread.EnterSyscall()
	for ; ; first = false {
		if !first {
			if s.nap == lastNap {
				s.reapExited()
			}
			stopped = s.lookLater()
		}
		if stopped {
			s.copyAll()
			s.detachStopped()
		}
		s.unblock()
		s.tries++
		if stopped || thread.IsSet(&s.call.quit) || s.call.hook != nil || s.clock() >= s.until {
			break
		}
	}
	if !stopped && s.call.hook == nil {
		s.drainAll() // the capture ends. A thread that stops only now must not wait until this goroutine continues
	}
	s.relax() // the scheduler may wait for one of its threads, which an urgent thread keeps off the processor
	thread.ExitSyscall()
	return stopped
}

// lookLater sleeps for a nap and checks for the stops again, with signals blocked.
//
//go:nosplit
//go:norace
func (s *session) lookLater() bool {
	s.doze(s.nap)
	s.nap, s.patience = min(2*s.nap, lastNap), retrySpin
	s.block()
	return s.awaitStops()
}

// awaitStops interrupts the threads and polls for their stops for s.patience ns. It returns true if no thread runs any more,
// or if the first stop was more than maxStall ago: then only the threads that have stopped are copied.
//
//go:nosplit
//go:norace
func (s *session) awaitStops() bool {
	if s.lastRunning == 0 {
		s.lastRunning = s.clock()
	}
	for i := range s.tracees {
		if t := &s.tracees[i]; t.phase == seized {
			t.interrupt()
		}
	}
	return s.spin(s.patience) || s.firstStop != 0 && s.clock()-s.firstStop > maxStall
}

// detachStopped detaches the stopped threads.
//
//go:nosplit
//go:norace
func (s *session) detachStopped() {
	for i := range s.tracees {
		if t := &s.tracees[i]; t.phase == stopped {
			t.detach()
		}
	}
	s.end = s.clock()
}

// spin polls until no thread runs any more, for at most patience ns. It returns false if a thread still runs.
//
//go:nosplit
//go:norace
func (s *session) spin(patience int64) bool {
	begin := s.clock()
	for now := begin; ; now = s.clock() {
		running, standing := 0, 0
		for i := range s.tracees {
			t := &s.tracees[i]
			if t.phase == seized {
				t.look()
			}
			switch t.phase {
			case seized:
				running++
			case stopped:
				standing++
			default: // not waited for
			}
		}
		switch {
		case standing == 0:
			s.lastRunning = now
		case s.firstStop == 0:
			s.firstStop, s.seen = s.lastRunning, s.clock()
		}
		if running == 0 {
			return true
		}
		if now-begin > patience {
			return false
		}
	}
}

// block blocks signals for this thread, and unblock unblocks them. Without signals, the Go runtime cannot preempt the goroutine.
//
//go:nosplit
//go:norace
func (s *session) block() {
	if s.blocking {
		return
	}
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&s.mask)),
		uintptr(unsafe.Pointer(&s.oldMask)), unsafe.Sizeof(s.mask), 0, 0)
	s.blocking = true
}

//go:nosplit
//go:norace
func (s *session) unblock() {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&s.oldMask)), 0,
		unsafe.Sizeof(s.mask), 0, 0)
	s.blocking = false
}

//go:nosplit
//go:norace
func (s *session) copyAll() {
	for i := range s.tracees {
		t := &s.tracees[i]
		s.arena.keep(len(s.tracees) - 1 - i + s.pieces)
		if t.phase != stopped || t.foreign || t.executed {
			continue
		}
		sp, ok := s.copyRegisters(t)
		if ok && s.coroutines.wanted {
			i, last := s.findCoroutines(t)
			for i < last && !s.takeOwner(t, i) {
				i++
			}
			s.extra.n = 0
		}
		if ok && s.copyOwnStack(t, sp) && s.coroutines.wanted {
			s.copyCoroutines(t, sp)
		}
	}
	for i := range s.pieces {
		s.arena.keep(s.pieces - 1 - i)
		s.copyPiece(&s.also[i], &s.tracees[0])
	}
	if s.extra.wanted {
		s.copyExtraReads(&s.tracees[0])
	}
	for i := range s.tracees {
		if t := &s.tracees[i]; t.phase == stopped && !t.foreign && !t.executed && len(s.blocks.wanted) > 0 {
			s.copyBlocks(t)
			break
		}
	}
}

// copyPiece copies a piece of Options.Also through t, the main thread, unless t is not stopped or has executed another
// program.
//
//go:nosplit
//go:norace
func (s *session) copyPiece(p *piece, t *tracee) {
	start, end, ok := s.stackAround(p.address)
	if !ok || t.phase != stopped || t.foreign || t.executed {
		return
	}
	stackAt := t.stackAt
	p.start, p.at = start, s.arena.used
	p.length = s.read(t, start, end)
	p.cut = p.length < int(end-start)
	s.arena.used += p.length
	t.stackAt = stackAt
}

// copyRegisters copies the registers of a stopped thread, and returns its stack pointer; false if this is not possible.
//
//go:nosplit
//go:norace
func (s *session) copyRegisters(t *tracee) (sp uint64, ok bool) {
	t.vector = iovec{uintptr(unsafe.Pointer(&t.registers)), snapshot.MaxRegisters}
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(t.tid), ntPRStatus,
		uintptr(unsafe.Pointer(&t.vector)), 0, 0)
	if errno != 0 {
		t.errno = errno
		return 0, false
	}
	t.length = int(t.vector.length)
	if snapshot.FloatingSize > 0 {
		t.copyFloating()
	}
	return snapshot.StackPointer(&t.registers, t.length)
}

// copyOwnStack reads the stack of a stopped thread. It returns false if there is no stack at its stack pointer.
//
//go:nosplit
//go:norace
func (s *session) copyOwnStack(t *tracee, sp uint64) bool {
	start, end, ok := s.stackOf(sp)
	if !ok {
		return false
	}
	n, done := 0, false
	if s.wantWithStack(t) {
		n, done = s.readBehindVariables(t, start, end)
	}
	if !done {
		n = s.read(t, start, end)
	}
	if page := sp &^ s.pageMask; n == 0 && start < page {
		// The red zone reaches into an unmapped page; the page of the stack pointer may be readable.
		start = page
		n = s.read(t, start, end)
	}
	t.stackStart, t.stackLen = start, n
	t.cut = t.cut || n < int(end-start)
	s.arena.used += n
	return true
}

// copyFloating copies the floating point registers. It is called only on architectures where unwinding needs them.
//
//go:nosplit
//go:norace
func (t *tracee) copyFloating() {
	t.vector = iovec{uintptr(unsafe.Pointer(&t.floating)), snapshot.FloatingSize}
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(t.tid), ntFPRegSet,
		uintptr(unsafe.Pointer(&t.vector)), 0, 0)
	t.hasFloat = errno == 0 && t.vector.length == snapshot.FloatingSize
}

// read copies memory of the target to the arena, as far as there is room and the memory is readable. The caller adds the
// result to s.arena.used.
//
//go:nosplit
//go:norace
func (s *session) read(t *tracee, start, end uint64) int {
	t.stackAt = s.arena.used
	size := min(end-start, s.maxStack, s.arena.stackRoom())
	if size == 0 {
		return 0
	}
	t.local = iovec{uintptr(unsafe.Pointer(&s.arena.memory[s.arena.used])), uintptr(size)}
	t.remote = iovec{uintptr(start), uintptr(size)}
	n, _, errno := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(t.tid), uintptr(unsafe.Pointer(&t.local)), 1,
		uintptr(unsafe.Pointer(&t.remote)), 1, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// doze sleeps for nap ns, so that the target can use the processor. The first call reduces the thread's timer slack, whose
// default of 50 µs would lengthen every nap.
//
//go:nosplit
//go:norace
func (s *session) doze(nap int64) {
	if !s.exact {
		s.exact = true
		_, _, _ = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, 1, 0, 0, 0, 0)
	}
	s.pause.sec, s.pause.nsec = 0, nap
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&s.pause)), 0, 0)
}
