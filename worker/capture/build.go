package capture

import (
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// extraReads returns the memory of the process to copy together with the stack, or nil if there is none.
func (r *run) extraReads() *snapshot.ExtraReads {
	t := &snapshot.ExtraReads{}
	if !r.options.NoContext {
		r.server.addTo(t)
	}
	t.Ranges = r.generated.Pieces
	if len(t.Variables) == 0 && len(t.Ranges) == 0 {
		return nil
	}
	return t
}

// build unwinds and names a snapshot. It uses only descriptions of generated (JIT) code from the snapshot's moment, if
// the engine allows this.
func (r *run) build(snap *snapshot.Snapshot) built {
	c := r.capturer
	open := func() *naming.Space {
		sp := c.processes.Open(snap.PID, r.target.StartTime, snap.Maps)
		sp.Files = &r.files
		return sp
	}
	space := open()
	if snap.Engine == snapshot.EngineStop {
		copied := frozen(&snapshot.Stack{}, snap.Found)
		memory := func(addr uint64, p []byte) (int, error) { return copied(addr, p), nil }
		space.Generated.AddFrom(&r.generated, memory, c.arch)
		space.ReadLater(false)
		return c.build(snap, space, r.options, &r.server)
	}
	if snap.Engine == snapshot.EngineBlocked && len(snap.Threads) == 1 {
		space.Generated.SameMoment = symbolize.LiveMemory(snap.PID)
	} else {
		space.ReadLater(true)
	}
	b := c.build(snap, space, r.options, &r.server)
	if len(space.Generated.Unknown) > 0 && !asleep(snap) {
		space = open()
		space.ReadLater(true)
		b = c.build(snap, space, r.options, &r.server)
	}
	return b
}

// findGenerated finds out where the process describes the generated code that a capture did not know. It returns false
// if another capture would find nothing new.
func (r *run) findGenerated(b *built) bool {
	g := &b.space.Generated
	if b.trace.Engine != snapshot.EngineStop || len(g.Unknown) == 0 {
		return false
	}
	return r.generated.Add(b.space.JIT().Locate(symbolize.LiveMemory(r.target.PID), g.Unknown))
}

// asleep reports whether the only thread of a process has slept since the snapshot: it still sleeps in the same system
// call, and its number of context switches is the same.
func asleep(snap *snapshot.Snapshot) bool {
	if len(snap.Threads) != 1 || snap.Threads[0].Syscall == nil {
		return false
	}
	th := &snap.Threads[0]
	call, err := process.ReadSyscall(snap.PID, th.TID)
	if err != nil || call != *th.Syscall {
		return false
	}
	now, err := process.ReadTaskStatus(snap.PID, th.TID)
	return err == nil && now.VoluntarySwitches+now.InvoluntarySwitches == th.Switches
}
