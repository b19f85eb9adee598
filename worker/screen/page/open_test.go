package page

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/screen/source"
)

// TestOpenDoesNotAnswer: while the source does not open, as a disk does not answer, requests end. Only one opens it.
func TestOpenDoesNotAnswer(t *testing.T) {
	t.Parallel()
	answer, opened := make(chan struct{}), errors.New("opened")
	var calls atomic.Int32
	p := New(func() (source.Source, error) {
		calls.Add(1)
		<-answer
		return nil, opened
	})
	p.wait = 50 * time.Millisecond
	for range 2 {
		if _, err := p.watch(t.Context()); err == nil || !strings.Contains(err.Error(), "could not be opened in 50 ms") {
			t.Errorf("%v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.watch(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("the source was opened %d times", n)
	}
	close(answer)
	pgtest.Wait(t, "a disk that answers", func() bool {
		_, err := p.watch(t.Context())
		return errors.Is(err, opened)
	})
}
