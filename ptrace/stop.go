package ptrace

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file is what runs while the target stands still. Its functions are marked nosplit, so that they have no point
// at which the Go scheduler may take over, and signals, with which it could do so anywhere, are blocked. They use
// memory that exists, and system calls that the scheduler does not get to know of (RawSyscall). The exception is
// process_vm_readv, which may wait for the disk, or for ever (userfaultfd): the scheduler must be able to go on then.

const (
	spinning  = int64(60 * time.Microsecond)  // how long to look for the stop without sleeping, the first time
	glancing  = int64(5 * time.Microsecond)   // and after a sleep, lest the target's processor be kept from it
	firstNap  = int64(20 * time.Microsecond)  // then sleeps that double
	lastNap   = int64(1 * time.Millisecond)   // until they are this long
	shortNap  = int64(500 * time.Microsecond) // what no other goroutine would have a use for
	maxStall  = int64(50 * time.Millisecond)  // how long stopped threads wait for others that do not stop
	drainTime = int64(100 * time.Millisecond) // how long to try to stop what must be detached
)

// blocked are the signals to block: all but those that the thread could raise itself.
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

// stopAndCopy interrupts all threads, waits until they stand still, copies what is wanted and detaches them. It returns
// with an error if they did not stop in time; release detaches what is left.
func (s *session) stopAndCopy() error {
	s.hurry()
	nap, patience := firstNap, spinning
	if s.urgent && s.processor == currentProcessor() {
		patience = glancing // it cannot stop while this thread is where it has to go on
	}
	for force := false; !s.attempt(force, patience); {
		if err := s.flight.expired(); err != nil {
			return err
		}
		s.hook(stepWaiting)
		s.buryTheDead()
		s.sleep(nap)
		nap, patience = min(2*nap, lastNap), glancing
		force = s.firstStop != 0 && s.clock()-s.firstStop > maxStall
	}
	s.relax()
	runtime.KeepAlive(s)
	return nil
}

// attempt looks for the stops for a short while. It returns false if there were none; the thread is back to normal
// then, and may sleep. With force, those threads that have stopped are enough.
//
// This function and copyAll must not be nosplit: in a build without the race detector the linker refuses the chain down
// to process_vm_readv as too long (try: go build, for every architecture).
//
//go:norace
func (s *session) attempt(force bool, patience int64) bool {
	s.block()
	if s.lastRunning == 0 {
		s.lastRunning = s.clock()
	}
	for i := range s.tracees {
		if t := &s.tracees[i]; t.phase == seized {
			t.interrupt()
		}
	}
	finished := s.spin(patience) || force
	if finished {
		s.copyAll()
		for i := range s.tracees {
			if t := &s.tracees[i]; t.phase == stopped {
				t.detach()
			}
		}
		s.end = s.clock()
	}
	s.unblock()
	return finished
}

// spin looks until no thread runs any more.
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
			s.firstStop, s.seen = s.lastRunning, now
		}
		if running == 0 {
			return true
		}
		if now-begin > patience {
			return false
		}
	}
}

// block and unblock keep signals, and with them the preemption of goroutines, away from the thread.
//
//go:nosplit
//go:norace
func (s *session) block() {
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

//go:norace
func (s *session) copyAll() {
	for i := range s.tracees {
		if t := &s.tracees[i]; t.phase == stopped && !t.foreign {
			s.copy(t)
		}
	}
	for i := range s.pieces {
		s.copyPiece(&s.also[i], &s.tracees[0])
	}
	if s.trail.wanted {
		s.copyTrail(&s.tracees[0])
	}
	for i := range s.tracees {
		if t := &s.tracees[i]; t.phase == stopped && !t.foreign && len(s.blocks.wanted) > 0 {
			s.copyBlocks(t)
			break
		}
	}
}

// copyPiece reads further memory, by way of the main thread if that stands still.
//
//go:nosplit
//go:norace
func (s *session) copyPiece(p *piece, t *tracee) {
	start, end, ok := s.stackAround(p.address)
	if !ok || t.phase != stopped || t.foreign {
		return
	}
	stackAt := t.stackAt
	p.start, p.at = start, s.arena.used
	p.length = s.read(t, start, end)
	p.cut = p.length < int(end-start)
	s.arena.used += p.length
	t.stackAt = stackAt
}

// copy reads registers and stack of a thread that stands still.
//
//go:nosplit
//go:norace
func (s *session) copy(t *tracee) {
	t.vector = iovec{uintptr(unsafe.Pointer(&t.registers)), maxRegisters}
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(t.tid), ntPRStatus,
		uintptr(unsafe.Pointer(&t.vector)), 0, 0)
	if errno != 0 {
		t.errno = errno
		return
	}
	t.length = int(t.vector.length)
	if floatingSize > 0 {
		t.copyFloating()
	}
	sp, ok := spOf(&t.registers, t.length)
	if !ok {
		return
	}
	if s.coroutines.wanted {
		s.findCoroutines(t)
	}
	start, end, ok := s.stackOf(sp)
	if !ok {
		return
	}
	n := s.read(t, start, end)
	if page := sp &^ s.pageMask; n == 0 && start < page {
		// The red zone reaches into a page that is not there; the page of the stack pointer may be.
		start = page
		n = s.read(t, start, end)
	}
	t.stackStart, t.stackLen = start, n
	t.cut = t.cut || n < int(end-start)
	s.arena.used += n
	if s.coroutines.wanted {
		s.copyCoroutines(t, sp)
	}
}

// copyFloating reads the floating point registers, where they are needed.
//
//go:nosplit
//go:norace
func (t *tracee) copyFloating() {
	t.vector = iovec{uintptr(unsafe.Pointer(&t.floating)), floatingSize}
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(t.tid), ntFPRegSet,
		uintptr(unsafe.Pointer(&t.vector)), 0, 0)
	t.hasFloat = errno == 0 && t.vector.length == floatingSize
}

// read copies memory of the target behind what the arena holds, as far as there is room and the memory is readable.
//
//go:nosplit
//go:norace
func (s *session) read(t *tracee, start, end uint64) int {
	t.stackAt = s.arena.used
	size := min(end-start, s.maxStack, uint64(len(s.arena.memory)-s.arena.used))
	if size == 0 {
		return 0
	}
	t.local = iovec{uintptr(unsafe.Pointer(&s.arena.memory[s.arena.used])), uintptr(size)}
	t.remote = iovec{uintptr(start), uintptr(size)}
	n, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(t.tid), uintptr(unsafe.Pointer(&t.local)), 1,
		uintptr(unsafe.Pointer(&t.remote)), 1, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// sleep lets others have the CPU, the target among them. The thread's timer slack, 50 µs by default, would come on
// top of every nap.
func (s *session) sleep(nap int64) {
	if !s.exact {
		s.exact = true
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	}
	t := unix.NsecToTimespec(nap)
	if s.urgent && nap < shortNap {
		// Unknown to the scheduler, which might give what this thread needs to go on to an ordinary one meanwhile.
		_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
		return
	}
	_ = unix.Nanosleep(&t, nil)
}
