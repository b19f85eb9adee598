package verb

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"pg_stat_backtrace/worker/pg/cluster"
)

// TestReaderOfSummaryIsUsedOnce: requests of the same summary can run at the same time, because a client need not wait for its
// answer. Only one of them uses the reader of the server's memory.
func TestReaderOfSummaryIsUsedOnce(t *testing.T) {
	t.Parallel()
	var users, most atomic.Int32
	s := &Service{cfg: Config{Server: func() (cluster.Cluster, error) {
		if n := users.Add(1); n > 1 {
			most.Store(n)
		}
		for range 100 {
			runtime.Gosched()
		}
		users.Add(-1)
		return cluster.Cluster{}, errors.New("no server")
	}}}
	var requests sync.WaitGroup
	var all summary
	for range 8 {
		requests.Go(func() {
			for range 100 {
				s.backendTypes(&all)
			}
		})
	}
	requests.Wait()
	if n := most.Load(); n > 0 {
		t.Errorf("%d requests open the reader at the same time", n)
	}
}
