package ptrace

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ProbeReadable reads a byte of a process, or tries to. The kernel locks an address space for every look at it, and
// while a thread has it locked that waits for a disk, and another one waits to change the mappings, nobody gets to see
// it. Then process_vm_readv(2) waits in such a way that not even SIGKILL ends the wait, and a target that has been
// stopped would stand still as long. A read of /proc/PID/mem waits too, but can be killed: it comes first.
//
// It returns once the memory may be read, or when that is not permitted; which may be never.
func ProbeReadable(pid int) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/mem", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // whoever may not open it is told so later
	}
	defer func() { _ = unix.Close(fd) }()
	var b [1]byte
	_, _ = unix.Pread(fd, b[:], anyAddress) // it need not be mapped
}

const anyAddress = 1 << 16

// mayHold says for which processes Reach is worth its time: those with a thread that may hold what others wait for. A
// process with one thread, which is not in the middle of something, has none.
func (s *session) mayHold() bool { return s.before.Threads > 1 || s.before.State == 'D' }

// ErrUnreachable is why a process is not seen that the kernel does not come back from reading. It does not say which of
// the reasons it is.
var ErrUnreachable = errors.New("the kernel does not come back from reading its memory: a thread keeps the address " +
	"space locked, or a page has to come from where nobody answers")

// unreturned are the observations that have not come back from the kernel, by process: who would wait with them is told
// at once.
//
//nolint:gochecknoglobals // what hangs is the process, however many users this package has
var unreturned = struct {
	sync.Mutex

	byPID map[int]int
}{byPID: map[int]int{}}

// bounded observes in a goroutine of its own, and leaves it behind if it does not come back in time.
func (w *observer) bounded() (*Snapshot, error) {
	unreturned.Lock()
	others := unreturned.byPID[w.target.PID]
	unreturned.Unlock()
	if others > 0 {
		return nil, w.unreachable()
	}
	done := make(chan struct{})
	var snapshot *Snapshot
	var err error
	go func() {
		defer close(done)
		defer w.survive(&err)
		snapshot, err = w.tryAll()
	}()
	timer := time.NewTimer(w.options.Deadline + grace)
	defer timer.Stop()
	select {
	case <-done:
		return snapshot, err
	case <-timer.C:
	case <-w.ctx.Done():
		timer.Reset(grace)
		select {
		case <-done:
			return snapshot, err
		case <-timer.C:
		}
	}
	leave(w.target.PID, done)
	if w.ctx.Err() != nil {
		return nil, fmt.Errorf("process %d: observation canceled: %w", w.target.PID, context.Cause(w.ctx))
	}
	return nil, w.unreachable()
}

// survive turns a panic into an error.
func (w *observer) survive(err *error) {
	if problem := recover(); problem != nil {
		*err = fmt.Errorf("process %d: panic during an observation: %v", w.target.PID, problem)
	}
}

func (w *observer) unreachable() error {
	return &ObserveError{PID: w.target.PID, After: time.Since(w.started), Attempts: 1, Blocked: ErrUnreachable}
}

// leave counts an observation as not returned until it has.
func leave(pid int, done <-chan struct{}) {
	count := func(n int) {
		unreturned.Lock()
		defer unreturned.Unlock()
		if unreturned.byPID[pid] += n; unreturned.byPID[pid] == 0 {
			delete(unreturned.byPID, pid)
		}
	}
	count(1)
	go func() {
		<-done
		count(-1)
	}()
}
