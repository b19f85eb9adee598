package capture

import (
	"context"
	"errors"
	"os/exec"
	"sync"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// TestSharing checks that callers with equal requests share one capture and others do not. A cancelled caller, even
// the first one, does not cancel the capture for the others.
func TestSharing(t *testing.T) {
	var s sharing
	q := requestKey{target: process.Target{PID: 1}}
	release, made := make(chan struct{}), make(chan context.Context, 10)
	work := func(ctx context.Context, _ func()) (*backtrace.Trace, error) {
		made <- ctx
		select {
		case <-release:
			return &backtrace.Trace{PID: 1}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	waiting := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c := s.active[q]; c != nil {
			return c.callers
		}
		return 0
	}
	maker, makerLeaves := context.WithCancel(t.Context())
	follower, followerLeaves := context.WithCancel(t.Context())
	var group sync.WaitGroup
	results := make(chan error, 10)
	call := func(ctx context.Context) {
		got, err := s.do(ctx, q, work)
		if err == nil && got.PID != 1 {
			err = errors.New("another answer")
		}
		results <- err
	}
	group.Go(func() { call(maker) })
	during := <-made
	group.Go(func() { call(follower) })
	group.Go(func() { call(t.Context()) })
	pgtest.Wait(t, "three share it", func() bool { return waiting() == 3 })
	makerLeaves()
	followerLeaves()
	if err := <-results; !errors.Is(err, context.Canceled) {
		t.Errorf("who gives up gets %v", err)
	}
	pgtest.Wait(t, "two have left", func() bool { return waiting() == 1 })
	if during.Err() != nil {
		t.Error("the capture ended though somebody waits for it")
	}
	close(release)
	group.Wait()
	for range 2 {
		if err := <-results; err != nil {
			t.Errorf("it was made, and a caller got %v", err)
		}
	}
	if n := len(made); n != 0 {
		t.Errorf("%d captures too many", n)
	}
	if waiting() != 0 || len(s.active) != 0 {
		t.Errorf("%d captures are left behind", len(s.active))
	}
	t.Run("alone", func(t *testing.T) { sharingAlone(t, &s, q) })
}

// TestSharingEndsWithSnapshot checks that a caller does not join a capture that has its snapshot and is naming it. The
// callers that joined before still get that capture's trace.
func TestSharingEndsWithSnapshot(t *testing.T) {
	var s sharing
	q := requestKey{target: process.Target{PID: 1}}
	begun, snapshot, named := make(chan struct{}), make(chan struct{}), make(chan struct{})
	naming := make(chan struct{})
	first := func(_ context.Context, taken func()) (*backtrace.Trace, error) {
		close(begun)
		<-snapshot
		taken()
		close(naming)
		<-named
		return &backtrace.Trace{PID: 1}, nil
	}
	second := func(context.Context, func()) (*backtrace.Trace, error) { return &backtrace.Trace{PID: 2}, nil }
	results := make(chan int, 2)
	call := func(work sharedWork) {
		got, err := s.do(t.Context(), q, work)
		if err != nil {
			t.Error(err)
			results <- 0
			return
		}
		results <- got.PID
	}
	go call(first)
	<-begun
	go call(second)
	pgtest.Wait(t, "two share it", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.active[q].callers == 2
	})
	close(snapshot)
	<-naming
	late := make(chan int, 1)
	go func() {
		got, _ := s.do(t.Context(), q, second)
		late <- got.PID
	}()
	select {
	case pid := <-late:
		if pid != 2 {
			t.Errorf("the late caller got capture %d", pid)
		}
	case <-time.After(3 * time.Minute):
		t.Error("the late caller waits for the first capture")
	}
	close(named)
	for range 2 {
		if pid := <-results; pid != 1 {
			t.Errorf("a caller from before the snapshot got capture %d", pid)
		}
	}
}

// TestSharingEndsWithSleepingSnapshot checks that a capture without a stop reports its snapshot before it unwinds and
// names the stack, which may wait for files.
func TestSharingEndsWithSleepingSnapshot(t *testing.T) {
	child := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(child.Process.Kill(), child.Wait()) }()
	stat, err := process.ReadStat(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	key := naming.ProcessKey{PID: stat.PID, StartTime: stat.StartTime}
	pgtest.Wait(t, "a capture without a stop", func() bool {
		c, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		var unwound []bool // for each snapshot, whether its stack had been unwound
		tr, err := c.capture(t.Context(), process.Target{PID: stat.PID, UID: -1}, Options{PreferNonStop: true},
			func() { unwound = append(unwound, c.processes.Maps(key) != nil) })
		if err != nil {
			t.Fatal(err)
		}
		if !tr.Slept || c.processes.Maps(key) == nil {
			return false
		}
		if len(unwound) != 1 || unwound[0] {
			t.Errorf("unwound before the snapshots were reported: %v", unwound)
		}
		return true
	})
}

// sharingAlone checks that a capture ends when its last caller leaves, and that a panic gives an error.
func sharingAlone(t *testing.T, s *sharing, q requestKey) {
	ctx, leave := context.WithCancel(t.Context())
	_, err := s.do(ctx, q, func(during context.Context, _ func()) (*backtrace.Trace, error) {
		leave()
		<-during.Done()
		return nil, during.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	begun, shared := make(chan struct{}), make(chan error, 1)
	go func() {
		<-begun
		_, err := s.do(t.Context(), q, func(context.Context, func()) (*backtrace.Trace, error) { return &backtrace.Trace{}, nil })
		shared <- err
	}()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = s.do(t.Context(), q, func(context.Context, func()) (*backtrace.Trace, error) {
			close(begun)
			pgtest.Wait(t, "somebody shares it", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.active[q].callers == 2
			})
			panic("on purpose")
		})
	}()
	if err := <-shared; !errors.Is(err, errUnfinished) {
		t.Errorf("what was shared with a panic: %v", err)
	}
	if len(s.active) != 0 {
		t.Errorf("%d captures are left behind", len(s.active))
	}
}
