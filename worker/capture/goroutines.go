package capture

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind/goroutine"
	"pg_stat_backtrace/worker/gostack"
	"pg_stat_backtrace/worker/symbolize"
	"pg_stat_backtrace/worker/trace"
)

const (
	threadStack = 64 << 10 // bytes of a thread's stack
	maxTries    = 4        // stops, if goroutines were on their way in the first
	tryAgain    = 10 * time.Millisecond
)

// Goroutines returns the goroutines of a Go program with their stacks, all of one moment. Where they are is read before
// the stop; one that has got more stack, or was made, between the two is looked for again in another stop. Errors are
// those of package ptrace, ErrNotGo and package goroutine's.
func (c *Capturer) Goroutines(ctx context.Context, target ptrace.Target, o Options) (*trace.Trace, error) {
	if err := c.limit.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer c.limit.Release(1)
	start := time.Now()
	var best *trace.Trace
	missed := -1
	for try := 1; try <= maxTries; try++ {
		t, n, err := c.goroutines(ctx, target, o)
		switch {
		case errors.Is(err, goroutine.ErrNotFound) && (best != nil || try < maxTries):
			// The list was being made longer, or the program begins.
			if err := pauseFor(ctx, tryAgain); err != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, err
		}
		if missed < 0 || n < missed {
			best, missed = t, n
		}
		if missed == 0 {
			break
		}
	}
	best.Total = time.Since(start)
	return best, nil
}

// pauseFor waits.
func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// goroutines is one try. It returns also how many goroutines it could not see.
func (c *Capturer) goroutines(ctx context.Context, target ptrace.Target, o Options) (*trace.Trace, int, error) {
	maps, err := procfs.Maps(target.PID)
	switch {
	case errors.Is(err, procfs.ErrGone):
		return nil, 0, fmt.Errorf("process %d: %w", target.PID, ptrace.ErrExited)
	case err != nil:
		return nil, 0, err
	}
	space := c.processes.Open(target.PID, 0, maps)
	programs, err := gostack.Programs(space)
	if err != nil {
		return nil, 0, fmt.Errorf("process %d: %w", target.PID, err)
	}
	var p gostack.Plan
	for i := range programs {
		if err := p.Add(space, &programs[i]); err != nil {
			return nil, 0, fmt.Errorf("process %d: %w", target.PID, err)
		}
	}
	snap, err := ptrace.Capture(ctx, target, ptrace.Options{
		MaxStack: threadStack, RedZone: c.arch.RedZone, Deadline: o.Deadline, AllThreads: true, Blocks: p.Blocks,
	})
	if err != nil {
		return nil, 0, err
	}
	w := gostack.Walk{
		Arch: c.arch, Space: space, Modules: space, MaxFrames: o.MaxFrames, Blocks: snap.Blocks,
		Copies: &gostack.Copies{Order: c.arch.Order, Snap: snap}, Threads: c.goThreads(snap),
	}
	t := &trace.Trace{PID: snap.PID, Engine: snap.Engine, Pause: snap.Pause, Held: snap.Held, Threads: []trace.Thread{}}
	return t, w.All(t, programs, &p), nil
}

// goThreads are the threads of a snapshot that have registers.
func (c *Capturer) goThreads(snap *ptrace.Snapshot) map[int]gostack.Thread {
	out := make(map[int]gostack.Thread, len(snap.Threads))
	for i := range snap.Threads {
		th := &snap.Threads[i]
		if th.Registers == nil {
			continue
		}
		if regs, err := c.arch.DecodePRStatus(th.Registers); err == nil {
			out[th.TID] = gostack.Thread{Name: th.Name, State: th.State, Registers: regs}
		}
	}
	return out
}

// learnGo looks whether frames lie in Go code that was not known, and returns true if another capture would have more
// of a stack that was not followed to its end.
func (r *run) learnGo(b *built) bool {
	if !r.capturer.arch.Go.Followed || b.trace.Engine != ptrace.Engine {
		return false
	}
	var known []symbolize.Placed
	if r.golang != nil {
		known = r.golang.Images
	}
	before := len(known)
	for _, u := range b.used {
		if f := b.space.Resolve(u.Mapping); f.Module != nil && b.space.IsGo(f.Module) && !slices.Contains(known, f) {
			known = append(slices.Clip(known), f)
		}
	}
	if len(known) == before {
		return false
	}
	r.golang = &gostack.Process{Images: known, Coroutines: gostack.Coroutines(r.capturer.arch, b.space, known)}
	r.capturer.goFact.Keep(r.capturer.processes, r.key, r.golang)
	return b.brokenWalk && r.golang.Coroutines != nil
}
