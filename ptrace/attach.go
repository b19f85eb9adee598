package ptrace

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// maxRounds is how often attachThreads lists the threads at most.
const maxRounds = 16

func noStackError(t *tracee) error {
	sp, ok := snapshot.StackPointer(&t.registers, t.length)
	if !ok {
		return fmt.Errorf("thread %d: %w: unknown register layout of %d bytes", t.tid, snapshot.ErrNoStack, t.length)
	}
	return fmt.Errorf("thread %d: %w 0x%x", t.tid, snapshot.ErrNoStack, sp)
}

// attach seizes the main thread, or all threads. The process keeps running.
func (s *session) attach() error {
	pid := s.call.target.PID
	s.tracees = append(s.tracees, tracee{tid: pid, name: s.before.Comm, state: s.before.State})
	main := &s.tracees[0]
	main.err = seize(pid, pid)
	if main.err == nil {
		main.phase = seized
	}
	if !s.call.options.AllThreads {
		return main.err
	}
	if main.err != nil && !errors.Is(main.err, process.ErrExited) {
		return main.err
	}
	return s.attachThreads()
}

// attachThreads lists and seizes the threads of the target until a list has no new ones. The stack of a thread that started
// meanwhile can be newer than s.maps. In this case, attachThreads reads the maps again.
func (s *session) attachThreads() error {
	pid := s.call.target.PID
	known := map[int]bool{pid: true}
	u := newUndertaker()
	defer func() { s.markReaped(u.leave()) }()
	for round := range maxRounds {
		tids, err := process.Threads(pid)
		if err != nil {
			return process.ReadError(pid, pid, err)
		}
		fresh := 0
		s.leftOut = 0
		for _, tid := range tids {
			switch {
			case known[tid]:
			case len(s.tracees) >= snapshot.MaxThreads:
				s.leftOut++
			default:
				known[tid] = true
				if s.attachThread(tid) {
					u.hold(tid)
				}
				fresh++
			}
		}
		if fresh == 0 {
			break
		}
		if round > 0 || len(known) > s.before.Threads || len(s.maps) == 0 {
			if err := s.readMapsBy(tids); err != nil {
				return err
			}
		}
	}
	return s.arena.reserve(s.call.options.MaxStack, len(s.tracees)+s.pieces)
}

// attachThread adds a thread to s.tracees and seizes it, except for a kernel worker. It reports whether it seized the thread.
func (s *session) attachThread(tid int) bool {
	pid := s.call.target.PID
	t := tracee{tid: tid}
	if stat, err := process.ReadTaskStat(pid, tid); err == nil {
		t.name, t.state = stat.Comm, stat.State
		s.dumping = s.dumping || stat.Dumping()
		if stat.Worker() {
			t.err = snapshot.ErrKernelWorker // stopping it would fail the work that it does for the process
			s.tracees = append(s.tracees, t)
			return false
		}
	}
	if t.err = seize(pid, tid); t.err == nil {
		t.phase = seized
		// The thread may have ended after it was listed, and its id may now belong to a thread of another process.
		t.foreign = errors.Is(unix.Tgkill(pid, tid, 0), unix.ESRCH)
	}
	s.tracees = append(s.tracees, t)
	return t.phase == seized
}

// markReaped records that threads, given by their ids, were reaped by the exitReaper.
func (s *session) markReaped(threads []int) {
	for i := range s.tracees {
		if t := &s.tracees[i]; slices.Contains(threads, t.tid) {
			t.phase = reaped
		}
	}
}

// refresh takes the name and state of the main thread from now, because Options.MapsSnapshot may have old ones. The kernel
// shows a thread that was stopped before the seize as being in a tracing stop ('t'): refresh replaces this by 'T'.
func (s *session) refresh(now *process.Stat) {
	main := &s.tracees[0]
	main.name, main.state = now.Comm, now.State
	if now.State == 't' {
		main.state = 'T'
	}
}

// seize attaches to a thread. It can block while the target starts another program (execve). If the target does this later,
// the kernel stops it at once (PTRACE_O_TRACEEXEC), and the method look sets tracee.executed. The new program can have
// rights for which the target was not checked.
func seize(pid, tid int) error {
	const tries = 20
	var err error
	for range tries {
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0,
			unix.PTRACE_O_TRACEEXEC, 0, 0)
		switch errno {
		case 0:
			return nil
		case unix.ESRCH:
			return process.Exited(tid)
		case unix.EPERM, unix.EACCES:
		default:
			return process.Failed(tid, "PTRACE_SEIZE", errno)
		}
		// The cause of the error may be gone already: another tracer has detached, or the thread was about to pass its id
		// to a thread that executed another program. Then the next try can succeed.
		err = process.ExplainAttach(pid, tid)
		var denied *process.PermissionError
		var traced *process.TracedError
		switch {
		case errors.As(err, &denied) && denied.Reason == process.ReasonUnknown:
		case errors.As(err, &traced) && traced.Tracer == 0:
		default:
			return err
		}
		time.Sleep(500 * time.Microsecond)
	}
	return err
}

// identify returns an error if the seized process is not the caller's target, or has executed another program since s.before
// was read. A seized thread keeps its id, dead or alive, until the tracer reaps it, which only release does. So the id
// cannot pass to another process from now on. If the process executes another program, it keeps id, parent and start time.
func (s *session) identify() error {
	target := &s.call.target
	now, err := process.ReadStat(target.PID)
	if errors.Is(err, process.ErrGone) {
		return process.Exited(target.PID)
	}
	if err != nil {
		return err
	}
	s.own = now.PPID == unix.Getpid()
	if s.known {
		s.refresh(&now)
	}
	s.processor = now.Processor
	s.dumping = s.dumping || now.Dumping()
	if patience := s.call.options.Patience; now.State == 'D' && patience > 0 {
		s.call.limit = min(s.call.limit, time.Since(s.call.started)+patience)
	}
	if target.Held != nil && !target.Held.Lives() {
		return process.Exited(target.PID) // even if the id now belongs to another process
	}
	if err := target.Compare(&now); err != nil {
		return err
	}
	switch {
	case now.StartTime != s.before.StartTime, now.StartCode != s.before.StartCode, now.StackStart != s.before.StackStart:
		if process.IsDead(now.State) {
			return nil // release will notice the end of the process
		}
		return errAgain
	}
	for i := range s.tracees {
		if t := &s.tracees[i]; t.phase != seized || t.foreign {
			continue
		}
		if err := target.CompareThread(s.tracees[i].tid); err != nil && !errors.Is(err, process.ErrExited) {
			return err
		}
	}
	return target.CompareUser()
}
