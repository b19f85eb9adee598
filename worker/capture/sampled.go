package capture

import (
	"time"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/worker/trace"
)

// SampledStacks names stacks that were copied without a stop, outside of this package: registers and stack memory of
// one moment. It is for one goroutine. It must be closed.
type SampledStacks struct {
	capturer *Capturer
	options  Options
	key      []byte
}

// SampledStacks returns an empty one. A stack has maxFrames at most, inlined calls included; 0 means
// unwind.DefaultMaxFrames.
func (c *Capturer) SampledStacks(maxFrames int) *SampledStacks {
	return &SampledStacks{capturer: c, options: Options{MaxFrames: maxFrames}}
}

// SampledSpace is the address space of a process, with the stacks that were named there. Names of stacks are kept: equal
// ones are named once.
type SampledSpace struct {
	// Maps are the mappings of the process.
	Maps []procfs.Mapping

	pid       int
	startTime uint64
	known     map[string]*trace.Thread
}

// maxSampledStacks bounds the stacks whose names are kept for one address space.
const maxSampledStacks = 1 << 16

// NewSampledSpace describes a process by its mappings. StartTime is that of procfs.Stat.
func NewSampledSpace(pid int, startTime uint64, maps []procfs.Mapping) *SampledSpace {
	return &SampledSpace{Maps: maps, pid: pid, startTime: startTime, known: make(map[string]*trace.Thread)}
}

// Name walks a stack and names its frames. Equal stacks have the same result, which must not be changed. Complete is
// false if the walk has left what the mappings describe: the process may have others by now. What PostgreSQL says of
// itself is not read.
func (s *SampledStacks) Name(sp *SampledSpace, th *ptrace.Thread) (named *trace.Thread, complete bool) {
	files := deadline{at: time.Now().Add(defaultDeadline), after: s.capturer.linesWait}
	defer files.stop()
	space := s.capturer.spaces.open(sp.pid, sp.startTime, sp.Maps)
	space.files, space.generated.off = &files, true
	w := s.capturer.walker(space, s.options)
	defer w.close()
	stop := w.walk(th, nil)
	complete = stop.Whole() || stop.Reason == unwind.MaxFrames
	s.key = appendWalk(append(s.key[:0], th.State, byte(stop.Reason)), w.frames)
	if named = sp.known[string(s.key)]; named != nil {
		return named, complete
	}
	t := w.describe(th, stop)
	if len(sp.known) >= maxSampledStacks {
		clear(sp.known)
	}
	if space.unread == "" && !unreadNames(&t) {
		sp.known[string(s.key)] = &t
	}
	return &t, complete
}

// unreadNames reports whether a frame lacks a name that will be there later.
func unreadNames(t *trace.Thread) bool {
	for i := range t.Frames {
		if t.Frames[i].Note == symbolsUnread {
			return true
		}
	}
	return false
}
