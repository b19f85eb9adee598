package symbolize

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Lazy is a part of a module, made from files when it is first needed. The goroutine that makes it is not the one that
// needs it: a file may be on a disk that takes its time, and who waits for it answers in time. Who comes later waits
// for the same goroutine, so a disk that never answers holds up one and no more.
type Lazy[T any] struct {
	begin sync.Once
	done  chan struct{} // made by begin, closed when value is final
	ready atomic.Bool   // done is closed
	value T
}

// now returns the part if it is there; the caller need not say then how it is made.
func (p *Lazy[T]) now() (value T, ok bool) {
	if !p.ready.Load() {
		return value, false
	}
	return p.value, true
}

// start has the part made, if nobody has yet, and does not wait for it. It tells if something has failed in a way in
// which nothing should.
func (p *Lazy[T]) start(tell func(...error), build func() T) {
	p.begin.Do(func() {
		p.done = make(chan struct{})
		go func() {
			defer close(p.done)
			defer p.ready.Store(true)
			defer Survive(tell)
			p.value = build()
		}()
	})
}

// Get has the part made, as start does, and waits for it until the deadline; false if it is not there by then.
func (p *Lazy[T]) Get(late *Deadline, tell func(...error), build func() T) (value T, ok bool) {
	p.start(tell, build)
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

// set makes it what another module has already.
func (p *Lazy[T]) set(value T) {
	p.begin.Do(func() {
		p.done = make(chan struct{})
		p.value = value
		p.ready.Store(true)
		close(p.done)
	})
}

// Survive is the net below a parser of foreign files, which should never panic: what is wrong with one file must not
// end the worker.
func Survive(tell func(...error)) {
	if p := recover(); p != nil {
		tell(fmt.Errorf("debugging information is not used: %v", p))
	}
}
