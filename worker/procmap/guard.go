package procmap

import (
	"sync"
	"time"
)

// SoonEnough is how long a look at a process may take that the kernel answers at once, if it does.
const SoonEnough = 300 * time.Millisecond

// Guard are the looks at processes that are under way: at most one of each process at a time. While a process keeps its
// address space locked the kernel does not come back from a look, and nothing ends that but the process. So a process
// costs one thread, however many ask about it.
//
//nolint:gochecknoglobals // what hangs is the process, however many capturers there are
var Guard = processLooks{ByPID: map[int]*look{}}

type processLooks struct {
	mu    sync.Mutex
	ByPID map[int]*look
}

// look is one that is under way.
type look struct {
	since time.Time
	done  chan struct{} // closed when it has come back; nil until another one waits for that
}

// Begin reports whether the process can be looked at now. If so, end must follow. It waits for a look that is under
// way, but not for one that has not come back soon.
func (p *processLooks) Begin(pid int) bool {
	for {
		p.mu.Lock()
		l := p.ByPID[pid]
		if l == nil {
			p.ByPID[pid] = &look{since: time.Now()}
			p.mu.Unlock()
			return true
		}
		left := SoonEnough - time.Since(l.since)
		if l.done == nil {
			l.done = make(chan struct{})
		}
		done := l.done
		p.mu.Unlock()
		if left <= 0 || !closedWithin(done, left) {
			return false
		}
	}
}

func (p *processLooks) End(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.ByPID[pid]; l.done != nil {
		close(l.done)
	}
	delete(p.ByPID, pid)
}

func closedWithin(done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// WithTimeout has a goroutine look at a process, and reports whether it has come back from the kernel. If not it is
// left behind, and may come back at any time: what it writes to must not be read, and late is called then. While it has
// not, nothing else looks at the process: then late is called at once, and look is not.
func WithTimeout(pid int, look, late func()) bool {
	if !Guard.Begin(pid) {
		late()
		return false
	}
	done := make(chan struct{})
	var mu sync.Mutex
	settled := false
	settle := func() (first bool) {
		mu.Lock()
		defer mu.Unlock()
		first, settled = !settled, true
		return first
	}
	go func() {
		look()
		Guard.End(pid)
		if !settle() {
			late()
		}
		close(done)
	}()
	return closedWithin(done, SoonEnough) || !settle()
}
