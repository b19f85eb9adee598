package capture

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind/golang"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
)

const (
	threadStack = 64 << 10 // bytes to copy of each thread's stack
	maxTries    = 4        // largest number of stops; a stop is repeated if it missed goroutines
	tryAgain    = 10 * time.Millisecond
)

// Goroutines returns the goroutines of a Go program with their stacks, all of one moment. It reads the addresses of the
// stacks before the stop. If a stack grows or a goroutine begins between this read and the stop, it stops the program
// again, up to four times in all, and returns the most complete result. The errors are those of package ptrace,
// naming.ErrNotGo and those of package golang.
func (c *Capturer) Goroutines(ctx context.Context, target process.Target, o Options) (*backtrace.Trace, error) {
	if err := c.limit.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer c.limit.Release(1)
	start := time.Now()
	var best *backtrace.Trace
	missed := -1
	for try := 1; try <= maxTries; try++ {
		t, n, err := c.goroutines(ctx, target, o)
		switch {
		case errors.Is(err, golang.ErrNotFound) && (best != nil || try < maxTries):
			// The list was being extended, or the program is starting.
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

// pauseFor waits for the time d. If ctx ends during this time, it returns ctx's error.
func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// goroutines stops the program once and walks its goroutines. It also returns the number of goroutines that it missed.
func (c *Capturer) goroutines(ctx context.Context, target process.Target, o Options) (*backtrace.Trace, int, error) {
	maps, err := process.Maps(target.PID)
	switch {
	case errors.Is(err, process.ErrGone):
		return nil, 0, fmt.Errorf("process %d: %w", target.PID, process.ErrExited)
	case err != nil:
		return nil, 0, err
	}
	status, err := process.ReadStatus(target.PID)
	if err != nil {
		return nil, 0, process.ReadError(target.PID, target.PID, err)
	}
	nested := len(status.NSPID) > 1
	space := c.processes.Open(target.PID, 0, maps)
	programs, err := naming.GoPrograms(ctx, space)
	if err != nil {
		return nil, 0, fmt.Errorf("process %d: %w", target.PID, err)
	}
	var p naming.GoPlan
	for i := range programs {
		if err := p.Add(space, &programs[i]); err != nil {
			return nil, 0, fmt.Errorf("process %d: %w", target.PID, err)
		}
	}
	snap, err := ptrace.Capture(ctx, target, snapshot.Options{
		MaxStack: threadStack, RedZone: c.arch.RedZone, Deadline: o.Deadline, AllThreads: true, Blocks: p.Blocks,
	})
	if err != nil {
		return nil, 0, err
	}
	w := naming.GoWalk{
		Arch: c.arch, Space: space, Modules: space, MaxFrames: o.MaxFrames, Blocks: snap.Blocks,
		Copies: &naming.GoCopies{Order: c.arch.Order, Snap: snap}, Threads: c.goThreads(snap, nested), Nested: nested,
	}
	t := &backtrace.Trace{PID: snap.PID, Engine: snap.Engine, Pause: snap.Pause, Held: snap.Held, Threads: []backtrace.Thread{}}
	return t, w.All(t, programs, &p), nil
}

// goThreads returns the threads of a snapshot that have registers, by the ids that the program itself sees. nested is
// naming.GoWalk.Nested.
func (c *Capturer) goThreads(snap *snapshot.Snapshot, nested bool) map[int]naming.GoThread {
	out := make(map[int]naming.GoThread, len(snap.Threads))
	for i := range snap.Threads {
		th := &snap.Threads[i]
		if th.Registers == nil {
			continue
		}
		id := th.TID
		if nested {
			status, err := process.ReadTaskStatus(snap.PID, th.TID)
			if err != nil || len(status.NSPID) == 0 {
				continue // the thread has ended
			}
			id = status.NSPID[len(status.NSPID)-1]
		}
		if regs, err := c.arch.DecodePRStatus(th.Registers); err == nil {
			out[id] = naming.GoThread{TID: th.TID, Name: th.Name, State: th.State, Registers: regs}
		}
	}
	return out
}

// runsGo reports whether the process has shown frames in Go code, in this capture or before. If so, a capture with a
// stop can follow more of the stack than a capture without a stop.
func (r *run) runsGo(b *built) bool {
	for _, u := range b.used {
		if f := b.space.Resolve(u.Mapping); f.Module != nil && b.space.IsGo(f.Module) {
			return true
		}
	}
	return r.golang != nil
}

// learnGo records the images with Go code in which frames lie. It returns true if one of these images is new and a walk
// ended too early: another capture can then copy more memory and continue the walk.
func (r *run) learnGo(b *built) bool {
	if !r.capturer.arch.Go.Followed || b.trace.Engine != snapshot.EngineStop {
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
	r.golang = &naming.GoProcess{Images: known, Coroutines: naming.Coroutines(r.capturer.arch, b.space, known)}
	r.capturer.goFact.Keep(r.capturer.processes, r.key, r.golang)
	return b.brokenWalk && r.golang.Coroutines != nil
}
