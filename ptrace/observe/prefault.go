package observe

import (
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"slices"
)

// Prefault reads the memory that a capture is going to copy while it stops the process: the main thread's stack, the memory
// of Options.ExtraReads, and, if threads is set, the stacks of the other threads that sleep. So the kernel loads missing pages
// before the stop. The data read is discarded. room is memory into which Prefault copies the stack.
func Prefault(t process.Target, o snapshot.Options, maps []process.Mapping, room []byte, threads bool) {
	w := &observer{target: t, options: o, maps: maps}
	i := slices.IndexFunc(maps, func(m process.Mapping) bool { return m.Path == snapshot.StackPath })
	if i >= 0 {
		// Read the whole stack: the start of its used part is unknown while the process runs.
		m := &maps[i]
		size := min(m.End-m.Start, uint64(o.MaxStack), uint64(len(room)))
		stack := snapshot.Stack{Start: m.End - size, Data: room[:size]}
		// Unreadable memory will not be readable later, or is not needed.
		n, _ := process.ReadMemory(t.PID, stack.Start, stack.Data)
		stack.Data = stack.Data[:n]
		_ = w.follow(t.PID, &stack)
	}
	if !threads {
		return
	}
	tids, err := process.Threads(t.PID)
	if err != nil {
		return
	}
	for _, tid := range tids {
		if tid != t.PID {
			_, _ = w.blocked(tid) // a running thread has much of its stack in memory
		}
	}
}
