package ptrace

import (
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/observe"
)

// prefault reads the memory that the capture is going to copy, before it attaches to a thread. If a page had to be loaded
// during the stop, the target would stay stopped until the page is there. It would stay stopped for ever if another process
// has to supply the page and never does.
//
// prefault runs if the machine has swapped memory out. It also runs for each new process, because another process may
// provide its memory on request (userfaultfd(2), as in a lazily restored checkpoint). The data read is discarded. A
// page can still be missing at the stop. But most missing pages are pages that the process has not used for a long
// time.
func (s *session) prefault() {
	swapping := swapping()
	if !swapping && s.known {
		return
	}
	s.extra.expectNothing() // the data to which a variable pointed earlier may not be in memory
	observe.Prefault(s.call.target, s.call.options, s.maps, s.arena.memory, s.call.options.AllThreads && swapping)
}

// swapping reports whether this machine has swapped memory out.
func swapping() bool {
	var info unix.Sysinfo_t
	return unix.Sysinfo(&info) == nil && info.Freeswap < info.Totalswap
}
