package authz

import (
	"errors"
	"testing"

	"pg_stat_backtrace/worker/host"
)

// TestPanicReachesWaiters checks that a panic in the goroutine that checks permissions is the error of its requests, and
// that later requests are served.
func TestPanicReachesWaiters(t *testing.T) {
	defer host.InjectPanic(func(string) { panic("injected") })()
	var b batcher
	for range 2 {
		_, err := b.ask(t.Context(), nil, requestKey{pids: []int{1, 2}, caller: 10})
		var failed *host.Panic
		if !errors.As(err, &failed) {
			t.Errorf("got %v", err)
		}
	}
}
