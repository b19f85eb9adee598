package allocs

import (
	"context"
	"time"
)

// maxQueued is the number of bytes at which a queue is full. Further stacks then stay in the kernel's ring. When the
// ring is full, the kernel counts each new stack as lost (Counters.LostStacks) and sends it at a later call.
const maxQueued = 64 << 20

// queue passes batches of stacks to the goroutine that names them. It does not wait for that goroutine, and keeps the
// batches for which the channel has no room.
type queue struct {
	to    chan<- []Stack
	kept  [][]Stack
	bytes int // memory of the batches in kept
}

// add keeps a batch for the next send.
func (q *queue) add(list []Stack) {
	q.kept = append(q.kept, list)
	q.bytes += bytesOf(list)
}

// send passes on as many batches as the channel has room for.
func (q *queue) send() {
	for len(q.kept) > 0 {
		select {
		case q.to <- q.kept[0]:
			q.drop()
		default:
			return
		}
	}
}

// full reports whether the caller must wait for room before it adds a batch.
func (q *queue) full() bool { return q.bytes >= maxQueued }

// wait passes on the first kept batch. It gives up if the channel has no room before the deadline or the end of ctx.
func (q *queue) wait(ctx context.Context, deadline time.Time) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case q.to <- q.kept[0]:
		q.drop()
	case <-ctx.Done():
	case <-timer.C:
	}
}

// finish passes on all kept batches, however long it takes.
func (q *queue) finish() {
	for len(q.kept) > 0 {
		q.to <- q.kept[0]
		q.drop()
	}
}

// drop forgets the first batch.
func (q *queue) drop() {
	q.bytes -= bytesOf(q.kept[0])
	q.kept[0] = nil
	q.kept = q.kept[1:]
}

// bytesOf is an estimate of the memory that a batch needs.
func bytesOf(list []Stack) (n int) {
	const fixed = 1 << 10 // bytes of a stack's other data
	n = fixed * len(list)
	for i := range list {
		for j := range list[i].Snapshot.Threads {
			n += len(list[i].Snapshot.Threads[j].Stack.Data)
		}
	}
	return n
}
