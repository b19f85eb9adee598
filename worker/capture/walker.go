package capture

import (
	"errors"
	"fmt"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// walker walks the stacks of the threads of one process, one after another, and names their frames.
type walker struct {
	capturer *Capturer
	space    *naming.Space
	unwinder unwind.Unwinder
	limit    int // largest number of frames of a thread, inlined calls included
	late     symbolize.Deadline
	frames   []unwind.Frame // frames of the last walk
	lent     *[]unwind.Frame
}

// walker returns a walker for a process. The caller must close it.
func (c *Capturer) walker(space *naming.Space, o Options) *walker {
	lent := c.walks.Get().(*[]unwind.Frame) //nolint:forcetypeassert // the pool has only this type
	return &walker{
		capturer: c, space: space, unwinder: unwind.Unwinder{Arch: c.arch, MaxFrames: o.MaxFrames},
		limit: naming.FrameLimit(o.MaxFrames),
		late:  symbolize.Deadline{After: c.linesWait}, frames: *lent, lent: lent,
	}
}

func (w *walker) close() {
	w.late.Stop()
	*w.lent = w.frames
	w.capturer.walks.Put(w.lent)
}

// walk walks a thread's stack into w.frames, and returns why the walk ended. The parameter named also has copies of the
// thread's further stacks. If memory is missing that no further stop can copy, walk repeats the walk with Unwinder.Final
// set. w.frames is valid until the next walk.
func (w *walker) walk(th *snapshot.Thread, also []snapshot.Stack) (stop unwind.Stop) {
	w.frames, stop = w.capturer.unwindThread(w.frames[:0], &w.unwinder, th, also, w.space)
	if stop.Reason == unwind.NoMemory && (len(also) >= maxRecaptures || !w.space.Mapped(stop.Address)) {
		w.unwinder.Final = true
		w.frames, stop = w.capturer.unwindThread(w.frames[:0], &w.unwinder, th, also, w.space)
		w.unwinder.Final = false
	}
	return stop
}

// describe names the frames of the last walk. th must be the thread of that walk.
func (w *walker) describe(th *snapshot.Thread, stop unwind.Stop) backtrace.Thread {
	out := backtrace.Thread{TID: th.TID, Name: th.Name, State: th.State, Kernel: kernel(th), Stop: stop.String(),
		Whole: stop.Whole(), Generated: stop.Reason == unwind.Generated}
	switch {
	case errors.Is(th.Err, process.ErrExited):
		out.Stop = "exited meanwhile"
		if th.State == 'Z' {
			out.Stop = "exited before"
		}
	case th.Err != nil:
		out.Stop = th.Err.Error()
	}
	if stop.Reason == unwind.NoMemory && th.Stack.Cut {
		out.Stop = fmt.Sprintf("only %d bytes of stack copied", len(th.Stack.Data))
	}
	var cut bool
	if out.Frames, cut = w.space.Name(w.frames, w.limit, &w.late); cut {
		out.Stop, out.Whole = unwind.MaxFrames.String(), false
	}
	return out
}

func (c *Capturer) unwindThread(
	dst []unwind.Frame, u *unwind.Unwinder, th *snapshot.Thread, also []snapshot.Stack, space *naming.Space,
) ([]unwind.Frame, unwind.Stop) {
	if call := th.Syscall; call != nil {
		space.PrefetchInnermost(call.PC)
		regs := c.arch.Blocked(call.PC, call.SP, call.Number >= 0, call.Args)
		return u.Unwind(dst, regs, newMemory(th, also, c.arch), space)
	}
	if th.Registers == nil {
		return dst, unwind.Stop{Reason: unwind.NoRegisters, Err: th.Err}
	}
	regs, err := c.arch.DecodePRStatus(th.Registers)
	if err != nil {
		return dst, unwind.Stop{Reason: unwind.NoRegisters, Err: err}
	}
	if th.Floating != nil {
		if err := c.arch.DecodeFPRegSet(&regs, th.Floating); err != nil {
			return dst, unwind.Stop{Reason: unwind.NoRegisters, Err: err}
		}
	}
	if pc, ok := regs.Get(c.arch.PC); ok {
		space.PrefetchInnermost(pc)
	}
	return u.Unwind(dst, regs, newMemory(th, also, c.arch), space)
}
