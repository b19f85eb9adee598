package procmap

import (
	"sync"
	"time"
)

// SoonEnough is the timeout for reading a process's state in /proc or its memory. The kernel normally responds at
// once.
const SoonEnough = 300 * time.Millisecond

// Guard serializes reads of each process: at most one runs for each process at a time. While the address space of a
// process is locked, such a read blocks in the kernel, and nothing can end it except the process. So a process blocks
// one thread, however many callers query it.
//
//nolint:gochecknoglobals // what hangs is the process, however many capturers there are
var Guard = processLooks{ByPID: map[int]*look{}}

type processLooks struct {
	mu    sync.Mutex
	ByPID map[int]*look
}

// look is a read in progress.
type look struct {
	since time.Time
	done  chan struct{} // closed when the read has ended; nil until a caller waits for that
}

// Begin reports whether the process can be read now. If so, the caller must call End. Begin waits for a read in
// progress, but not if that has taken SoonEnough already.
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

// WithTimeout runs look in a goroutine, and reports whether it ended in time. If not, the goroutine is left behind:
// the caller must not read what look writes, and late runs when look ends. If an earlier read of the process still
// blocks, WithTimeout does not run look. It then runs late at once.
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
