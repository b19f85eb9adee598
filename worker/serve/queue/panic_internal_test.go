package queue

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// TestPanicFailsRequest checks that a request whose handler panics has failed at its first try, so that it is not
// claimed again, and that the panic is logged.
func TestPanicFailsRequest(t *testing.T) {
	var log bytes.Buffer
	tries := 0
	s := &session{
		cfg: &Config{Handle: func(context.Context, Request) Result { tries++; panic("oops") }},
		log: zerolog.New(&log), jobs: map[int64]*job{}, lease: &lease{signal: make(chan struct{}, 1)},
	}
	jobs := s.start(t.Context(), []Request{{ID: 7, PID: 42, Superuser: true}})
	<-jobs[0].done
	<-s.lease.signal
	if r := jobs[0].result; r.SQLState != "XX000" || r.Message == "" || r.Text != "" {
		t.Errorf("got %+v", r)
	}
	if again := s.start(t.Context(), []Request{{ID: 7, PID: 42, Superuser: true}}); len(again) != 1 || again[0] != jobs[0] {
		t.Errorf("the next claim starts %+v", again)
	}
	if tries != 1 || len(s.unfinished()) != 0 {
		t.Errorf("%d tries, unfinished %v", tries, s.unfinished())
	}
	for _, want := range []string{"oops", `"request":7`, "panic_internal_test.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
}
