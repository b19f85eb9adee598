package source

import (
	"context"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/moment"
)

// ends fails unless f ends soon.
func ends(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("no end: ", what)
	}
}

// TestDiskDoesNotAnswer: while a sample waits for the recorder's files, requests end, and the screen has an error.
func TestDiskDoesNotAnswer(t *testing.T) {
	t.Parallel()
	answer, asked, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	l := &Live{o: Options{DataDir: t.TempDir(), FindRecorded: func() *Recorded {
		close(asked)
		<-answer
		return nil
	}}}
	l.last = &moment.Moment{Time: noon, Sessions: []moment.Session{client(1, stateActive, "")}}
	go func() {
		defer close(ended)
		_ = l.Sample()
	}()
	<-asked
	ends(t, "a stack", func() { _, _ = l.Stack(t.Context(), 1) })
	ends(t, "a progress", func() { l.progress(t.Context(), 1) })
	ends(t, "a flame graph", func() { _, _ = l.Flame(t.Context(), Query{Span: Span{noon, noon.Add(time.Minute)}}, Both) })
	pgtest.Wait(t, "an error on the screen", func() bool {
		i, err := l.Info(t.Context())
		return err == nil && strings.Contains(i.Error, "the recorder's files could not be read in 3.0 s")
	})
	close(answer)
	ends(t, "the sample", func() { <-ended })
}

// TestEarlierTimesDoNotAnswer: a request for an earlier time ends with its context while another one reads, and while it reads itself.
func TestEarlierTimesDoNotAnswer(t *testing.T) {
	t.Parallel()
	var l Live
	l.recorded.Store(&Recorded{})
	brief := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	answer := make(chan struct{})
	read := func(context.Context) error {
		<-answer
		return nil
	}
	for range 2 {
		ends(t, "a read", func() {
			if err := l.readEarlier(brief(), read); err == nil {
				t.Error("a read that has not ended has no error")
			}
		})
	}
	ends(t, "an earlier time", func() {
		if _, err := l.Past(brief(), Span{noon, noon.Add(time.Minute)}, time.Time{}); err == nil {
			t.Error("a time that was not read has no error")
		}
	})
	close(answer)
	ends(t, "a read of a disk that answers", func() {
		if err := l.readEarlier(t.Context(), read); err != nil {
			t.Error(err)
		}
	})
}
