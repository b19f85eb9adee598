package ptrace

import (
	"slices"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/procfs"
)

// prefault reads what the stop is going to copy, before anything is attached: a page that has to come from somewhere
// else would keep the target standing still for as long as that takes, which is for ever where nobody answers. That is
// done on a machine that has swapped; and of each process that is new, since another one may provide its memory as it
// is asked for (userfaultfd(2), as where a checkpoint is restored lazily). What is read is not used. Nothing is certain
// by that, but most of what is not in memory is what the process has not needed for long.
func (s *session) prefault() {
	swapping := swapping()
	if !swapping && s.layout != nil {
		return
	}
	s.extra.expectNothing() // what a variable does not point at any more may not be in memory
	pid := s.call.target.PID
	w := &observer{ctx: s.call.ctx, target: s.call.target, options: s.call.options, maps: s.maps}
	i := slices.IndexFunc(s.maps, func(m procfs.Mapping) bool { return m.Path == stackPath })
	if i >= 0 {
		// All of it: where in it the stack begins is not known of a process that runs.
		m := &s.maps[i]
		size := min(m.End-m.Start, s.maxStack, uint64(len(s.arena.memory)))
		stack := Stack{Start: m.End - size, Data: s.arena.memory[:size]}
		n, _ := ReadMemory(pid, stack.Start, stack.Data) // what cannot be read now cannot be later, or is not needed
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
			_, _ = w.blocked(tid) // of one that runs, much of the stack is in memory
		}
	}
}

// swapping reports whether there is anything swapped on this machine.
func swapping() bool {
	var info unix.Sysinfo_t
	return unix.Sysinfo(&info) == nil && info.Freeswap < info.Totalswap
}
