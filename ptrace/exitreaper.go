package ptrace

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// exitReaper reaps seized threads that end while their tracer seizes another thread. This prevents a deadlock when the
// target starts another program (execve). The seize waits until execve has finished. execve waits until all other threads
// of the target have ended. And a seized thread counts as ended only after the tracer's process has reaped it.
//
// Any thread of this process can reap. The tracer's thread waits in the seize, so a timer reaps in another thread.
type exitReaper struct {
	mu     sync.Mutex
	timer  *time.Timer
	over   bool
	held   []int // ids of threads
	reaped []int
}

// callsAfter is the time between two runs of the reaper. Seizing all threads of most processes takes less time.
const callsAfter = 10 * time.Millisecond

func newUndertaker() *exitReaper {
	u := &exitReaper{}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.timer = time.AfterFunc(callsAfter, u.call)
	return u
}

// hold adds a seized thread. It must not be a main thread, whose parent has to reap it.
func (u *exitReaper) hold(tid int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.held = append(u.held, tid)
}

// call reaps the threads that have ended.
func (u *exitReaper) call() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return
	}
	u.held = slices.DeleteFunc(u.held, func(tid int) bool {
		var info unix.Siginfo
		// The first call does not consume the event. The event may be a stop, which the kernel reports to a tracer even
		// without WSTOPPED.
		err := unix.Waitid(unix.P_PID, tid, &info, unix.WEXITED|unix.WNOHANG|unix.WALL|unix.WNOWAIT, nil)
		if err == nil && (info.Signo == 0 || info.Code > cldDumped) {
			return false
		}
		if err == nil {
			err = unix.Waitid(unix.P_PID, tid, nil, unix.WEXITED|unix.WNOHANG|unix.WALL, nil)
		}
		if err != nil {
			return true // the thread is gone: its id may belong to another thread now
		}
		u.reaped = append(u.reaped, tid) // from now on its number may be another thread's
		return true
	})
	u.timer.Reset(callsAfter)
}

// leave ends the reaping and returns the ids of the reaped threads. The caller must seize no more threads afterwards.
func (u *exitReaper) leave() []int {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	u.timer.Stop()
	return u.reaped
}
