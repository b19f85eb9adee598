package capture

import (
	"fmt"
	"os"
	"slices"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/worker/pgcontext"
	"pg_stat_backtrace/worker/procmap"
	"pg_stat_backtrace/worker/symbolize"
	"pg_stat_backtrace/worker/trace"
)

// SampledStacks names stacks that were copied without a stop, outside of this package: registers and stack memory of
// one moment. It is for one goroutine. It must be closed.
type SampledStacks struct {
	capturer *Capturer
	options  Options
	key      []byte
	walked   []unwind.Frame // of the last walk
}

// SampledStacks returns an empty one. A stack has maxFrames at most, inlined calls included; 0 means
// unwind.DefaultMaxFrames.
func (c *Capturer) SampledStacks(maxFrames int) *SampledStacks {
	return &SampledStacks{capturer: c, options: Options{MaxFrames: maxFrames}}
}

// SampledSpace is the address space of a process, with the stacks that were named there. Names of stacks are kept, so
// that equal stacks are named once.
type SampledSpace struct {
	// Maps are the mappings of the process.
	Maps []procfs.Mapping

	pid       int
	startTime uint64
	known     map[string]*trace.Thread
	named     []sampledStack // all stacks, also if known has them no more
	server    *serverProcess // nil: not looked at yet
}

// sampledStack is a stack that was named, with the walk that it was named by.
type sampledStack struct {
	thread *trace.Thread
	walked []unwind.Frame
}

// SampledMemory is memory of a process that was copied with a stack: variables of a PostgreSQL server, and what they
// lead to.
type SampledMemory []snapshot.Stack

// maxSampledStacks bounds the stacks whose names are kept for one address space.
const maxSampledStacks = 1 << 16

// NewSampledSpace describes a process by its mappings. StartTime is as in procfs.Stat.
func NewSampledSpace(pid int, startTime uint64, maps []procfs.Mapping) *SampledSpace {
	return &SampledSpace{Maps: maps, pid: pid, startTime: startTime, known: make(map[string]*trace.Thread)}
}

// Name walks a stack and names its frames. Equal stacks have the same result, which must not be changed. Complete is
// false if the walk has left what the mappings describe: the process may have others by now. Functions of PL/pgSQL are
// levels of the frames, as far as the memory proves them. Nothing else that PostgreSQL says of itself is read.
func (s *SampledStacks) Name(
	sp *SampledSpace, th *snapshot.Thread, memory SampledMemory,
) (named *trace.Thread, complete bool) {
	files := symbolize.Deadline{At: time.Now().Add(defaultDeadline), After: s.capturer.linesWait}
	defer files.Stop()
	space := s.capturer.processes.Open(sp.pid, sp.startTime, sp.Maps)
	space.Files, space.Generated.Disabled = &files, true
	w := s.capturer.walker(space, s.options)
	defer w.close()
	w.late = symbolize.Deadline{} // Complete waits for lines and derived names
	stop := w.walk(th, nil)
	s.walked = append(s.walked[:0], w.frames...)
	complete = stop.Whole() || stop.Reason == unwind.MaxFrames
	s.key = appendWalk(append(s.key[:0], th.State, byte(stop.Reason)), w.frames)
	named = sp.known[string(s.key)]
	if named == nil {
		t := w.describe(th, stop)
		named = &t
		sp.keep(s.key, named, s.walked, space)
	}
	if len(memory) > 0 {
		named = s.addLevels(sp, space, named, th, memory)
	}
	return named, complete
}

// keep remembers a stack. It is named by equal walks from now on, unless an image was not read in time.
func (sp *SampledSpace) keep(key []byte, t *trace.Thread, walked []unwind.Frame, space *procmap.Space) {
	sp.named = append(sp.named, sampledStack{t, slices.Clone(walked)})
	if len(sp.known) >= maxSampledStacks {
		clear(sp.known)
	}
	if space.Unread == "" {
		sp.known[string(key)] = t
	}
}

// addLevels returns the stack of the last walk with the functions that the memory proves. It leaves named as it is.
func (s *SampledStacks) addLevels(
	sp *SampledSpace, space *procmap.Space, named *trace.Thread, th *snapshot.Thread, memory SampledMemory,
) *trace.Thread {
	if sp.server == nil {
		known := serverProcess{}
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", sp.pid)); err == nil {
			known = s.capturer.lookAtProgram(space, exe)
		}
		if space.Unread != "" {
			return named
		}
		sp.server = &known
	}
	if sp.server.process == nil || len(named.Frames) == 0 {
		return named
	}
	walked := s.walked
	copied := frozen(&th.Stack, memory)
	in := pgcontext.Input{
		Frozen: copied,
		// What was not copied with the stack does not count, except what cannot change: code and constants.
		Live: func(addr uint64, b []byte) int {
			if n := copied(addr, b); n > 0 || !constant(space, addr) {
				return n
			}
			n, _ := process.ReadMemory(sp.pid, addr, b)
			return n
		},
		Code:   func(addr uint64) pgcontext.Code { return sp.server.describe(space, addr) },
		Frames: spans(th.Stack.Start, walked, physical(walked, named.Frames), named.Frames),
	}
	levels := sp.server.process.Read(&in).Levels
	if len(levels) == 0 {
		return named
	}
	for _, l := range levels {
		s.key = fmt.Appendf(s.key, "\x00%d\x00%s\x00%d", l.Frame, l.Level.Function, l.Level.Line)
	}
	if known := sp.known[string(s.key)]; known != nil {
		return known
	}
	with := *named
	with.Frames = slices.Clone(named.Frames)
	for _, l := range levels {
		f := &with.Frames[l.Frame]
		f.Levels = append(slices.Clip(f.Levels), l.Level)
	}
	sp.keep(s.key, &with, walked, space)
	return &with
}

// completeWait is how long Complete waits for source lines and derived names.
const completeWait = 10 * time.Second

// Complete names all stacks of address spaces once more, in place. The first names may have been given while symbols
// were still being read, or names derived from code.
func (s *SampledStacks) Complete(spaces []*SampledSpace) {
	files := symbolize.Deadline{At: time.Now().Add(defaultDeadline), After: s.capturer.linesWait}
	defer files.Stop()
	late := symbolize.Deadline{After: completeWait}
	defer late.Stop()
	for _, sp := range spaces {
		space := s.capturer.processes.Open(sp.pid, sp.startTime, sp.Maps)
		space.Files, space.Generated.Disabled = &files, true
		for i := range sp.named {
			n := &sp.named[i]
			frames, _ := space.Name(n.walked, procmap.FrameLimit(s.options.MaxFrames), &late)
			n.rename(frames)
		}
	}
}

// rename replaces the frames of a stack, and keeps their levels.
func (n *sampledStack) rename(frames []trace.Frame) {
	old := n.thread.Frames
	switch {
	case len(frames) == len(old):
		for i := range old {
			frames[i].Levels = old[i].Levels
		}
	case len(frames) < len(old):
		return
	case slices.ContainsFunc(old, func(f trace.Frame) bool { return len(f.Levels) > 0 }):
		return // inlined calls have been found since: the levels would be at other frames
	}
	n.thread.Frames = frames
}

// constant reports whether an address lies in a mapping of a file that the process cannot write to.
func constant(space *procmap.Space, addr uint64) bool {
	i := space.Mapping(addr)
	return i >= 0 && space.Maps[i].Inode != 0 && space.Maps[i].Perms&procfs.Write == 0
}
