package ptrace

import (
	"slices"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/procfs"
)

// prefault reads the memory that the stop is going to copy, before it attaches to a thread. If a page first has to be
// loaded, the target would stay stopped until the page is there. If the page's provider never answers, that is for
// ever.
//
// prefault runs if the machine has swapped memory out. It also runs for each new process, because another process may
// provide its memory on request (userfaultfd(2), as in a lazily restored checkpoint). The data read is discarded. A
// missing page remains possible. But most missing pages are pages that the process has not used for a long time.
func (s *session) prefault() {
	swapping := swapping()
	if !swapping && s.layout != nil {
		return
	}
	s.extra.expectNothing() // the old target of a variable may not be in memory
	pid := s.call.target.PID
	w := &observer{ctx: s.call.ctx, target: s.call.target, options: s.call.options, maps: s.maps}
	i := slices.IndexFunc(s.maps, func(m procfs.Mapping) bool { return m.Path == stackPath })
	if i >= 0 {
		// Read the whole stack: the start of its used part is unknown while the process runs.
		m := &s.maps[i]
		size := min(m.End-m.Start, s.maxStack, uint64(len(s.arena.memory)))
		stack := Stack{Start: m.End - size, Data: s.arena.memory[:size]}
		n, _ := ReadMemory(pid, stack.Start, stack.Data) // unreadable memory will not be readable later, or is not needed
		stack.Data = stack.Data[:n]
		_ = w.follow(pid, &stack)
	}
	if !s.call.options.AllThreads || !swapping {
		return
	}
	tids, err := procfs.Threads(pid)
	if err != nil {
		return
	}
	for _, tid := range tids {
		if tid != pid {
			_, _ = w.blocked(tid) // a running thread has much of its stack in memory
		}
	}
}

// swapping reports whether this machine has swapped memory out.
func swapping() bool {
	var info unix.Sysinfo_t
	return unix.Sysinfo(&info) == nil && info.Freeswap < info.Totalswap
}
