package capture

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/process/procfs"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/worker/naming/procmap"
	"pg_stat_backtrace/worker/naming/symbolize"
	"pg_stat_backtrace/worker/pg/plan"
)

// ErrPlanChanges means that the statements of a process changed during each look at their plans.
var ErrPlanChanges = errors.New("its statements changed during each look")

// planLooks is how often the plans of a process are read until two looks are equal.
const planLooks = 5

// Plans has the plans of the statements that a process runs. Engine is the way in which the stack was copied.
type Plans struct {
	Levels []*plan.Level // the outermost first
	Major  int
	Engine string
	// Whole is set if the stack could be followed to its end. Otherwise outer levels may be missing.
	Whole bool
}

// Plans reads the plans of the statements that a PostgreSQL process runs. Each look copies the stack in one stop, or
// without a stop if nonStop is set, and then reads the process's memory. The result is of two looks one after the other
// that have the same trees. The errors are those of Capture, ErrNotPostgres, ErrPlanChanges and
// plan.UnknownLayoutError.
func (c *Capturer) Plans(ctx context.Context, target process.Target, nonStop bool) (*Plans, error) {
	release, err := c.acquire(ctx, 3*snapshot.DefaultDeadline)
	if err != nil {
		return nil, err
	}
	defer release()
	if target.StartTime == 0 {
		stat, err := procfs.ReadStat(target.PID)
		if err != nil {
			return nil, fmt.Errorf("process %d: %w", target.PID, process.ErrExited)
		}
		target.StartTime = stat.StartTime
	}
	memory := process.NewMemory(target.PID)
	var before *Plans
	for range planLooks {
		stack, engine, err := c.planStack(ctx, target, nonStop)
		if err != nil {
			return nil, err
		}
		levels, err := plan.Read(stack, memory)
		if err != nil {
			return nil, fmt.Errorf("process %d: %w", target.PID, err)
		}
		now := &Plans{Levels: levels, Major: stack.Major, Engine: engine, Whole: stack.Whole}
		if before != nil && plan.Same(before.Levels, now.Levels) {
			return now, verifyRights(&target)
		}
		before = now
	}
	return nil, fmt.Errorf("process %d: %w", target.PID, ErrPlanChanges)
}

// planStack copies and walks the stack of the process's first thread.
func (c *Capturer) planStack(ctx context.Context, target process.Target, nonStop bool) (*plan.Stack, string, error) {
	server := c.serverProcess(procmap.ProcessKey{PID: target.PID, StartTime: target.StartTime}, false)
	if server.process == nil {
		// If the process cannot be read, the copy of its stack fails with the reason.
		if server.unknown != "" {
			return nil, "", fmt.Errorf("process %d: %w: %s", target.PID, ErrNotPostgres, server.unknown)
		}
	}
	snap, _, err := takeSnapshot(ctx, target, snapshot.Options{RedZone: c.arch.RedZone}, nonStop)
	if err != nil {
		return nil, "", err
	}
	defer snap.Release()
	if server.process == nil {
		return nil, "", fmt.Errorf("process %d: %w", target.PID, ErrNotPostgres)
	}
	space := c.processes.Open(target.PID, target.StartTime, snap.Maps)
	space.Files = &symbolize.Deadline{After: c.linesWait}
	defer space.Files.Stop()
	recognised := c.programs.of(server.module, space).server
	if recognised == nil {
		return nil, "", fmt.Errorf("process %d: %w", target.PID, ErrNotPostgres)
	}
	functions, err := server.module.Image.Defined(plan.Functions()...)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", server.module.Name, err)
	}
	out := &plan.Stack{Major: recognised.Major, Functions: map[string]uint64{}, X86: c.arch.Decoded}
	for name, addr := range functions {
		if addr != 0 {
			out.Functions[name] = addr + server.bias
		}
	}
	for _, m := range snap.Maps {
		switch {
		case m.Perms&procfs.Exec != 0:
			out.Code = append(out.Code, plan.Range{Start: m.Start, End: m.End})
		case m.Perms&procfs.Write != 0 && m.Inode == 0 && m.Path != "[stack]":
			out.Data = append(out.Data, plan.Range{Start: m.Start, End: m.End})
		}
	}
	c.walkForPlan(out, snap, space)
	return out, snap.Engine, nil
}

// walkForPlan walks the stack of the first thread, and keeps the frames with their registers, and the words.
func (c *Capturer) walkForPlan(out *plan.Stack, snap *snapshot.Snapshot, space *procmap.Space) {
	w := c.walker(space, Options{})
	defer w.close()
	var kept []arch.Registers
	w.unwinder.Kept, w.unwinder.Final = &kept, true
	th := &snap.Threads[0]
	stop := w.walk(th, snap.Also)
	w.unwinder.Kept = nil
	out.Whole = stop.Whole()
	kept = kept[len(kept)-len(w.frames):] // of the last walk
	for i, f := range w.frames {
		frame := plan.Frame{PC: f.PC, CFA: f.CFA, Exact: f.Exact}
		if m, ok := space.Find(f.Lookup()); ok && m.CFI != nil {
			if fde, err := m.CFI.Find(f.Lookup() - m.Bias); err == nil {
				frame.Start = fde.Start + m.Bias
			}
		}
		for _, number := range c.arch.Preserved {
			v, _ := kept[i].Get(number)
			frame.Saved = append(frame.Saved, v)
		}
		out.Frames = append(out.Frames, frame)
	}
	out.Start = (th.Stack.Start + 7) &^ 7
	for data := th.Stack.Data[min(int(out.Start-th.Stack.Start), len(th.Stack.Data)):]; len(data) >= 8; data = data[8:] {
		out.Words = append(out.Words, binary.NativeEndian.Uint64(data))
	}
}
