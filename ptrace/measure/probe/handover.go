package probe

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxWaiting is the largest number of hits that wait for a call of the callback take. Further hits stay in the
	// kernel's ring. If the ring is full, the kernel counts each new hit as lost.
	maxWaiting = 256
	// finishTime is the time after the end of the session in which the callback take still gets hits. The remaining
	// hits are counted as lost.
	finishTime = 30 * time.Second
)

// handover calls the callbacks take and tick of Session.Run in a second goroutine. Naming a stack can take long, for
// example if the memory map of the process cannot be read. Meanwhile Run keeps to the limit of the cost and to the end
// time.
type handover struct {
	session *Session
	free    chan *Hit // memory for new hits
	hits    chan *Hit // hits that wait for a call of take
	ticks   chan struct{}
	failed  chan error // the first error
	over    atomic.Bool
	done    sync.WaitGroup
}

// newHandover starts the goroutine.
func newHandover(s *Session, take func(*Hit) error, tick func() error) *handover {
	h := &handover{
		session: s, free: make(chan *Hit, maxWaiting), hits: make(chan *Hit, maxWaiting), ticks: make(chan struct{}, 1),
		failed: make(chan error, 1),
	}
	for range maxWaiting {
		h.free <- &Hit{}
	}
	h.done.Go(func() { h.run(take, tick) })
	return h
}

// run calls the callbacks take and tick until the channel hits is closed. After the first error, or when the field over
// is set, it counts the remaining hits as lost.
func (h *handover) run(take func(*Hit) error, tick func() error) {
	failed := false
	note := func(err error) {
		if err != nil && !failed {
			failed = true
			h.failed <- err
		}
	}
	for {
		select {
		case hit, more := <-h.hits:
			switch {
			case !more:
				return
			case failed || h.over.Load():
				h.session.lose(hit)
			default:
				note(shielded(func() error { return take(hit) }))
			}
			h.free <- hit
		case <-h.ticks:
			if tick != nil && !failed {
				note(shielded(tick))
			}
		}
	}
}

// shielded calls f and returns a panic as an error. Otherwise the panic would end the program, because no caller
// recovers.
func shielded(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("panic at a hit: %v\n%s", value, debug.Stack())
		}
	}()
	return f()
}

// next passes the next hit from the kernel's ring to run. It waits until the time room for free memory, and then until the
// time until for a hit. It returns false if there is no free memory or no hit.
func (h *handover) next(room, until time.Time) bool {
	var hit *Hit
	select {
	case hit = <-h.free:
	default:
		timer := time.NewTimer(time.Until(room))
		defer timer.Stop()
		select {
		case hit = <-h.free:
		case <-timer.C:
			return false
		}
	}
	buffer := hit.Stack[:0]
	if !h.session.programs.Next(until, hit) {
		hit.Stack = buffer
		h.free <- hit
		return false
	}
	hit.Stack = append(buffer, hit.Stack...) // Next will use the memory again
	h.hits <- hit
	return true
}

// tick requests a call of the callback tick in the second goroutine.
func (h *handover) tick() {
	select {
	case h.ticks <- struct{}{}:
	default:
	}
}

// err returns the first error of the callbacks take and tick; nil: none yet.
func (h *handover) err() error {
	select {
	case err := <-h.failed:
		return err
	default:
		return nil
	}
}

// finish passes on the last hits, for at most the time patience, and waits for the current call of the callback take.
// Call it after the probes were detached.
func (h *handover) finish(patience time.Duration) error {
	h.over.Store(patience <= 0)
	timer := time.AfterFunc(patience, func() { h.over.Store(true) })
	defer timer.Stop()
	for end := time.Now().Add(patience); !h.over.Load() && h.next(end, time.Now()); {
		if len(h.failed) > 0 {
			break
		}
	}
	close(h.hits)
	h.done.Wait()
	var rest Hit
	for h.session.programs.Next(time.Now(), &rest) {
		h.session.lose(&rest)
	}
	return h.err()
}
