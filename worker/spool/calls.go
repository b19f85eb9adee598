package spool

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"pg_stat_backtrace/worker/admission"
)

// call is a request from its arrival until its answer has been fetched, or will not be.
type call struct {
	answer  string // name of the answer's file
	backend int
	who     admission.Who
	written time.Time       // the request, by the clock of files
	ctx     context.Context //nolint:containedctx // it lives as long as the call
	cancel  context.CancelFunc
	ended   chan struct{}          // closed when the handler has returned
	slot    atomic.Pointer[func()] // gives back the handler's slot; nil: it has none

	// Guarded by calls.mu.
	over      bool      // nobody will fetch the answer
	delivered time.Time // zero: there is no answer yet
	size      int64     // of the answer, as the file system counts
	free      func()    // gives back the room of the answer; nil: it has none
	place     *list.Element
}

// calls are the calls under way, and the answers that have not been fetched. A backend makes one call at a time. When
// it has made another one, it waits no more for the one before: that is given up, and its answer removed.
type calls struct {
	room   *admission.Gate // bytes of answers that have not been fetched
	remove func(name string)

	mu        sync.Mutex
	byBackend map[int]*call
	answers   map[string]*call         // delivered, not yet fetched
	classes   map[admission.Who]*class // and by who asked
	dropped   int                      // answers that were removed to make room
}

// class are the answers for one role, the oldest first, or for all superusers.
type class struct {
	answers list.List
	size    int64
}

func newCalls(room *admission.Gate, remove func(name string)) *calls {
	return &calls{
		room: room, remove: remove,
		byBackend: map[int]*call{}, answers: map[string]*call{}, classes: map[admission.Who]*class{},
	}
}

// begin takes a call in, and gives up the one that its backend made before. It returns nil for a call that its backend
// has given up itself: a later one is known already. That is possible only if no event told of it in its turn.
func (c *calls) begin(ctx context.Context, req *Request, written time.Time, event bool) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch old := c.byBackend[req.Backend]; {
	case old == nil:
	case event || old.written.Before(written):
		c.giveUp(old)
	case written.Before(old.written):
		return nil
	}
	// A worker that is told to end finishes what runs.
	n := &call{
		answer: req.ID + repSuffix, backend: req.Backend, who: who(req), written: written, ended: make(chan struct{}),
	}
	n.ctx, n.cancel = req.context(ctx)
	c.byBackend[req.Backend] = n
	return n
}

func who(req *Request) admission.Who {
	if req.Superuser {
		return admission.Who{Superuser: true}
	}
	return admission.Who{Role: req.Caller}
}

// deliver makes room for an answer of the given size, and tells whether somebody may fetch it. Answers that wait for
// the longest time make room: first those of the same role, then those of the role that has most.
func (c *calls) deliver(n *call, size int64, now time.Time) (wanted, room bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.over || !n.delivered.IsZero() {
		return false, false
	}
	n.size = onDisk(size)
	for {
		if free, ok := c.room.Try(n.who, n.size); ok {
			n.free, n.delivered = free, now
			c.answers[n.answer] = n
			of := c.classes[n.who]
			if of == nil {
				of = &class{}
				c.classes[n.who] = of
			}
			n.place = of.answers.PushBack(n)
			of.size += n.size
			return true, true
		}
		victim := c.victim(n.who)
		if victim == nil {
			c.end(n)
			return true, false
		}
		c.giveUp(victim)
		c.dropped++
	}
}

// onDisk is what a file takes in a tmpfs: whole pages, and an inode.
func onDisk(size int64) int64 {
	const page, inode = 4096, 1024
	return (size+page-1)/page*page + inode
}

// victim chooses the answer that makes room.
func (c *calls) victim(asker admission.Who) *call {
	most := c.classes[asker]
	if most == nil {
		for who, of := range c.classes {
			if !who.Superuser && (most == nil || of.size > most.size) {
				most = of
			}
		}
	}
	if most == nil {
		return nil
	}
	oldest, _ := most.answers.Front().Value.(*call)
	return oldest
}

// given reports whether the call was given up while its answer was written.
func (c *calls) given(n *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return n.over
}

// giveUp ends a call that nobody waits for, and removes its answer.
func (c *calls) giveUp(n *call) {
	n.cancel()
	if !n.delivered.IsZero() {
		c.remove(n.answer)
	}
	c.end(n)
}

// end forgets a call.
func (c *calls) end(n *call) {
	n.over = true
	if n.free != nil {
		n.free()
		n.free = nil
		delete(c.answers, n.answer)
		of := c.classes[n.who]
		of.answers.Remove(n.place)
		if of.size -= n.size; of.answers.Len() == 0 {
			delete(c.classes, n.who)
		}
	}
	if c.byBackend[n.backend] == n {
		delete(c.byBackend, n.backend)
	}
}

// fetched says that an answer has been read.
func (c *calls) fetched(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.answers[name]; n != nil {
		c.end(n)
	}
}

// waits reports whether this is an answer that may still be fetched.
func (c *calls) waits(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answers[name] != nil
}

// expire removes answers that have waited for too long: their caller was cancelled, or ended. It returns how many
// others had to make room since the last time.
func (c *calls) expire(now time.Time) (dropped int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.answers {
		if now.Sub(n.delivered) > unread {
			c.giveUp(n)
		}
	}
	dropped, c.dropped = c.dropped, 0
	return dropped
}
