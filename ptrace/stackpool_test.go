package ptrace

import (
	"bytes"
	"slices"
	"testing"

	"pg_stat_backtrace/ptrace/snapshot"
)

// TestRelease checks that other captures do not change a snapshot, and that a released snapshot has no stacks.
func TestRelease(t *testing.T) {
	c := startTarget(t, "threads", "4")
	const pooled = 32 << 10 // bytes: longer stacks are not from the pool
	var kept []*snapshot.Snapshot
	var copies [][]byte
	for range 10 {
		s := mustCapture(t, c.pid, snapshot.Options{AllThreads: true})
		kept = append(kept, s)
		for i := range s.Threads {
			copies = append(copies, slices.Clone(s.Threads[i].Stack.Data))
		}
	}
	for _, s := range kept {
		for i := range s.Threads {
			if !bytes.Equal(s.Threads[i].Stack.Data, copies[0]) {
				t.Errorf("the stack of thread %d was changed", s.Threads[i].TID)
			}
			copies = copies[1:]
		}
	}
	for _, s := range kept {
		// With pages of 64 KB the main thread's stack is often too long for the pool.
		lent := slices.IndexFunc(s.Threads, func(th snapshot.Thread) bool { return len(th.Stack.Data) <= pooled })
		s.Release()
		s.Release() // a second call has no effect
		for i := range s.Threads {
			if data := s.Threads[i].Stack.Data; (data == nil) != (i == lent) {
				t.Errorf("thread %d of %d has %d bytes", i, len(s.Threads), len(data))
			}
		}
	}
	// Returned memory is used again, by one capture at a time.
	first, second := mustCapture(t, c.pid, snapshot.Options{}), mustCapture(t, c.pid, snapshot.Options{})
	if &first.Threads[0].Stack.Data[0] == &second.Threads[0].Stack.Data[0] {
		t.Error("two captures have the same memory")
	}
}
