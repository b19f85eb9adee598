package spool

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"pg_stat_backtrace/worker/limits"
)

// call is a request, from its arrival until its answer has been fetched or the call is abandoned.
type call struct {
	answer  string // name of the answer's file
	backend int
	who     limits.Who
	written time.Time       // modification time of the request file
	begun   time.Time       // the same time, by the monotonic clock
	ctx     context.Context //nolint:containedctx // it lives as long as the call
	cancel  context.CancelFunc
	ended   chan struct{}          // closed when the handler has returned
	slot    atomic.Pointer[func()] // releases the handler's slot in Spool.slots; nil: the handler has no slot

	// Guarded by calls.mu.
	over      bool          // the call was abandoned or has ended
	delivered time.Time     // zero: no answer yet
	size      int64         // space of the answer's file, in bytes; see onDisk
	free      func()        // releases the room of the answer in calls.room; nil: the answer has no room
	place     *list.Element // in class.answers
}

// calls has the calls in progress, and the answers that have not been fetched. A backend makes one call at a time. When a
// backend makes another call, it no longer waits for its earlier call. The earlier call is then abandoned, and its answer is
// removed.
type calls struct {
	room   *limits.Gate // bytes of unfetched answers
	remove func(name string)

	mu        sync.Mutex
	byBackend map[int]*call
	answers   map[string]*call      // delivered, not fetched yet
	classes   map[limits.Who]*class // the delivered answers, by role
	dropped   int                   // answers that were removed to make room
}

// class has the answers for one role, or for all superusers, the oldest first.
type class struct {
	answers list.List
	size    int64
}

func newCalls(room *limits.Gate, remove func(name string)) *calls {
	return &calls{
		room: room, remove: remove,
		byBackend: map[int]*call{}, answers: map[string]*call{}, classes: map[limits.Who]*class{},
	}
}

// begin adds a call, and abandons the earlier call of its backend. It returns nil if it already knows a later call of the
// backend, because the backend then no longer waits for this call. This can happen only if no inotify event reported the
// request (the parameter event is false).
func (c *calls) begin(ctx context.Context, req *Request, written time.Time, event bool) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch old := c.byBackend[req.Backend]; {
	case old == nil:
	case event || old.written.Before(written):
		c.abandon(old)
	case written.Before(old.written):
		return nil
	}
	// The end of ctx does not end the call, because a worker that shuts down finishes running requests.
	n := &call{
		answer: req.ID + repSuffix, backend: req.Backend, who: who(req), written: written,
		begun: time.Now().Add(-max(0, time.Since(written))), ended: make(chan struct{}),
	}
	n.ctx, n.cancel = req.context(ctx)
	c.byBackend[req.Backend] = n
	return n
}

func who(req *Request) limits.Who {
	if req.Superuser {
		return limits.Who{Superuser: true}
	}
	return limits.Who{Role: req.Caller}
}

// deliver makes room for an answer of size bytes. The result wanted reports whether the caller may still fetch the
// answer, and the result room whether there is room. To make room, deliver removes the oldest answers of the same role.
// If this role has none, it removes the oldest answers of the role that uses most room.
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
		victim := c.nextToDrop(n.who)
		if victim == nil {
			c.end(n)
			return true, false
		}
		c.abandon(victim)
		c.dropped++
	}
}

// onDisk returns the space that a file takes in a tmpfs: whole pages, and an inode.
func onDisk(size int64) int64 {
	const page, inode = 4096, 1024
	return (size+page-1)/page*page + inode
}

// nextToDrop returns the call whose answer must be removed next to make room for an answer to the role asker; nil: no answer is
// left.
func (c *calls) nextToDrop(asker limits.Who) *call {
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

// abandoned reports whether the call was abandoned while its answer was written.
func (c *calls) abandoned(n *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return n.over
}

// abandon abandons a call, and removes its answer.
func (c *calls) abandon(n *call) {
	n.cancel()
	if !n.delivered.IsZero() {
		c.remove(n.answer)
	}
	c.end(n)
}

// abandonAll abandons all calls.
func (c *calls) abandonAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.byBackend {
		c.abandon(n)
	}
}

// end removes a call from the lists and releases its room.
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

// fetched notes that the answer with this file name has been read, and ends its call.
func (c *calls) fetched(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.answers[name]; n != nil {
		c.end(n)
	}
}

// waits reports whether the file with this name is an answer that may still be fetched.
func (c *calls) waits(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answers[name] != nil
}

// awaited reports whether any caller may still look for its answer. Between two looks, backtrace.call in the extension's SQL
// sleeps for a quarter of the time that the caller has waited, but at most two seconds.
func (c *calls) awaited(now time.Time) bool {
	const (
		longestNap = 2 * time.Second
		delay      = 200 * time.Millisecond // longest time until a caller runs after its sleep
	)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.answers {
		nap := min(n.delivered.Sub(n.begun)/4, longestNap)
		if now.Sub(n.delivered) < nap+delay {
			return true
		}
	}
	return false
}

// expire removes answers that are older than answerLifetime, because their callers were cancelled or have ended. It returns the
// number of answers that deliver has removed, since the last call of expire, to make room.
func (c *calls) expire(now time.Time) (dropped int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.answers {
		if now.Sub(n.delivered) > answerLifetime {
			c.abandon(n)
		}
	}
	dropped, c.dropped = c.dropped, 0
	return dropped
}
