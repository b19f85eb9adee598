package worker

import (
	"sync"
	"testing"
	"time"

	"pg_stat_backtrace/worker/spool"
)

// TestTracesDoNotWaitForEachOther: a poll of a trace that is done and the start of another one take the same locks.
func TestTracesDoNotWaitForEachOther(t *testing.T) {
	w := &Worker{}
	const rounds = 20_000
	var both sync.WaitGroup
	both.Go(func() {
		for range rounds {
			done := &functionTrace{cancel: func() {}, polled: time.Now(), done: true, err: errTraces}
			_ = w.functions.add(1, done)
			_, _ = w.pollFunctionTrace(spool.Request{Backend: 1})
		}
	})
	both.Go(func() {
		for range rounds {
			_ = w.functions.add(2, &functionTrace{cancel: func() {}, polled: time.Now()})
		}
	})
	ended := make(chan struct{})
	go func() { both.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the traces wait for each other")
	}
}
