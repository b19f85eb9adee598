package process

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ReadTimeout is the timeout for reading a process's state in /proc or its memory, if the read blocks. The kernel
// normally responds at once.
const ReadTimeout = 300 * time.Millisecond

// busyTimeout is the timeout for a read that does not block in the kernel, but takes long because its thread waits for a
// processor on a busy host.
const busyTimeout = 20 * ReadTimeout

// Guard serializes reads of each process: at most one runs for each process at a time. While the address space of a
// process is locked, a read blocks in the kernel, and only the process can end it. So the process blocks only one of our
// threads, however many callers read it.
//
//nolint:gochecknoglobals // what hangs is the process, however many capturers there are
var Guard = processReads{ByPID: map[int]*processRead{}}

type processReads struct {
	mu    sync.Mutex
	ByPID map[int]*processRead
}

// processRead is a read in progress.
type processRead struct {
	since  time.Time
	thread readingThread
	done   chan struct{} // closed when the read has ended; nil until a caller waits for that
	lost   bool          // a caller stopped waiting: the read blocks
}

// Begin reports whether the caller may read the process now. If so, the caller must call End after the read. Begin waits for
// a read of the process in progress. If that read blocks for ReadTimeout, or takes longer than busyTimeout, Begin returns
// false.
func (p *processReads) Begin(pid int) bool {
	turn := p.begin(pid)
	if turn == nil {
		return false
	}
	turn.thread.isCaller() // otherwise other callers would wait for busyTimeout when the read blocks
	return true
}

// begin does the work of Begin. It returns the read that the caller may make, or nil.
func (p *processReads) begin(pid int) *processRead {
	for {
		p.mu.Lock()
		l := p.ByPID[pid]
		if l == nil {
			l = &processRead{since: time.Now()}
			p.ByPID[pid] = l
			p.mu.Unlock()
			return l
		}
		if l.done == nil {
			l.done = make(chan struct{})
		}
		lost := l.lost
		p.mu.Unlock()
		if lost || !l.thread.endsInTime(l.done, l.since) {
			p.lose(l)
			return nil
		}
	}
}

// lose makes later calls of begin for this process return nil at once, until the read ends.
func (p *processReads) lose(l *processRead) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.lost = true
}

func (p *processReads) End(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.ByPID[pid]; l.done != nil {
		close(l.done)
	}
	delete(p.ByPID, pid)
}

// readingThread is the thread that reads a process: its id in the kernel, or 0 before it has begun.
type readingThread struct{ id atomic.Int32 }

// isCaller records the calling thread as the reading thread. If the goroutine later moves to another thread, it was not
// blocked until then: see sleepsInCall.
func (r *readingThread) isCaller() { r.id.Store(int32(unix.Gettid())) } // an id of a thread

// endsInTime waits until done is closed, and reports whether this happened in time. If the thread is blocked in a system
// call, endsInTime gives up ReadTimeout after the time since. Otherwise it gives up busyTimeout after since.
func (r *readingThread) endsInTime(done <-chan struct{}, since time.Time) bool {
	for wait := ReadTimeout - time.Since(since); ; wait = ReadTimeout {
		switch {
		case wait > 0 && closedWithin(done, wait), isClosed(done):
			return true
		case r.blocked(done), time.Since(since) > busyTimeout:
			return isClosed(done)
		}
	}
}

// blocked reports whether the thread sleeps in the same system call in two checks with a pause between them. A thread
// that waits for a processor, or that Go has put to sleep, is not blocked.
func (r *readingThread) blocked(done <-chan struct{}) bool {
	id := r.id.Load()
	if id == 0 {
		return false
	}
	first := systemCall(int(id))
	return sleepsInCall(first) && !closedWithin(done, ReadTimeout/10) && systemCall(int(id)) == first
}

// systemCall returns the system call in which one of our threads sleeps, in the format of /proc/PID/task/TID/syscall
// (proc(5)). It returns "unknown" if this file cannot be read.
func systemCall(thread int) string {
	text, err := os.ReadFile("/proc/self/task/" + strconv.Itoa(thread) + "/syscall")
	if err != nil {
		return "unknown"
	}
	return string(text)
}

// sleepsInCall reports whether a result of systemCall shows a thread that sleeps in a system call. "running" means that it
// runs or waits for a processor. The number -1 means that it sleeps outside of system calls, for example in a page fault of
// our memory. Calls that no read of a process makes do not count. The goroutine of the read has moved to another thread
// then, and this one is idle or works for another goroutine.
func sleepsInCall(call string) bool {
	number, _, _ := strings.Cut(strings.TrimSpace(call), " ")
	n, err := strconv.Atoi(number)
	if err != nil {
		return number != "running"
	}
	switch n {
	case -1, unix.SYS_FUTEX, unix.SYS_EPOLL_PWAIT, unix.SYS_NANOSLEEP, unix.SYS_PPOLL, unix.SYS_WRITE, unix.SYS_PWRITE64,
		unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_WAITID, unix.SYS_PTRACE:
		return false
	}
	return true
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

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// ReadMemoryWithTimeout is ReadMemory with a timeout, after which the error is ErrUnreachable. Use a Memory for several reads.
func ReadMemoryWithTimeout(pid int, addr uint64, p []byte) (int, error) {
	return NewMemory(pid).Read(addr, p)
}

// WithTimeout runs the function read in a goroutine, and reports whether read ended in time. If not, the goroutine
// continues: the caller must not use the variables that read writes, and the goroutine calls the function late when
// read ends. If an earlier read of the process still blocks, WithTimeout calls only late, at once. If read panics in
// time, WithTimeout panics. A later panic in read or late is dropped, because no caller waits for it.
func WithTimeout(pid int, read, late func()) bool {
	turn := Guard.begin(pid)
	if turn == nil {
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
	var problem any // a panic of read: it must not end the program in the goroutine
	go func() {
		defer close(done)
		turn.thread.isCaller()
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
			defer func() { _ = recover() }() // otherwise a panic of late would end the program
			late()
		}
	}()
	if !turn.thread.endsInTime(done, turn.since) && claim() {
		Guard.lose(turn)
		return false
	}
	<-done
	if problem != nil {
		panic(problem)
	}
	return true
}
