package capture

import (
	"time"

	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/symbolize"
	"pg_stat_backtrace/worker/trace"
)

// NameStacks unwinds and names stacks of one process that a program in the kernel has copied. maxFrames bounds the
// frames of each stack (0: unwind.DefaultMaxFrames). Each snapshot has its own mappings. The traces do not have what
// a PostgreSQL process says about itself, because that would have to be copied at the same time.
func (c *Capturer) NameStacks(list []*snapshot.Snapshot, maxFrames int) []*trace.Trace {
	traces := make([]*trace.Trace, 0, len(list))
	files := symbolize.Deadline{At: time.Now().Add(defaultDeadline), After: c.linesWait}
	defer files.Stop()
	var w *walker
	for i, snap := range list {
		if i == 0 || snap.MapsSnapshot != list[i-1].MapsSnapshot {
			if w != nil {
				w.close()
			}
			space := c.processes.Open(snap.PID, snap.MapsSnapshot.StartTime(), snap.Maps)
			space.Files, space.Generated.Disabled = &files, true
			w = c.walker(space, Options{MaxFrames: maxFrames})
		}
		th := &snap.Threads[0]
		stop := w.walk(th, nil)
		traces = append(traces, &trace.Trace{
			PID: snap.PID, Engine: snap.Engine, Threads: []trace.Thread{w.describe(th, stop)},
		})
	}
	if w != nil {
		w.close()
	}
	return traces
}
