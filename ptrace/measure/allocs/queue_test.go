package allocs

import (
	"testing"
	"time"

	"pg_stat_backtrace/ptrace/snapshot"
)

// batchOf returns a batch of one stack.
func batchOf(number uint64, size int) []Stack {
	return []Stack{{number, &snapshot.Snapshot{Threads: []snapshot.Thread{{
		Stack: snapshot.Stack{Data: make([]byte, size)},
	}}}}}
}

// TestQueueKeepsOrderAndBound: batches arrive in their order, none is lost, and a full queue has room again after one
// was taken.
func TestQueueKeepsOrderAndBound(t *testing.T) {
	t.Parallel()
	to := make(chan []Stack, 1)
	q := &queue{to: to}
	const size = 1 << 20
	n := uint64(0)
	for ; !q.full(); n++ {
		q.add(batchOf(n, size))
		q.send()
	}
	if n < maxQueued/size/2 || n > maxQueued/size+1 {
		t.Errorf("%d batches of %d bytes fill a queue of %d bytes", n, size, maxQueued)
	}
	q.wait(t.Context(), time.Now()) // the channel is full
	if !q.full() {
		t.Error("a batch is gone, and nothing has taken it")
	}
	got := []uint64{(<-to)[0].Number}
	q.wait(t.Context(), time.Now().Add(time.Minute))
	if q.full() {
		t.Error("there is no room after a batch was taken")
	}
	go func() {
		q.finish()
		close(to)
	}()
	for list := range to {
		got = append(got, list[0].Number)
	}
	for i, number := range got {
		if number != uint64(i) {
			t.Fatalf("batch %d arrived as number %d", number, i)
		}
	}
	if uint64(len(got)) != n || q.bytes != 0 {
		t.Errorf("%d batches arrived of %d, and %d bytes are left", len(got), n, q.bytes)
	}
}
