package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// killer keeps a worker running, and kills it at intervals.
type killer struct {
	stop   context.CancelFunc
	done   chan struct{}
	kills  int
	failed error
	hard   atomic.Bool // the last worker is killed as well
}

// startKiller starts a worker. Unless every is 0, it kills the worker at this interval and starts another one at
// once.
func startKiller(ctx context.Context, command func() *exec.Cmd, every time.Duration) *killer {
	ctx, cancel := context.WithCancel(ctx)
	k := &killer{stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(k.done)
		for ctx.Err() == nil && k.failed == nil {
			k.failed = k.life(ctx, command(), every)
		}
	}()
	return k
}

// life is one worker from its start to its end.
func (k *killer) life(ctx context.Context, worker *exec.Cmd, every time.Duration) error {
	var log bytes.Buffer
	worker.Stderr = &log
	if err := worker.Start(); err != nil {
		return fmt.Errorf("starting the worker: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- worker.Wait() }()
	var due <-chan time.Time
	if every > 0 {
		timer := time.NewTimer(every)
		defer timer.Stop()
		due = timer.C
	}
	sig := syscall.SIGTERM
	select {
	case err := <-ended:
		return fmt.Errorf("the worker ended by itself: %w\n%s", err, log.String())
	case <-due:
		k.kills++
		sig = syscall.SIGKILL
	case <-ctx.Done():
		if k.hard.Load() {
			sig = syscall.SIGKILL
		}
	}
	if err := worker.Process.Signal(sig); err != nil {
		return fmt.Errorf("ending the worker: %w", err)
	}
	if err := <-ended; err != nil && sig == syscall.SIGTERM {
		return fmt.Errorf("the worker did not end in order: %w\n%s", err, log.String())
	}
	return nil
}

// kill kills the worker, and starts no other.
func (k *killer) kill() {
	k.hard.Store(true)
	k.stop()
	<-k.done
}

// end stops the worker in an orderly way and returns how often it was killed.
func (k *killer) end() (kills int, err error) {
	k.stop()
	<-k.done
	return k.kills, k.failed
}
