package verb

import (
	"context"
	"sync"
	"testing"
	"time"

	"pg_stat_backtrace/worker/measure/functrace"
	"pg_stat_backtrace/worker/serve/spool"
)

// TestTracesDoNotWaitForEachOther: a poll of a trace that is done and the start of another one take the same locks.
func TestTracesDoNotWaitForEachOther(t *testing.T) {
	s := &Service{}
	const rounds = 20_000
	var both sync.WaitGroup
	both.Go(func() {
		for range rounds {
			done := &functionTrace{cancel: func() {}, polled: time.Now(), done: true, err: errTraces}
			_ = s.functions.add(1, done)
			_, _ = s.pollFunctionTrace(spool.Request{Backend: 1})
		}
	})
	both.Go(func() {
		for range rounds {
			_ = s.functions.add(2, &functionTrace{cancel: func() {}, polled: time.Now()})
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

// TestResultsOfLostCallersRemoved: a caller that was canceled asks no more. The result of its trace does not stay in
// memory, whether the trace ended before or ends later. A caller that still asks gets its result.
func TestResultsOfLostCallersRemoved(t *testing.T) {
	f := &functionTraces{}
	start := func(backend int, asked time.Time) *functionTrace {
		trace := &functionTrace{cancel: func() {}, polled: asked}
		if err := f.add(backend, trace); err != nil {
			t.Fatal(err)
		}
		return trace
	}
	end := func(backend int, trace *functionTrace) {
		trace.finish(&functrace.Result{}, nil)
		f.expire(backend, trace)
	}
	there := func(backend int) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.byPID[backend] != nil
	}
	gone, waiting, unfetched := start(1, time.Now()), start(2, time.Now()), start(3, time.Now())
	gone.polled = time.Now().Add(-traceAbandoned - time.Second)
	unfetched.polled = time.Now().Add(time.Second - traceAbandoned)
	end(1, gone)
	if there(1) || gone.result != nil {
		t.Error("a trace of a lost caller has stored its result")
	}
	end(2, waiting)
	end(3, unfetched)
	if !there(3) {
		t.Error("a result was removed before its caller could ask")
	}
	for deadline := time.Now().Add(3 * time.Minute); there(3); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a result that no caller has fetched stays")
		}
	}
	if done, result, _ := waiting.poll(); !there(2) || !done || result == nil {
		t.Errorf("the caller that waits: %v, %v", done, result)
	}
}

// TestTracesEndWithTheWorker stops a worker with a trace that its caller waits for, and with a trace of the same backend
// that the other one has replaced. Both have ended when stop returns, and no further trace starts.
func TestTracesEndWithTheWorker(t *testing.T) {
	t.Parallel()
	f := &functionTraces{}
	ended := make(chan int, 2)
	begin := func(n int) {
		ctx, cancel := context.WithCancel(context.Background())
		trace := &functionTrace{cancel: cancel, polled: time.Now()}
		if n == 0 {
			trace.cancel = func() {} // the first one does not end when it is replaced, and is canceled below
			time.AfterFunc(50*time.Millisecond, cancel)
		}
		if err := f.add(1, trace); err != nil {
			t.Fatal(err)
		}
		if !f.run(trace, func() { <-ctx.Done(); ended <- n }) {
			t.Fatal("the trace does not start")
		}
	}
	begin(0)
	begin(1)
	f.stop()
	if len(ended) != 2 {
		t.Errorf("%d of 2 traces have ended", len(ended))
	}
	if f.run(&functionTrace{cancel: func() {}}, func() {}) {
		t.Error("a trace starts in a worker that has stopped")
	}
}
