package observe

import (
	"context"
	"fmt"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// unreturned has the number of observations whose caller stopped waiting while the kernel blocks them, by process. Further
// calls for such a process get an error at once.
//
//nolint:gochecknoglobals // the process hangs, for all users of this package
var unreturned = struct {
	sync.Mutex

	byPID map[int]int
}{byPID: map[int]int{}}

// grace is how long a call of bounded waits, after its deadline or cancellation, for the observation to end.
const grace = 300 * time.Millisecond

// bounded runs tryAll in a separate goroutine. If the goroutine does not end in time, bounded returns an error and leaves it
// running.
func (w *observer) bounded() (*snapshot.Snapshot, error) {
	unreturned.Lock()
	others := unreturned.byPID[w.target.PID]
	unreturned.Unlock()
	if others > 0 {
		return nil, w.unreachable()
	}
	done := make(chan struct{})
	var snapshot *snapshot.Snapshot
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
	return &Error{PID: w.target.PID, After: time.Since(w.started), Attempts: 1, Blocked: process.ErrUnreachable}
}

// leave counts an observation in unreturned until the channel done is closed.
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
