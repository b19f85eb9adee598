package capture

import (
	"cmp"
	"slices"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// StackSpace is the address space of a process, with the stacks that a StackNamer has named for this process.
type StackSpace struct {
	// Maps are the mappings of the process, in address order. They must not be changed.
	Maps []process.Mapping

	pid       int
	startTime uint64
	check     *naming.Check // nil: the mappings are not verified
	known     map[string]*backtrace.Thread
	named     []namedStack   // all named stacks, for StackNamer.Complete; empty without CompleteLater
	server    *serverProcess // nil: not examined yet
}

// namedStack is a stack and the walk from which it was named.
type namedStack struct {
	thread *backtrace.Thread
	walked []unwind.Frame
}

// maxKnownStacks is the default of StackNamerOptions.MaxStacks.
const maxKnownStacks = 1 << 16

// NewStackSpace describes a process by its mappings. startTime has the meaning of process.Stat.StartTime. The mappings
// must be valid for all stacks that are named with the space: they are not compared with the process. The space need
// not be closed.
func NewStackSpace(pid int, startTime uint64, maps []process.Mapping) *StackSpace {
	return &StackSpace{Maps: maps, pid: pid, startTime: startTime, known: make(map[string]*backtrace.Thread)}
}

// ReadStackSpace reads the mappings of a process. For each new stack, StackNamer.Name compares the mappings of the
// stack with those of the process. If they differ, it reads all mappings again. The error wraps process.ErrExited if
// the process has ended. The caller must close the space.
func ReadStackSpace(pid int, startTime uint64) (*StackSpace, error) {
	check := naming.NewCheck(pid)
	maps, err := process.Maps(pid)
	stat, e := process.ReadStat(pid)
	switch err = cmp.Or(e, err); {
	case err != nil:
		err = process.ReadError(pid, pid, err)
	case stat.StartTime != startTime || len(maps) == 0:
		err = process.Exited(pid)
	}
	if err != nil {
		check.Close()
		return nil, err
	}
	sp := NewStackSpace(pid, startTime, maps)
	sp.check = &check
	return sp, nil
}

// Known returns the number of different stacks that the space remembers.
func (sp *StackSpace) Known() int { return len(sp.known) }

// Close closes the file that ReadStackSpace has opened.
func (sp *StackSpace) Close() {
	if sp.check != nil {
		sp.check.Close()
	}
}

// stillMapped reports whether the process still has the mappings that a walk used. It returns true if this cannot be checked.
func (sp *StackSpace) stillMapped(w *lastWalk) bool {
	return sp.check.File == nil || sp.check.StillMappedRetry(sp.Maps, w.used, w.trusted)
}

// reread reads the mappings again, and forgets the stacks. If the process has ended, reread changes nothing and returns
// false: another process may have its id.
func (sp *StackSpace) reread(c *Capturer) bool {
	maps, err := process.Maps(sp.pid)
	if stat, e := process.ReadStat(sp.pid); err != nil || e != nil || stat.StartTime != sp.startTime || len(maps) == 0 {
		return false
	}
	c.processes.ForgetMaps(naming.ProcessKey{PID: sp.pid, StartTime: sp.startTime})
	sp.Maps = maps
	clear(sp.known)
	return true
}

// rename replaces the frames of a stack, and keeps their levels.
func (s *namedStack) rename(frames []backtrace.Frame) {
	old := s.thread.Frames
	switch {
	case len(frames) == len(old):
		for i := range old {
			frames[i].Levels = old[i].Levels
		}
	case len(frames) < len(old):
		return
	case slices.ContainsFunc(old, func(f backtrace.Frame) bool { return len(f.Levels) > 0 }):
		return // the new frames have further inlined calls, so the old levels would be at wrong frames
	}
	s.thread.Frames = frames
}
