package capture

import (
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// extraReads returns the memory that a capture copies together with the stack, or nil if there is none: the variables
// of a PostgreSQL server, and descriptions of generated code.
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

// build unwinds and names a snapshot. If the snapshot's engine allows it, build uses only those descriptions of generated (JIT)
// code that are from the same moment as the snapshot.
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

// findGenerated finds out where the process keeps the descriptions of generated code that the capture lacked, and adds
// these places to r.generated. It returns false if it finds no new place: another capture would then copy nothing more.
func (r *run) findGenerated(b *built) bool {
	g := &b.space.Generated
	if b.trace.Engine != snapshot.EngineStop || len(g.Unknown) == 0 {
		return false
	}
	return r.generated.Add(b.space.JIT().Locate(symbolize.LiveMemory(r.target.PID), g.Unknown))
}

// asleep reports whether the only thread of a process has slept since the snapshot: the thread still sleeps in the same
// system call, and its number of context switches has not changed.
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
