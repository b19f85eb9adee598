package naming

import (
	"cmp"
	"errors"
	"slices"
	"sort"
	"time"

	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/golang"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// ErrNotGo means that a process runs no Go code.
var ErrNotGo = errors.New("no Go program or library")

// Bounds of the copies that one stop makes for goroutines.
const (
	goroutineStack = 64 << 10 // bytes of a goroutine's stack
	belowStack     = 256      // bytes that are copied below the stack pointer, which was read before the stop
	maxVariables   = 64 << 20 // bytes of a program's variables to search
	maxGoroutines  = 16384    // more goroutines are counted, but not copied
)

// GoPlan lists the memory that a stop copies.
type GoPlan struct {
	Blocks  []snapshot.Block
	threads map[uint64]int // by address of a thread's structure: the index of its block
}

// Add plans the copies for one program.
func (p *GoPlan) Add(sp *Space, g *GoProgram) error {
	r := g.runtime
	all, err := r.All(sp.ReadAll)
	if err != nil {
		return err
	}
	if p.threads == nil {
		p.threads = make(map[uint64]int)
	}
	g.total, g.first = len(all), len(p.Blocks)
	p.Blocks = append(p.Blocks, snapshot.Block{Address: r.List(), Length: golang.ListSize})
	threads := make([]uint64, 0, 64)
	buf := make([]byte, r.Size())
	for _, addr := range all {
		stack := snapshot.Block{Address: addr, Length: 8} // without a stack, the start of the structure
		exists := false
		if sp.ReadAll(addr, buf) {
			if one, err := r.Decode(addr, buf); err == nil && one.Status.Exists() {
				stack, exists = stackOf(&one), true
				threads = append(threads, one.Thread)
			}
		}
		if len(p.Blocks) >= 2*maxGoroutines {
			if exists {
				g.left++
			}
			continue
		}
		g.all = append(g.all, addr)
		p.Blocks = append(p.Blocks, snapshot.Block{Address: addr, Length: r.Size()}, stack)
	}
	for _, addr := range threads {
		if _, known := p.threads[addr]; !known && addr != 0 {
			p.threads[addr] = len(p.Blocks)
			p.Blocks = append(p.Blocks, snapshot.Block{Address: addr, Length: golang.ThreadSize})
		}
	}
	return nil
}

// stackOf returns the used part of a goroutine's stack, as it is known before the stop.
func stackOf(g *golang.Goroutine) snapshot.Block {
	low, high := g.StackLow, g.StackHigh
	switch {
	case g.Status == golang.Running && high-low > goroutineStack:
		low = high - goroutineStack
	case g.Status != golang.Running:
		low = max(low, g.SP-belowStack) &^ 7
		high = min(high, low+goroutineStack)
	}
	return snapshot.Block{Address: low, Length: int(high - low)}
}

// GoWalk walks the stacks of goroutines in a snapshot or a core file.
type GoWalk struct {
	Arch      *arch.Arch
	Space     *Space
	Modules   unwind.Modules // the space, as the unwinder reads it
	MaxFrames int
	Blocks    []snapshot.Stack // the copies of the plan's blocks
	Copies    *GoCopies
	Threads   map[int]GoThread // by id in the PID namespace of the program, which Go's runtime has
	// Nested is set if the program runs in another PID namespace than this program. Then a thread that is not in Threads has no id:
	// here, another process can have the id that Go's runtime has.
	Nested bool
	// Keep, if not nil, reports whether the result keeps the goroutine with this stack. All only counts the others.
	Keep func(*backtrace.Thread) bool

	unwinding, naming time.Duration
}

// GoThread is a thread with known registers.
type GoThread struct {
	TID       int // as this program sees it
	Name      string
	State     byte
	Registers arch.Registers
}

// All appends the goroutines of all programs to t. The result missed is the number of goroutines that are missing or
// have no stack.
func (w *GoWalk) All(t *backtrace.Trace, programs []GoProgram, p *GoPlan) (missed int) {
	for i := range programs {
		t.Go = programs[i].version
		missed += w.list(t, &programs[i], p)
	}
	sort.SliceStable(t.Goroutines, func(i, j int) bool {
		a, b := t.Goroutines[i], t.Goroutines[j]
		return cmp.Compare(a.ID, b.ID) < 0
	})
	t.Unwind, t.Symbolize = w.unwinding, w.naming
	return missed
}

// list appends the goroutines of one program. The result missed is the number of goroutines that are missing or have no
// stack.
func (w *GoWalk) list(t *backtrace.Trace, p *GoProgram, plan *GoPlan) (missed int) {
	t.GoroutinesLeftOut += p.left
	if head := w.block(p.first).Data; head != nil {
		// Count the goroutines that were created after the list was read.
		missed += int(w.Arch.Order.Uint64(head[8:])) - p.total
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
		out := backtrace.Goroutine{ID: g.ID, Status: g.State(), Locked: g.Locked, Parent: g.Parent}
		if g.MadeAt != 0 && g.ID != 1 {
			out.Creator = w.function(g.MadeAt)
		}
		if thread, ok := plan.threads[g.Thread]; ok {
			tid, current := p.runtime.Thread(w.block(thread).Data)
			if current == addr {
				out.TID = tid
			}
		}
		mem := &memory{GoCopies: w.Copies, stack: w.block(p.first + 2 + 2*i)}
		if !w.stack(&out, &g, mem) {
			missed++
		}
		if w.Keep != nil && !w.Keep(&out.Thread) {
			t.GoroutinesLeftOut++
			continue
		}
		t.Goroutines = append(t.Goroutines, out)
	}
	return missed
}

// block returns a block of the snapshot.
func (w *GoWalk) block(i int) snapshot.Stack {
	if i >= len(w.Blocks) {
		return snapshot.Stack{}
	}
	return w.Blocks[i]
}

// function returns the name of the function at a return address.
func (w *GoWalk) function(addr uint64) string {
	f := unwind.Frame{PC: addr}
	frames, _ := w.Space.Name([]unwind.Frame{f}, FrameLimit(w.MaxFrames), nil)
	if len(frames) == 0 {
		return ""
	}
	return frames[len(frames)-1].Function
}

// stack walks a goroutine's stack from the registers of the goroutine's thread. If that walk does not reach the end of
// the stack, or has no frame on the goroutine's stack, and the goroutine does not run, stack walks again from the
// registers saved in the goroutine. It returns false if memory or registers are missing, which another stop may copy.
func (w *GoWalk) stack(out *backtrace.Goroutine, g *golang.Goroutine, mem *memory) bool {
	u := unwind.Unwinder{Arch: w.Arch, MaxFrames: w.MaxFrames, Final: true}
	began := time.Now()
	var frames []unwind.Frame
	stop := unwind.Stop{Reason: unwind.NoRegisters}
	if th, ok := w.Threads[out.TID]; ok && out.TID != 0 {
		out.TID, out.Name, out.State = th.TID, th.Name, th.State
		frames, stop = u.Unwind(nil, th.Registers, mem, w.Modules)
	} else if w.Nested {
		out.TID = 0
	}
	byThread := stop.Whole() && w.on(frames, g)
	if g.Status != golang.Running && !byThread {
		u.Resumes = !w.begins(g.PC)
		frames, stop = u.Unwind(nil, goRegisters(w.Arch, g), mem, w.Modules)
	}
	walked := time.Now()
	out.Stop, out.Whole = stop.String(), stop.Whole()
	var cut bool
	if out.Frames, cut = w.Space.Name(frames, FrameLimit(w.MaxFrames), nil); cut {
		out.Stop, out.Whole = unwind.MaxFrames.String(), false
	}
	w.unwinding += walked.Sub(began)
	w.naming += time.Since(walked)
	return stop.Reason != unwind.NoMemory && stop.Reason != unwind.NoRegisters
}

// on reports whether a frame of a walk is on the goroutine's own stack.
func (w *GoWalk) on(frames []unwind.Frame, g *golang.Goroutine) bool {
	return slices.ContainsFunc(frames, func(f unwind.Frame) bool { return f.CFA > g.StackLow && f.CFA <= g.StackHigh })
}

// begins reports whether a function begins at an address.
func (w *GoWalk) begins(pc uint64) bool {
	_, f, ok := w.Space.Lookup(pc)
	if !ok || f.Module == nil {
		return false
	}
	t, _ := f.Module.GoTable(w.Space.Files)
	if t == nil {
		return false
	}
	fn, err := t.Find(pc - f.Bias)
	return err == nil && fn.Entry == pc-f.Bias
}

// goRegisters returns the registers with which a goroutine will resume.
func goRegisters(a *arch.Arch, g *golang.Goroutine) arch.Registers {
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
