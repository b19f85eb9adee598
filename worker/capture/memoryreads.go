package capture

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"pg_stat_backtrace/worker/naming"
)

// maxMemoryReads is the number of processes whose memory contexts may be read at the same time.
const maxMemoryReads = 4

// memoryReads are the reads of memory contexts in progress, at most one for each process. A read that blocks in the
// kernel keeps its place (of maxMemoryReads), so that the number of blocked threads is limited. Captures have places of
// their own, and continue when all places of memoryReads are taken.
type memoryReads struct {
	places *semaphore.Weighted

	mu        sync.Mutex
	byProcess map[naming.ProcessKey]*memoryRead
}

// memoryRead is one read in progress.
type memoryRead struct {
	abandoned chan struct{} // closed if the caller returns before the read has ended
	done      chan struct{} // closed when the read has ended
}

func newMemoryReads() *memoryReads {
	return &memoryReads{
		places: semaphore.NewWeighted(maxMemoryReads), byProcess: make(map[naming.ProcessKey]*memoryRead),
	}
}

// begin waits until no other read of the process is in progress, and then for one of the maxMemoryReads places. If it
// returns no error, the caller must call end. If another read of the process was abandoned, the error is
// process.ErrUnreachable. If ctx ends, begin returns ctx's error.
func (m *memoryReads) begin(ctx context.Context, key naming.ProcessKey, since time.Time) (*memoryRead, error) {
	for {
		m.mu.Lock()
		other := m.byProcess[key]
		if other == nil {
			break
		}
		m.mu.Unlock()
		select {
		case <-other.done:
		case <-other.abandoned:
			return nil, unreachable(key.PID, since)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	read := &memoryRead{abandoned: make(chan struct{}), done: make(chan struct{})}
	m.byProcess[key] = read
	m.mu.Unlock()
	if err := m.places.Acquire(ctx, 1); err != nil {
		m.remove(key, read)
		return nil, err
	}
	return read, nil
}

// end releases the place, and allows the next read of the process.
func (m *memoryReads) end(key naming.ProcessKey, read *memoryRead) {
	m.places.Release(1)
	m.remove(key, read)
}

func (m *memoryReads) remove(key naming.ProcessKey, read *memoryRead) {
	m.mu.Lock()
	delete(m.byProcess, key)
	m.mu.Unlock()
	close(read.done)
}
