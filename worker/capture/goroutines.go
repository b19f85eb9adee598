package capture

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace"
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
	belowStack     = 256      // bytes below the stack pointer that was read before the stop
	maxVariables   = 64 << 20 // bytes of a program's variables that are searched
	maxGoroutines  = 16384    // more are counted
)

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

// goWalk walks the stacks of goroutines in a snapshot, or in a core file.
type goWalk struct {
	arch      *arch.Arch
	space     *space
	modules   unwind.Modules // the space, as a walk sees it
	maxFrames int
	blocks    []ptrace.Stack // what the plan says
	copies    *goCopies
	threads   map[int]goThread

	unwinding, naming time.Duration
}

// goThread is a thread whose registers are known.
type goThread struct {
	name      string
	state     byte
	registers arch.Registers
}

// all adds the goroutines of all programs, and returns how many are missing or have no stack.
func (w *goWalk) all(t *trace.Trace, programs []goProgram, p *plan) (missed int) {
	for i := range programs {
		t.Go = programs[i].version
		missed += w.list(t, &programs[i], p)
	}
	slices.SortStableFunc(t.Goroutines, func(a, b trace.Goroutine) int { return cmp.Compare(a.ID, b.ID) })
	t.Unwind, t.Symbolize = w.unwinding, w.naming
	return missed
}

// list appends the goroutines of one program, and returns how many are missing or have no stack.
func (w *goWalk) list(t *trace.Trace, p *goProgram, plan *plan) (missed int) {
	t.GoroutinesLeftOut += p.left
	if head := w.block(p.first).Data; head != nil {
		// Those made since the list was read.
		missed += int(w.arch.Order.Uint64(head[8:])) - p.total
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
	if i >= len(w.blocks) {
		return ptrace.Stack{}
	}
	return w.blocks[i]
}

// function names the function at a return address.
func (w *goWalk) function(addr uint64) string {
	f := unwind.Frame{PC: addr}
	frames, _ := w.space.name([]unwind.Frame{f}, maxLines(w.maxFrames), nil)
	if len(frames) == 0 {
		return ""
	}
	return frames[len(frames)-1].Function
}

// stack walks a goroutine's stack: from its thread's registers where it has one and that leads to its end, else from
// where it was left. False if memory is missing that another stop may have.
func (w *goWalk) stack(out *trace.Goroutine, g *goroutine.Goroutine, mem *goMemory) bool {
	u := unwind.Unwinder{Arch: w.arch, MaxFrames: w.maxFrames, Final: true}
	began := time.Now()
	var frames []unwind.Frame
	stop := unwind.Stop{Reason: unwind.NoRegisters}
	if th, ok := w.threads[out.TID]; ok && out.TID != 0 {
		out.Name, out.State = th.name, th.state
		frames, stop = u.Unwind(nil, th.registers, mem, w.modules)
	}
	byThread := stop.Whole() && w.on(frames, g)
	if g.Status != goroutine.Running && !byThread {
		u.Resumes = !w.begins(g.PC)
		frames, stop = u.Unwind(nil, goRegisters(w.arch, g), mem, w.modules)
	}
	walked := time.Now()
	out.Stop, out.Whole = stop.String(), stop.Whole()
	var cut bool
	if out.Frames, cut = w.space.name(frames, maxLines(w.maxFrames), nil); cut {
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
	if !ok || f.module == nil {
		return false
	}
	t, _ := f.module.goTable(w.space.files)
	if t == nil {
		return false
	}
	fn, err := t.Find(pc - f.bias)
	return err == nil && fn.Entry == pc-f.bias
}

// goRegisters are the registers that a goroutine goes on with.
func goRegisters(a *arch.Arch, g *goroutine.Goroutine) arch.Registers {
	var regs arch.Registers
	regs.Set(a.PC, g.PC)
	regs.Set(a.SP, g.SP)
	if g.BP != 0 {
		regs.Set(a.FP, g.BP)
	}
	if link := a.Index(uint64(a.ReturnColumn)); link >= 0 && link != a.PC && g.LR != 0 {
		regs.Set(link, g.LR)
	}
	return regs
}
