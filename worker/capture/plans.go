package capture

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sort"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/symbolize"
	"pg_stat_backtrace/worker/pg/plan"
)

// ErrPlanChanges means that the statements of a process changed each time between two reads of their plans.
var ErrPlanChanges = errors.New("its statements changed during each look")

// ErrProgramUnread means that the server's program was not read in time. The read continues in the background.
var ErrProgramUnread = errors.New("the server's program was not read in time")

// planLooks is the largest number of looks at a process (see planLook) for two successive looks with equal plans. It includes
// looks that only find the descriptions of generated code.
const planLooks = 8

// Plans has the plans of the statements that a process runs. Major is the server's major version. Engine is
// Snapshot.Engine of the copied stack.
type Plans struct {
	Levels []*plan.Level // the outermost first
	Major  int
	Engine string
	// Whole is set if the stack could be followed to its end. Otherwise outer levels may be missing.
	Whole bool
	// Figures is set if the progress of the plans' nodes was copied in the same stop as the stack. Otherwise Levels has
	// no progress.
	Figures bool
	// Build is the build-id of the server's program, or "" if the program has none.
	Build string
	// Proven is set if the figures of plans were compared with EXPLAIN on a server of the same build.
	Proven bool
	// Pause is the duration of the longest stop.
	Pause time.Duration
}

// Plans reads the plans of the statements that a PostgreSQL process runs. It repeats a look (see planLook): it copies
// the stack in one stop, or without a stop if nonStop is set, and then reads the process's memory. Two successive looks
// must give the same trees of plan nodes. The progress of the nodes is from the stop of the last look. The errors are
// those of Capture, ErrNotPostgres, ErrProgramUnread, ErrPlanChanges and plan.UnknownLayoutError.
func (c *Capturer) Plans(ctx context.Context, target process.Target, nonStop bool) (*Plans, error) {
	release, err := c.acquire(ctx, 3*snapshot.DefaultDeadline)
	if err != nil {
		return nil, err
	}
	defer release()
	if target.StartTime == 0 {
		stat, err := process.ReadStat(target.PID)
		if err != nil {
			return nil, process.ReadError(target.PID, target.PID, err)
		}
		target.StartTime = stat.StartTime
	}
	var before, complete *Plans
	var pieces []plan.Piece
	var longest time.Duration
	var generated naming.JITLocations
	for range planLooks {
		look, err := c.planLook(ctx, target, nonStop, pieces, &generated)
		if err != nil {
			return nil, err
		}
		longest = max(longest, look.pause)
		if look.generated {
			before, complete = nil, nil // this look lacked outer levels
			continue
		}
		levels, err := ReadPlans(target.PID, look.stack)
		if err != nil {
			return nil, err
		}
		now := &Plans{
			Levels: levels, Major: look.stack.Major, Engine: look.engine, Whole: look.stack.Whole, Pause: longest,
			Build: look.build,
		}
		if before != nil && plan.Same(before.Levels, now.Levels) {
			complete = now
			now.Figures = plan.Figures(look.stack, now.Levels, look.copies)
			if now.Figures || len(look.copies) == 0 {
				break
			}
		} else {
			complete = nil
		}
		// The next look copies the figures (progress) at these places in its stop. If the process has moved them by
		// then, another look follows.
		before = now
		pieces, err = readPlanMemory(target.PID, func(memory plan.Memory) ([]plan.Piece, error) {
			return plan.Pieces(look.stack, levels, memory), nil
		})
		if err != nil {
			return nil, err
		}
	}
	if complete == nil {
		return nil, fmt.Errorf("process %d: %w", target.PID, ErrPlanChanges)
	}
	return complete, verifyRights(&target)
}

// ReadPlans calls plan.Read for a copied stack, with the memory of the live process.
func ReadPlans(pid int, stack *plan.Stack) ([]*plan.Level, error) {
	return readPlanMemory(pid, func(memory plan.Memory) ([]*plan.Level, error) { return plan.Read(stack, memory) })
}

// readPlanMemory calls a function that reads the memory of a process. All reads of the function have one common
// timeout: a timeout for each read would take longer than the reads. After the timeout the error is
// process.ErrUnreachable.
func readPlanMemory[T any](pid int, read func(plan.Memory) (T, error)) (value T, err error) {
	type result struct {
		value T
		err   error
	}
	unreachable := process.Each([]int{pid}, func(_ int, memory process.MemoryOf) result {
		value, err := read(planMemory{memory})
		return result{value, err}
	}, func(_ int, r result) { value, err = r.value, r.err })
	if len(unreachable) > 0 {
		err = process.ErrUnreachable
	}
	if err != nil {
		return value, fmt.Errorf("process %d: %w", pid, err)
	}
	return value, nil
}

type planMemory struct{ process.MemoryOf }

// ReadPieces implements plan.Batch.
func (m planMemory) ReadPieces(p []byte, pieces []plan.Piece) error {
	own := make([]process.Piece, len(pieces))
	for i, piece := range pieces {
		own[i] = process.Piece(piece)
	}
	return m.MemoryOf.ReadPieces(p, own)
}

// planLook is the result of one look at a process: its stack, and copies of memory from the same moment. pause is the
// duration of the stop.
type planLook struct {
	stack  *plan.Stack
	copies []plan.Copy
	engine string
	build  string
	pause  time.Duration
	// generated is set if the stack ends in code compiled at run time whose descriptions were found only after the
	// stop. The next look copies these descriptions.
	generated bool
}

// planLook copies and walks the stack of the process's first thread, and copies the pieces in the same stop. Without a
// stop, pieces are copied only if the process sleeps. If compiled expressions (JIT) are on the stack, planLook adds the
// places of their descriptions to generated, for the next look.
func (c *Capturer) planLook(
	ctx context.Context, target process.Target, nonStop bool, pieces []plan.Piece, generated *naming.JITLocations,
) (*planLook, error) {
	server, err := c.programOf(ctx, naming.ProcessKey{PID: target.PID, StartTime: target.StartTime})
	if err != nil {
		return nil, err
	}
	if server.process == nil {
		// If the process is nil because it cannot be read, takeSnapshot below returns the reason.
		if server.unknown != "" {
			return nil, fmt.Errorf("process %d: %w: %s", target.PID, ErrNotPostgres, server.unknown)
		}
	}
	options := snapshot.Options{RedZone: c.arch.RedZone}
	if nonStop {
		options.ExtraReads = observedPieces(pieces)
	} else {
		for _, p := range pieces {
			options.Blocks = append(options.Blocks, snapshot.Block(p))
		}
		if len(generated.Pieces) > 0 {
			options.ExtraReads = &snapshot.ExtraReads{Ranges: generated.Pieces}
		}
	}
	snap, _, err := takeSnapshot(ctx, target, options, nonStop)
	if err != nil {
		return nil, err
	}
	defer snap.Release()
	if server.process == nil {
		return nil, fmt.Errorf("process %d: %w", target.PID, ErrNotPostgres)
	}
	space := c.processes.Open(target.PID, target.StartTime, snap.Maps)
	space.Files = &symbolize.Deadline{After: c.linesWait}
	defer space.Files.Stop()
	recognised := c.programs.of(server.module, space).server
	if space.Unread != "" {
		return nil, unreadProgram(target.PID)
	}
	if recognised == nil {
		return nil, fmt.Errorf("process %d: %w", target.PID, ErrNotPostgres)
	}
	functions, err := server.module.Image.DefinedSymbols(plan.Functions()...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", server.module.Name, err)
	}
	out := &plan.Stack{
		Major: recognised.Major, Functions: map[string]uint64{},
		X86: c.arch.Instructions == arch.X86, A64: c.arch.Instructions == arch.A64,
	}
	var exported []plan.Range
	for name, symbol := range functions {
		start := symbol.Addr + server.bias
		out.Functions[name] = start
		exported = append(exported, plan.Range{Start: start, End: start + symbol.Size})
	}
	for _, m := range snap.Maps {
		switch {
		case m.Perms&process.Exec != 0:
			out.Code = append(out.Code, plan.Range{Start: m.Start, End: m.End})
		case m.Perms&process.Write != 0 && m.Inode == 0 && m.Path != "[stack]":
			out.Data = append(out.Data, plan.Range{Start: m.Start, End: m.End})
		case m.Perms&process.Write != 0 && m.Perms&process.Shared != 0:
			out.Shared = append(out.Shared, plan.Range{Start: m.Start, End: m.End})
		}
	}
	look := &planLook{stack: out, engine: snap.Engine, build: server.module.Image.BuildID(), pause: snap.Pause}
	look.generated = c.walkGenerated(out, snap, space, generated)
	addStarts(out.Frames, exported)
	copies := [][]snapshot.Stack{snap.Blocks}
	if snap.Engine != snapshot.EngineStop { // with a stop, Found has only the descriptions of generated code
		copies = append(copies, snap.Found)
	}
	for _, found := range copies {
		for i := range found {
			if len(found[i].Data) > 0 {
				// The snapshot's memory is used again after its release.
				look.copies = append(look.copies, plan.Copy{Address: found[i].Start, Data: bytes.Clone(found[i].Data)})
			}
		}
	}
	sort.Slice(look.copies, func(i, j int) bool {
		a, b := look.copies[i], look.copies[j]
		return cmp.Compare(a.Address, b.Address) < 0
	})
	return look, nil
}

// addStarts adds the starts and ends of exported functions to the frames of programs without call frame information. Some builds
// for aarch64 have none.
func addStarts(frames []plan.Frame, exported []plan.Range) {
	for i := range frames {
		f := &frames[i]
		pc := f.PC
		if !f.Exact {
			pc-- // a call that does not return may be the last instruction
		}
		for _, r := range exported {
			if f.Start == 0 && r.Start <= pc && pc < r.End {
				f.Start, f.End = r.Start, r.End
			}
		}
	}
}

// programOf returns the facts about a server process. On a busy host the first read of its program takes some time. The
// read continues in the background, so programOf repeats the query until the read has ended, for five seconds at most.
func (c *Capturer) programOf(ctx context.Context, key naming.ProcessKey) (serverProcess, error) {
	const (
		limit = 5 * time.Second
		pause = 10 * time.Millisecond
	)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		server := c.serverProcess(key, false)
		if !server.late {
			return server, nil
		}
		select {
		case <-ctx.Done():
			return server, unreadProgram(key.PID)
		case <-time.After(pause):
		}
	}
}

// AwaitProgram waits until the program of a server process has been read, so that the next capture has the levels and the wait event,
// also on a busy host. The errors are process.ErrExited, and context.DeadlineExceeded if the program was not read in time.
func (c *Capturer) AwaitProgram(ctx context.Context, pid int) error {
	stat, err := process.ReadStat(pid)
	if err != nil {
		return process.ReadError(pid, pid, err)
	}
	_, err = c.programOf(ctx, naming.ProcessKey{PID: pid, StartTime: stat.StartTime})
	return err
}

func unreadProgram(pid int) error {
	return fmt.Errorf("process %d: %w: %w", pid, ErrProgramUnread, context.DeadlineExceeded)
}

// ServerBuild returns the build-id of the program of a PostgreSQL process, or "" if the program has none. The errors
// are process.ErrExited, ErrNotPostgres, and ErrProgramUnread, which is a context.DeadlineExceeded.
func (c *Capturer) ServerBuild(pid int) (string, error) {
	stat, err := process.ReadStat(pid)
	if err != nil {
		return "", process.ReadError(pid, pid, err)
	}
	server := c.serverProcess(naming.ProcessKey{PID: pid, StartTime: stat.StartTime}, false)
	if server.late {
		return "", unreadProgram(pid)
	}
	if server.process == nil {
		return "", fmt.Errorf("process %d: %w", pid, ErrNotPostgres)
	}
	return server.module.Image.BuildID(), nil
}

// PlanStack copies and walks the stack of a process for plan.Read. It does not copy the progress of plans.
func (c *Capturer) PlanStack(ctx context.Context, target process.Target) (*plan.Stack, error) {
	if target.StartTime == 0 {
		stat, err := process.ReadStat(target.PID)
		if err != nil {
			return nil, process.ReadError(target.PID, target.PID, err)
		}
		target.StartTime = stat.StartTime
	}
	var generated naming.JITLocations
	look, err := c.planLook(ctx, target, false, nil, &generated)
	if err == nil && look.generated {
		look, err = c.planLook(ctx, target, false, nil, &generated)
	}
	if err != nil {
		return nil, err
	}
	return look.stack, nil
}

// walkGenerated walks the stack with the descriptions of generated code that are from the same moment. It returns true
// if it has found places of further descriptions, which the next look can copy in its stop.
func (c *Capturer) walkGenerated(
	out *plan.Stack, snap *snapshot.Snapshot, space *naming.Space, generated *naming.JITLocations,
) bool {
	switch snap.Engine {
	case snapshot.EngineStop:
		copied := frozen(&snapshot.Stack{}, snap.Found)
		memory := func(addr uint64, p []byte) (int, error) { return copied(addr, p), nil }
		space.Generated.AddFrom(generated, memory, c.arch)
		space.ReadLater(false)
	case snapshot.EngineBlocked:
		space.Generated.SameMoment = symbolize.LiveMemory(snap.PID)
	default:
		space.ReadLater(true)
	}
	c.walkForPlan(out, snap, space)
	if out.Whole || snap.Engine != snapshot.EngineStop || len(space.Generated.Unknown) == 0 {
		return false
	}
	return generated.Add(space.JIT().Locate(symbolize.LiveMemory(snap.PID), space.Generated.Unknown))
}

// observedPieces returns the pieces as memory to copy without a stop. It returns nil if there are none, or more than
// 256.
func observedPieces(pieces []plan.Piece) *snapshot.ExtraReads {
	const most = 256
	if len(pieces) == 0 || len(pieces) > most {
		return nil
	}
	r := &snapshot.ExtraReads{}
	for _, p := range pieces {
		r.Ranges = append(r.Ranges, snapshot.Range(p))
	}
	return r
}

// planFrames is the largest number of frames of a stack with plans. Each plan node that runs has two or three frames.
const planFrames = 8192

// walkForPlan walks the stack of the first thread, and adds the frames with their registers, and the words of the stack
// memory, to out.
func (c *Capturer) walkForPlan(out *plan.Stack, snap *snapshot.Snapshot, space *naming.Space) {
	w := c.walker(space, Options{MaxFrames: planFrames})
	defer w.close()
	var kept []arch.Registers
	w.unwinder.Kept, w.unwinder.Final = &kept, true
	th := &snap.Threads[0]
	stop := w.walk(th, snap.Also)
	w.unwinder.Kept = nil
	out.Whole = stop.Whole()
	kept = kept[len(kept)-len(w.frames):] // only the registers of the last walk: walk may have walked twice
	for i, f := range w.frames {
		frame := plan.Frame{PC: f.PC, CFA: f.CFA, Exact: f.Exact}
		if m, ok := space.Find(f.Lookup()); ok && m.CFI != nil {
			if fde, err := m.CFI.Find(f.Lookup() - m.Bias); err == nil {
				frame.Start, frame.End = fde.Start+m.Bias, fde.End+m.Bias
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
