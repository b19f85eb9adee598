package ptrace

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// exitReaper takes notice of the ends of threads that are held while the thread that holds them seizes another one.
// That waits while the process executes a program, which waits for the ends of all other threads; and the end of one
// that is held is none before it has been taken notice of. Each would wait for the other until this program ends.
//
// To take notice any thread of this process will do. Only this one can: it is not waiting.
type exitReaper struct {
	mu     sync.Mutex
	timer  *time.Timer
	over   bool
	held   []int // ids of threads
	reaped []int
}

// callsAfter is how often the reaper runs: seizing all threads of most processes takes less time.
const callsAfter = 10 * time.Millisecond

func newUndertaker() *exitReaper {
	u := &exitReaper{}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.timer = time.AfterFunc(callsAfter, u.call)
	return u
}

// hold says that a thread is held now. It must not be a main thread, whose end is its parent's to know.
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
		// The first call does not consume the event. It may be a stop, which the kernel reports to a tracer in any
		// case.
		err := unix.Waitid(unix.P_PID, tid, &info, unix.WEXITED|unix.WNOHANG|unix.WALL|unix.WNOWAIT, nil)
		if err == nil && (info.Signo == 0 || info.Code > cldDumped) {
			return false
		}
		if err == nil {
			err = unix.Waitid(unix.P_PID, tid, nil, unix.WEXITED|unix.WNOHANG|unix.WALL, nil)
		}
		if err != nil {
			return true // its number is not this thread's any more
		}
		u.reaped = append(u.reaped, tid) // from now on its number may be another thread's
		return true
	})
	u.timer.Reset(callsAfter)
}

// leave ends the reaping, when no threads are seized any more. It returns the reaped threads.
func (u *exitReaper) leave() []int {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	u.timer.Stop()
	return u.reaped
}
