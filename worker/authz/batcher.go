package authz

import (
	"context"
	"sync"

	"pg_stat_backtrace/worker/host"
)

// most is the largest number of pairs of a process and a caller in one statement.
const most = 256

// A requestKey has the processes of one request, and the oid of its caller.
type requestKey struct {
	pids   []int
	caller uint32
}

// batcher collects the requests that arrive while a statement runs, and sends them as one statement. The worker queries
// permissions in one session. On a server with a thousand busy sessions this session gets a thousandth of the
// processors. One statement for each caller would then take longer than the callers wait.
type batcher struct {
	mu      sync.Mutex
	waiting []*waiter
	asking  bool // serve runs in a goroutine
	limit   int  // largest number of pairs in a statement; less than most after a statement that was too slow
}

// A waiter is a request for which a call of ask waits. The results are facts and err.
type waiter struct {
	requestKey

	ctx   context.Context //nolint:containedctx // the caller's context: cancelled requests are not sent
	done  chan struct{}   // closed when facts and err are valid
	facts map[int]Facts
	err   error
}

// ask returns the facts about each process, by pid. It returns ctx's error if ctx ends, or the error of the statement.
func (t *batcher) ask(ctx context.Context, server Querier, q requestKey) (map[int]Facts, error) {
	w := &waiter{requestKey: q, ctx: ctx, done: make(chan struct{}), facts: make(map[int]Facts, len(q.pids))}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	if !t.asking {
		t.asking = true
		go t.serve(context.WithoutCancel(ctx), server)
	}
	t.mu.Unlock()
	select {
	case <-w.done:
		return w.facts, w.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serve answers waiting requests until there are none.
func (t *batcher) serve(ctx context.Context, server Querier) {
	for {
		turn := t.next()
		if len(turn) == 0 {
			return
		}
		var pids []int32
		var callers []uint32
		for _, w := range turn {
			for _, pid := range w.pids {
				pids, callers = append(pids, int32(pid)), append(callers, w.caller)
			}
		}
		var facts []Facts
		err := host.Catch("a check of permissions", func() (err error) {
			facts, err = statement(ctx, server, pids, callers)
			return err
		})
		if len(facts) != len(pids) {
			facts = make([]Facts, len(pids)) // callers check the error, and ignore these facts
		}
		t.adapt(err)
		for _, w := range turn {
			for i, pid := range w.pids {
				w.facts[pid] = facts[i]
			}
			facts = facts[len(w.pids):]
			w.err = err
			close(w.done)
		}
	}
}

// next removes waiting requests from the list and returns those for one statement: at least one, even if it has more pairs than
// the limit. It drops cancelled requests. If next returns nothing, serve must end.
func (t *batcher) next() []*waiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.limit == 0 {
		t.limit = most
	}
	var turn []*waiter
	pairs, used := 0, 0
	for _, w := range t.waiting {
		if w.ctx.Err() == nil {
			if pairs += len(w.pids); len(turn) > 0 && pairs > t.limit {
				break
			}
			turn = append(turn, w)
		}
		used++
	}
	t.waiting = t.waiting[used:]
	if len(turn) == 0 {
		t.waiting, t.asking = nil, false
	}
	return turn
}

// adapt halves the limit of pairs after a statement that was too slow, and doubles it after a successful one.
func (t *batcher) adapt(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case late(err):
		t.limit = max(1, t.limit/2)
	case err == nil:
		t.limit = min(most, t.limit*2)
	}
}
