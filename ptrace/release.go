package ptrace

import (
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/procfs"
)

// release detaches whatever is still attached, and puts the thread back to normal. It returns false if something
// remains that only the end of the thread can detach.
func (s *session) release() bool {
	if s.blocking {
		s.unblock()
	}
	begin, nap := s.clock(), firstNap
	for s.drain() > 0 {
		if s.clock()-begin > drainTime {
			s.doubtful = true
			break
		}
		s.sleep(nap)
		nap = min(2*nap, lastNap)
	}
	if s.exact {
		s.exact = false
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // 0: the default
	}
	return !s.doubtful
}

// drain stops, detaches and reaps what it can, and returns how many threads are left.
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
			s.bury(t)
		case gone:
			// A process that executed another program: the thread that did so has got the process's number, and may
			// be one of ours.
			s.doubtful = s.doubtful || len(s.tracees) > 1
		default: // nothing to do
		}
		if t.phase == seized || t.phase == stopped || t.phase == exited {
			left++
		}
	}
	return left
}

// bury takes notice of the end of a thread, except a child of this very process: that one belongs to whoever started
// it.
func (s *session) bury(t *tracee) {
	if (s.own && t.tid == s.flight.target.PID) || t.reap() {
		t.phase = buried
	}
}

// buryTheDead looks after the threads that do not stop because they have ended. The end of a main thread is not
// reported before that of all others, and the ends of the others block it until they are taken notice of.
func (s *session) buryTheDead() {
	for i := range s.tracees {
		t := &s.tracees[i]
		if t.phase == seized {
			if stat, err := procfs.ReadTaskStat(s.flight.target.PID, t.tid); err == nil && isDead(stat.State) {
				t.phase = exited
			}
		}
		if t.phase == exited {
			s.bury(t)
		}
	}
}
