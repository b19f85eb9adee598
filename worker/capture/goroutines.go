package capture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/goroutine"
	"pg_stat_backtrace/worker/trace"
)

// ErrNotGo means that a process runs no Go code.
var ErrNotGo = errors.New("no Go program or library")

// Bounds of what one stop copies for goroutines.
const (
	goroutineStack = 64 << 10 // bytes of a goroutine's stack
	threadStack    = 64 << 10 // bytes of a thread's
	belowStack     = 256      // bytes below the stack pointer that was read before the stop
	maxVariables   = 64 << 20 // bytes of a program's variables that are searched
	maxTries       = 4        // stops, if goroutines were on their way in the first
	tryAgain       = 10 * time.Millisecond
	maxGoroutines  = 16384 // more are counted
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
	space := c.spaces.open(target.PID, 0, maps)
	programs, err := c.goPrograms(space)
	if err != nil {
		return nil, 0, fmt.Errorf("process %d: %w", target.PID, err)
	}
	var p plan
	for i := range programs {
		if err := p.add(space, &programs[i]); err != nil {
			return nil, 0, fmt.Errorf("process %d: %w", target.PID, err)
		}
	}
	snap, err := ptrace.Capture(ctx, target, ptrace.Options{
		MaxStack: threadStack, RedZone: c.arch.RedZone, Deadline: o.Deadline, AllThreads: true, Blocks: p.blocks,
	})
	if err != nil {
		return nil, 0, err
	}
	w := goWalk{
		capturer: c, space: space, snap: snap, options: o, copies: &goCopies{order: c.arch.Order, snap: snap},
	}
	t := &trace.Trace{PID: snap.PID, Engine: snap.Engine, Pause: snap.Pause, Held: snap.Held, Threads: []trace.Thread{}}
	missed := 0
	for i := range programs {
		t.Go = programs[i].version
		missed += w.list(t, &programs[i], &p)
	}
	slices.SortStableFunc(t.Goroutines, func(a, b trace.Goroutine) int { return cmp.Compare(a.ID, b.ID) })
	t.Unwind, t.Symbolize = w.unwinding, w.naming
	return t, missed, nil
}

// goProgram is a Go program or library of a process.
type goProgram struct {
	version string
	runtime *goroutine.Runtime
	// first is the number of the first of its blocks: the list's head, the list, and for each goroutine its structure and
	// its stack; threads are behind. The stack's block may have no length.
	first int
	all   []uint64
	// total is the length of the list, left how many goroutines are too many for one stop.
	total, left int
}

// goPrograms finds Go's run time in the images of a process. There may be several, of libraries.
func (c *Capturer) goPrograms(sp *space) ([]goProgram, error) {
	out := make([]goProgram, 0, 1)
	var failed error
	seen := make(map[*module]bool)
	for i := range sp.maps {
		if sp.maps[i].Perms&procfs.Exec == 0 {
			continue
		}
		f := sp.resolve(i)
		if f.module == nil || seen[f.module] || f.module.goTable() == nil {
			continue
		}
		seen[f.module] = true
		p, err := newGoProgram(sp, f)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", f.module.name, err))
			continue
		}
		out = append(out, p)
	}
	switch {
	case len(out) > 0:
		return out, nil
	case failed != nil:
		return nil, failed
	}
	return nil, ErrNotGo
}

// newGoProgram finds the run time of one image.
func newGoProgram(sp *space, f found) (goProgram, error) {
	img := f.module.image
	if img.AddrSize() != 8 {
		return goProgram{}, fmt.Errorf("%w: not one of 64 bits", goroutine.ErrVersion)
	}
	read := sp.readAll
	out := goProgram{}
	if data, addr, err := img.Section(".go.buildinfo"); err == nil {
		_ = read(addr+f.bias, data) // relocated; if it cannot be read, as it is in the file
		out.version = goroutine.Version(data, img.Order(), read)
	}
	layout, err := goroutine.LayoutOf(out.version)
	if err != nil {
		if layout, err = goroutine.LayoutFrom(img); err != nil {
			return out, fmt.Errorf("%w: %q", goroutine.ErrVersion, out.version)
		}
	}
	p := goroutine.Program{Order: img.Order(), Layout: layout}
	if symbols, err := img.Symbols(".symtab"); err == nil {
		for s := range symbols {
			if s.Name == "runtime.allgs" && s.Size == goroutine.ListSize {
				p.List = s.Addr + f.bias
				break
			}
		}
	}
	for _, s := range img.Segments() {
		if permsOf(s.Flags)&procfs.Write == 0 || s.Memsz > maxVariables {
			continue
		}
		data := make([]byte, s.Memsz)
		n, _ := processReader(sp.pid)(s.Vaddr+f.bias, data)
		p.Writable = append(p.Writable, goroutine.Segment{Addr: s.Vaddr + f.bias, Data: data[:n]})
	}
	out.runtime, err = goroutine.New(&p, read)
	return out, err
}

// readAll fills b with the process's memory.
func (sp *space) readAll(addr uint64, b []byte) bool {
	n, err := processReader(sp.pid)(addr, b)
	return err == nil && n == len(b)
}

// plan is what a stop is to copy.
type plan struct {
	blocks  []ptrace.Block
	threads map[uint64]int // the block of each thread's structure
}

// add plans for one program.
func (p *plan) add(sp *space, g *goProgram) error {
	r := g.runtime
	all, err := r.All(sp.readAll)
	if err != nil {
		return err
	}
	if p.threads == nil {
		p.threads = make(map[uint64]int)
	}
	g.total, g.first = len(all), len(p.blocks)
	p.blocks = append(p.blocks, ptrace.Block{Address: r.List(), Length: goroutine.ListSize})
	threads := make([]uint64, 0, 64)
	buf := make([]byte, r.Size())
	for _, addr := range all {
		stack := ptrace.Block{Address: addr, Length: 8} // nothing to copy
		exists := false
		if sp.readAll(addr, buf) {
			if one, err := r.Decode(addr, buf); err == nil && one.Status.Exists() {
				stack, exists = stackOf(&one), true
				threads = append(threads, one.Thread)
			}
		}
		if len(p.blocks) >= 2*maxGoroutines {
			if exists {
				g.left++
			}
			continue
		}
		g.all = append(g.all, addr)
		p.blocks = append(p.blocks, ptrace.Block{Address: addr, Length: r.Size()}, stack)
	}
	for _, addr := range threads {
		if _, known := p.threads[addr]; !known && addr != 0 {
			p.threads[addr] = len(p.blocks)
			p.blocks = append(p.blocks, ptrace.Block{Address: addr, Length: goroutine.ThreadSize})
		}
	}
	return nil
}

// stackOf is the part of a goroutine's stack that is in use, as far as can be told before the stop.
func stackOf(g *goroutine.Goroutine) ptrace.Block {
	low, high := g.StackLow, g.StackHigh
	switch {
	case g.Status == goroutine.Running && high-low > goroutineStack:
		low = high - goroutineStack
	case g.Status != goroutine.Running:
		low = max(low, g.SP-belowStack) &^ 7
		high = min(high, low+goroutineStack)
	}
	return ptrace.Block{Address: low, Length: int(high - low)}
}

// goWalk walks the stacks of goroutines in a snapshot.
type goWalk struct {
	capturer          *Capturer
	space             *space
	snap              *ptrace.Snapshot
	options           Options
	copies            *goCopies
	unwinding, naming time.Duration
}

// list appends the goroutines of one program, and returns how many are missing or have no stack.
func (w *goWalk) list(t *trace.Trace, p *goProgram, plan *plan) (missed int) {
	t.GoroutinesLeftOut += p.left
	if head := w.block(p.first).Data; head != nil {
		// Those made since the list was read.
		missed += int(w.capturer.arch.Order.Uint64(head[8:])) - p.total
	}
	for i, addr := range p.all {
		g, err := p.runtime.Decode(addr, w.block(p.first+1+2*i).Data)
		if err != nil {
			missed++
			t.GoroutinesLeftOut++
			continue
		}
		if !g.Status.Exists() {
			continue
		}
		out := trace.Goroutine{ID: g.ID, Status: g.State(), Locked: g.Locked, Parent: g.Parent}
		if g.MadeAt != 0 && g.ID != 1 {
			out.Creator = w.function(g.MadeAt)
		}
		if thread, ok := plan.threads[g.Thread]; ok {
			tid, current := p.runtime.Thread(w.block(thread).Data)
			if current == addr {
				out.TID = tid
			}
		}
		mem := &goMemory{goCopies: w.copies, stack: w.block(p.first + 2 + 2*i)}
		if !w.stack(&out, &g, mem) {
			missed++
		}
		t.Goroutines = append(t.Goroutines, out)
	}
	return missed
}

// block returns a block of the snapshot.
func (w *goWalk) block(i int) ptrace.Stack {
	if i >= len(w.snap.Blocks) {
		return ptrace.Stack{}
	}
	return w.snap.Blocks[i]
}

// function names the function at a return address.
func (w *goWalk) function(addr uint64) string {
	f := unwind.Frame{PC: addr}
	frames, _ := w.space.name([]unwind.Frame{f}, maxLines(w.options), nil)
	if len(frames) == 0 {
		return ""
	}
	return frames[len(frames)-1].Function
}

// stack walks a goroutine's stack: from its thread's registers where it has one and that leads to its end, else from
// where it was left. False if memory is missing that another stop may have.
func (w *goWalk) stack(out *trace.Goroutine, g *goroutine.Goroutine, mem *goMemory) bool {
	c := w.capturer
	u := unwind.Unwinder{Arch: c.arch, MaxFrames: w.options.MaxFrames}
	began := time.Now()
	var frames []unwind.Frame
	stop := unwind.Stop{Reason: unwind.NoRegisters}
	for i := range w.snap.Threads {
		if th := &w.snap.Threads[i]; out.TID != 0 && th.TID == out.TID && th.Registers != nil {
			out.Name, out.State = th.Name, th.State
			if regs, err := c.arch.DecodePRStatus(th.Registers); err == nil {
				frames, stop = u.Unwind(nil, regs, mem, w.space)
			}
		}
	}
	byThread := stop.Whole() && w.on(frames, g)
	if g.Status != goroutine.Running && !byThread {
		regs := c.goRegisters(g)
		u.Resumes = !w.begins(g.PC)
		frames, stop = u.Unwind(nil, regs, mem, w.space)
	}
	walked := time.Now()
	out.Stop, out.Whole = stop.String(), stop.Whole()
	var cut bool
	if out.Frames, cut = w.space.name(frames, maxLines(w.options), nil); cut {
		out.Stop, out.Whole = unwind.MaxFrames.String(), false
	}
	w.unwinding += walked.Sub(began)
	w.naming += time.Since(walked)
	return stop.Reason != unwind.NoMemory && stop.Reason != unwind.NoRegisters
}

// on reports whether a walk has been on the goroutine's own stack.
func (w *goWalk) on(frames []unwind.Frame, g *goroutine.Goroutine) bool {
	return slices.ContainsFunc(frames, func(f unwind.Frame) bool { return f.CFA > g.StackLow && f.CFA <= g.StackHigh })
}

// begins reports whether a function begins at an address.
func (w *goWalk) begins(pc uint64) bool {
	_, f, ok := w.space.find(pc)
	if !ok || f.module == nil || f.module.goTable() == nil {
		return false
	}
	fn, err := f.module.goTable().Find(pc - f.bias)
	return err == nil && fn.Entry == pc-f.bias
}

// goRegisters are the registers that a goroutine goes on with.
func (c *Capturer) goRegisters(g *goroutine.Goroutine) arch.Registers {
	var regs arch.Registers
	regs.Set(c.arch.PC, g.PC)
	regs.Set(c.arch.SP, g.SP)
	if g.BP != 0 {
		regs.Set(c.arch.FP, g.BP)
	}
	if link := c.arch.Index(uint64(c.arch.ReturnColumn)); link >= 0 && link != c.arch.PC && g.LR != 0 {
		regs.Set(link, g.LR)
	}
	return regs
}
