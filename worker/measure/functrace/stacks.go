package functrace

import (
	"errors"

	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// Bounds of the memory. Processes may come and go during a trace, and most of them have the same stacks.
const (
	maxSpaces = 2048     // number of processes whose mappings are kept
	maxStacks = 16384    // number of different stacks of a process
	maxKnown  = 1 << 17  // number of different stacks, added up over all processes
	maxShared = 48 << 20 // bytes of the different stacks; equal stacks of several processes count once
)

// stacks names the stacks of hits. It keeps the mappings of the traced processes.
type stacks struct {
	namer      *capture.StackNamer
	shared     *capture.SharedStacks
	postmaster int // process id; 0: none
	rights     *process.Rights
	spaces     map[spaceKey]*capture.StackSpace
	known      int // number of different stacks of all spaces
	unwatch    func()
}

// spaceKey identifies a process.
type spaceKey struct {
	pid       int
	startTime uint64 // as in process.Stat
}

func newStacks(c *capture.Capturer, o *Options) *stacks {
	shared := capture.NewSharedStacks(maxShared)
	s := &stacks{
		namer: c.StackNamer(capture.StackNamerOptions{
			MaxFrames: o.MaxFrames, MaxStacks: maxStacks, Shared: shared,
		}),
		shared: shared, postmaster: o.Postmaster, rights: o.Rights, spaces: make(map[spaceKey]*capture.StackSpace),
	}
	s.unwatch = s.namer.Watch()
	return s
}

func (s *stacks) close() {
	for _, sp := range s.spaces {
		sp.Close()
	}
	clear(s.spaces)
	s.known = 0
}

// space returns the address space of a process. The first call reads its mappings. If the process has already ended, space
// uses the postmaster's mappings, because a child has the same images at the same addresses. Without a postmaster, space returns
// nil for such a process. It also returns nil for a process with other rights than the server.
func (s *stacks) space(pid int, startTime uint64) *capture.StackSpace {
	key := spaceKey{pid, startTime}
	if sp := s.spaces[key]; sp != nil {
		return sp
	}
	sp, err := capture.ReadStackSpace(pid, startTime)
	if s.rights != nil && errors.Is(s.rights.Verify(pid), process.ErrNotPermitted) {
		if sp != nil {
			sp.Close()
		}
		return nil
	}
	if err != nil {
		sp = s.inherited()
	}
	if sp == nil {
		return nil
	}
	if len(s.spaces) >= maxSpaces {
		for k, other := range s.spaces {
			other.Close()
			s.known -= other.Known()
			delete(s.spaces, k)
			break
		}
	}
	s.spaces[key] = sp
	return sp
}

// inherited returns a space with the mappings of the postmaster; nil if there are none.
func (s *stacks) inherited() *capture.StackSpace {
	if s.postmaster == 0 {
		return nil
	}
	stat, err := process.ReadStat(s.postmaster)
	if err != nil {
		return nil
	}
	maps, err := process.Maps(s.postmaster)
	if err != nil {
		return nil
	}
	return capture.NewStackSpace(s.postmaster, stat.StartTime, maps)
}

// of unwinds and names the stack of a hit. For equal stacks it returns the same pointer, as long as s.shared is not full. It
// returns nil if the process ended before its mappings were read.
func (s *stacks) of(h *probe.Hit) *backtrace.Thread {
	sp := s.space(h.Process.PID, process.StartTicks(h.Process.Started))
	if sp == nil {
		return nil
	}
	th := threadOf(h)
	known := sp.Known()
	named, _ := s.namer.Name(sp, &th, nil)
	if s.known += sp.Known() - known; s.known > maxKnown {
		s.close() // later hits read the mappings again
	}
	return named
}

// threadOf returns the copied thread of a hit.
func threadOf(h *probe.Hit) snapshot.Thread {
	return snapshot.Thread{
		TID: h.TID, State: 'R', Registers: h.Registers,
		Stack: snapshot.Stack{Start: h.StackStart, Data: h.Stack, Cut: uint64(len(h.Stack)) < h.Wanted},
	}
}
