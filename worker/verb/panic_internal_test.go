package verb

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/measure/functrace"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/serve/spool"
)

// These tests do not run in parallel with others: what they inject is the whole program's.

// TestPanicsAreAnswered checks that a panic in a goroutine of a request is answered with XX000 and logged, and ends
// nothing else.
func TestPanicsAreAnswered(t *testing.T) {
	var log bytes.Buffer
	s := newService(limits.Rate{PerSecond: 1e6, Burst: 1e6}, &log)
	s.cfg.Server = serving(cluster.Cluster{
		PostmasterPID: os.Getpid(), PostmasterStart: startOf(t, os.Getpid()), UID: os.Geteuid(), GID: os.Getegid(), Version: 18,
	})
	answered := func(verb string) string {
		a := s.Answer(t.Context(), spool.Request{
			Verb: verb, Targets: []int{1}, Superuser: true, Deadline: time.Now().Add(time.Minute),
		})
		if len(a.Rows) == 1 {
			return a.Rows[0][7] + " " + a.Rows[0][8]
		}
		return a.SQLState + " " + a.Message
	}
	const internal = "XX000 internal error of the pg_stat_backtrace worker"
	for place, verb := range map[string]string{"a request for many processes": "logs", "a request for barriers": "barrier"} {
		log.Reset()
		restore := host.InjectPanic(func(at string) {
			if at == place {
				panic("injected")
			}
		})
		got := answered(verb)
		restore()
		if got != internal || strings.Count(log.String(), "panic in "+place+": injected") != 1 {
			t.Errorf("%s: answered %q, log:\n%s", place, got, log.String())
		}
		if got := answered(verb); got == internal {
			t.Errorf("%s: the next request is answered %q", place, got)
		}
	}
	t.Run("a trace", func(t *testing.T) {
		log.Reset()
		defer host.InjectPanic(func(string) { panic("injected") })()
		ctx, cancel := context.WithCancel(t.Context())
		trace := &functionTrace{cancel: cancel, polled: time.Now()}
		s.runFunctionTrace(ctx, 1, trace, functrace.Options{}, nil, time.Second)
		done, _, err := trace.poll()
		var failed *host.Panic
		if !done || !errors.As(err, &failed) || !strings.Contains(log.String(), "injected") {
			t.Errorf("done %v, %v, log:\n%s", done, err, log.String())
		}
		if a := functionTraceFailure(spool.Request{}, err); a.SQLState+" "+a.Message != internal {
			t.Errorf("answered %+v", a)
		}
	})
}

// TestOneBarrierReadStaysBehind checks that requests for barriers which time out leave one goroutine behind together.
func TestOneBarrierReadStaysBehind(t *testing.T) {
	s := idle()
	release := make(chan struct{})
	reading := make(chan struct{}, 1)
	defer host.InjectPanic(func(string) { reading <- struct{}{}; <-release })()
	ask := func(who authz.Caller) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := s.readBarrier(ctx, who, cluster.Cluster{})
		return err
	}
	if err := ask(authz.Caller{OID: 10, Superuser: true}); !errors.Is(err, limits.ErrBusy) {
		t.Fatal(err)
	}
	<-reading
	before := runtime.NumGoroutine()
	for role := range uint32(20) {
		if err := ask(authz.Caller{OID: 16384 + role, Superuser: role%2 == 0}); !errors.Is(err, limits.ErrBusy) {
			t.Fatal(err)
		}
	}
	after := runtime.NumGoroutine()
	for deadline := time.Now().Add(time.Minute); after > before && time.Now().Before(deadline); after = runtime.NumGoroutine() {
		time.Sleep(time.Millisecond) // the goroutine of a timer that has just fired may still run
	}
	if after > before {
		t.Errorf("%d goroutines before, %d after 20 timeouts", before, after)
	}
	close(release)
	done, err := s.bounds.barriers.Acquire(t.Context(), limits.Who{Role: 1}, 1) // the read has ended
	if err != nil {
		t.Fatal(err)
	}
	done()
}
