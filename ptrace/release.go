package ptrace

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/thread"
)

// release detaches all threads that are still attached, and restores the tracing thread's settings. It returns false
// if a thread remains that only the end of the tracing thread can detach.
func (s *session) release() bool {
	if s.blocking {
		s.unblock()
	}
	s.doubtful = s.doubtful || s.dumping // a detach would need a stop of the target, which would end its core file
	if !s.dumping && !s.drained {
		s.drainNoSched()
	}
	if s.exact {
		s.exact = false
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // 0: the default
	}
	return !s.doubtful
}

// drainNoSched calls drainAll. The scheduler sees a separate system call.
//
//go:nosplit
//go:norace
func (s *session) drainNoSched() {
	thread.EnterSyscall()
	s.drainAll()
	thread.ExitSyscall()
}

// drainAll detaches the threads that are still attached, for at most drainTime. If a thread remains, it sets s.doubtful. A
// thread may stop because of an earlier interrupt at any time, so this also runs where the scheduler sees a system call.
//
//go:nosplit
//go:norace
func (s *session) drainAll() {
	s.drained = true
	begin := s.clock()
	for nap := firstNap; ; nap = min(2*nap, lastNap) {
		s.block()
		left := s.drain()
		s.unblock()
		if left == 0 {
			return
		}
		if s.clock()-begin > drainTime {
			s.doubtful = true
			return
		}
		s.doze(nap)
	}
}

// drain stops and detaches the attached threads, and reaps ended ones. It returns how many are still attached.
//
//go:nosplit
//go:norace
func (s *session) drain() (left int) {
	for i := range s.tracees {
		t := &s.tracees[i]
		if t.phase == seized {
			t.interrupt()
			t.look()
		}
		switch t.phase {
		case stopped:
			t.detach()
		case exited:
			if s.reapExit(t); t.phase == exited {
				t.phase = seized // a thread that looked dead may be another thread now, which has executed another program
			}
		case gone:
			// The process executed another program. The thread that did so has taken over the process's id, and may
			// be one of our tracees.
			s.doubtful = s.doubtful || len(s.tracees) > 1
		default: // nothing to do
		}
		if t.phase == seized || t.phase == stopped || t.phase == exited {
			left++
		}
	}
	return left
}

// reapExit reaps a thread that has ended. It does not reap a target that is a child of this process, because the code that
// started the child waits for it.
//
//go:nosplit
//go:norace
func (s *session) reapExit(t *tracee) {
	t.reap(s.own && t.tid == s.call.target.PID)
}

// reapExited reaps the threads that do not stop because they have ended. The kernel reports the end of a main thread only
// after all other threads were reaped.
//
//go:nosplit
//go:norace
func (s *session) reapExited() {
	for i := range s.tracees {
		t := &s.tracees[i]
		if t.phase == seized && process.IsDead(s.file.state(s.call.target.PID, t.tid)) {
			t.phase = exited
		}
		if t.phase == exited {
			s.reapExit(t)
		}
	}
}

// fileText has memory for the path of a thread's stat file, and for the part of its content up to the state.
type fileText struct {
	path [64]byte
	text [256]byte
}

// state returns the state of a thread, as Stat.State has it, or 0 if it cannot be read. It replaces process.ReadTaskStat, which
// is not nosplit and must not be called while the target is stopped.
//
//go:nosplit
//go:norace
func (f *fileText) state(pid, tid int) byte {
	n := f.add(0, "/proc/")
	n = f.number(n, pid)
	n = f.add(n, "/task/")
	n = f.number(n, tid)
	f.add(n, "/stat\x00")
	fd, _, errno := unix.RawSyscall6(unix.SYS_OPENAT, ^uintptr(0), uintptr(unsafe.Pointer(&f.path)),
		unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if errno != 0 {
		return 0
	}
	got, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&f.text)), uintptr(len(f.text)))
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	if errno != 0 {
		return 0
	}
	for i := min(int(got), len(f.text)) - 3; i >= 0; i-- {
		if f.text[i] == ')' { // the last one: a name may have others
			return f.text[i+2]
		}
	}
	return 0
}

// add writes a text after the first n bytes of the path, and returns the new number of bytes.
//
//go:nosplit
//go:norace
func (f *fileText) add(n int, text string) int {
	for i := range len(text) {
		f.path[n] = text[i] // not copy: the race detector would instrument it
		n++
	}
	return n
}

// number writes a number after the first n bytes of the path, and returns the new number of bytes.
//
//go:nosplit
//go:norace
func (f *fileText) number(n, v int) int {
	end := n + 1
	for rest := v / 10; rest > 0; rest /= 10 {
		end++
	}
	for i := end - 1; i >= n; i-- {
		f.path[i] = byte('0' + v%10)
		v /= 10
	}
	return end
}
