package process

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// ReadTimeout is the timeout for reading a process's state in /proc or its memory. The kernel normally responds at
// once.
const ReadTimeout = 300 * time.Millisecond

// Guard serializes reads of each process: at most one runs for each process at a time. While the address space of a
// process is locked, such a read blocks in the kernel, and nothing can end it except the process. So a process blocks
// one thread, however many callers query it.
//
//nolint:gochecknoglobals // what hangs is the process, however many capturers there are
var Guard = processReads{ByPID: map[int]*processRead{}}

type processReads struct {
	mu    sync.Mutex
	ByPID map[int]*processRead
}

// processRead is a read in progress.
type processRead struct {
	since time.Time
	done  chan struct{} // closed when the read has ended; nil until a caller waits for that
}

// Begin reports whether the process can be read now. If so, the caller must call End. Begin waits for a read in
// progress, but not if that has taken ReadTimeout already.
func (p *processReads) Begin(pid int) bool {
	for {
		p.mu.Lock()
		l := p.ByPID[pid]
		if l == nil {
			p.ByPID[pid] = &processRead{since: time.Now()}
			p.mu.Unlock()
			return true
		}
		left := ReadTimeout - time.Since(l.since)
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

func (p *processReads) End(pid int) {
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

// ReadMemoryWithTimeout is ReadMemory with a timeout. The error is also ErrUnreachable. Use a Memory for several reads.
func ReadMemoryWithTimeout(pid int, addr uint64, p []byte) (int, error) {
	return NewMemory(pid).Read(addr, p)
}

// WithTimeout runs read in a goroutine, and reports whether it ended in time. If not, the goroutine is left behind:
// the caller must not read what read writes, and late runs when read ends. If an earlier read of the process still
// blocks, WithTimeout does not run read. It then runs late at once. If read panics in time, WithTimeout panics. A panic later, in read or in late, ends nothing: no
// caller waits for it.
func WithTimeout(pid int, read, late func()) bool {
	if !Guard.Begin(pid) {
		late()
		return false
	}
	done := make(chan struct{})
	var mu sync.Mutex
	claimed := false
	claim := func() (first bool) {
		mu.Lock()
		defer mu.Unlock()
		first, claimed = !claimed, true
		return first
	}
	var problem any // of read; the goroutine must not end the program
	go func() {
		defer close(done)
		func() {
			defer func() {
				if problem = recover(); problem != nil {
					problem = fmt.Sprintf("%v\n%s", problem, debug.Stack())
				}
			}()
			read()
		}()
		Guard.End(pid)
		if !claim() {
			defer func() { _ = recover() }() // else it would end the program
			late()
		}
	}()
	if !closedWithin(done, ReadTimeout) && claim() {
		return false
	}
	<-done
	if problem != nil {
		panic(problem)
	}
	return true
}
