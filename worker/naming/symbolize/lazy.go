package symbolize

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Lazy is a part of a module that is read from files when it is first needed. One goroutine reads it, because a file
// may be on a slow disk and a caller must not wait longer than its deadline. Later callers wait for the same
// goroutine. So a disk that does not respond blocks a single goroutine.
type Lazy[T any] struct {
	begin sync.Once
	done  chan struct{} // made by begin, closed when value is final
	ready atomic.Bool   // set when done is closed
	value T
}

// ifReady returns the part if it has been read. It starts no read and does not wait.
func (p *Lazy[T]) ifReady() (value T, ok bool) {
	if !p.ready.Load() {
		return value, false
	}
	return p.value, true
}

// start lets a goroutine call the function build, which reads the part, unless a read has begun already. start does not
// wait. If build panics, the goroutine calls report with the error, and the part is the zero value.
func (p *Lazy[T]) start(report func(...error), build func() T) {
	p.begin.Do(func() {
		p.done = make(chan struct{})
		go func() {
			defer close(p.done)
			defer p.ready.Store(true)
			defer Survive(report)
			p.value = build()
		}()
	})
}

// Get starts to read the part, as start does, and waits for the part until the deadline. It returns false if the
// deadline passed before the part was read.
func (p *Lazy[T]) Get(late *Deadline, report func(...error), build func() T) (value T, ok bool) {
	p.start(report, build)
	select {
	case <-p.done:
		return p.value, true
	default:
	}
	select {
	case <-p.done:
		return p.value, true
	case <-late.passed():
		return value, false
	}
}

// set stores a part that another module has read already. It has no effect after start.
func (p *Lazy[T]) set(value T) {
	p.begin.Do(func() {
		p.done = make(chan struct{})
		p.value = value
		p.ready.Store(true)
		close(p.done)
	})
}

// Survive recovers from a panic in a parser of foreign files and reports it. A damaged file must not end the worker.
func Survive(report func(...error)) {
	if p := recover(); p != nil {
		report(fmt.Errorf("debugging information is ignored: %v", p))
	}
}
