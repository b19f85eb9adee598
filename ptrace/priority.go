package ptrace

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/thread"
)

// If more threads are ready than there are processors, the kernel preempts the tracing thread like all others, for
// some ten milliseconds, while the target is stopped. So the thread runs with the lowest real-time priority from the
// interrupt to the detach, if permitted: with CAP_SYS_NICE, or RLIMIT_RTPRIO at 1 or more (sched(7)). In this time it
// works for some ten microseconds, or sleeps.
//
// The thread does this only if more threads are ready than there are processors, or if this program has a quota of
// processor time. Otherwise the capture would be slower. A sleeping target cannot preempt a thread with real-time priority,
// so it would have to be woken on another, idle processor. That takes longer than all other steps.
//
// If a quota is used up, the kernel lets ordinary threads of the control group wait for the next period, for up to 100
// ms by default. It does not do so with threads that have real-time priority.

// maxSideBySide is the largest number of this program's simultaneous captures whose threads judge subtracts from the ready
// threads.
const maxSideBySide = 16

// refusedUrgency is set after the kernel has denied real-time priority. No later session asks again, because the permission
// does not change.
//
//nolint:gochecknoglobals // the right is the process's
var refusedUrgency atomic.Bool

// raisePriority gives the tracing thread real-time priority, if this is useful (see above) and permitted, and the thread has
// an ordinary policy. It reports whether a processor is free for the target.
func (s *session) raisePriority() (room bool) {
	crowd, room := cpuContended()
	crowd = crowd || hasQuota()
	if !crowd || s.urgent || refusedUrgency.Load() {
		return room
	}
	policy, ordinary := thread.OrdinaryPolicy()
	if !ordinary {
		return room
	}
	s.policy = policy
	if s.urgent = thread.RaisePriority(); !s.urgent {
		refusedUrgency.Store(true)
	}
	return room
}

// hasQuota reports whether this program has a quota of processor time.
//
//nolint:gochecknoglobals // tests replace it
var hasQuota = func() bool { return process.CPUQuota() > 0 }

// loadFile returns /proc/loadavg, opened once and kept open; -1 if it cannot be read.
//
//nolint:gochecknoglobals // it is always the same
var loadFile = sync.OnceValue(func() int {
	fd, err := unix.Open("/proc/loadavg", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
})

// cpuContended reports whether more threads are ready than there are processors (crowd), with this thread counted, and
// whether a processor is free for one more thread (room). If this is unknown, crowd is true and room false. This program may
// capture several targets at the same time on several processors. So its other threads, and the threads that they have just
// woken, are not counted.
func cpuContended() (crowd, room bool) {
	fd := loadFile()
	if fd < 0 {
		return true, false
	}
	var text [64]byte
	n, err := unix.Pread(fd, text[:], 0)
	if err != nil {
		return true, false
	}
	runnable, ok := parseRunnable(text[:n])
	if !ok {
		return true, false
	}
	return judge(runnable, runtime.NumCPU(), runtime.GOMAXPROCS(0))
}

// judge computes the results of cpuContended. runnable is the number of ready threads, processors the number of processors, and
// used the number of processors that this program uses.
func judge(runnable, processors, used int) (crowd, room bool) {
	own := 2 * min(used-1, processors-1, maxSideBySide)
	crowd = runnable-own > processors
	// One more thread may be this program's runtime monitor, which is about to sleep.
	return crowd, !crowd && (own == 0 || runnable < processors)
}

// parseRunnable reads the number before the slash of /proc/loadavg, proc(5).
func parseRunnable(text []byte) (n int, ok bool) {
	before, _, ok := bytes.Cut(text, []byte("/"))
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(string(before[bytes.LastIndexByte(before, ' ')+1:]))
	return n, err == nil
}

// relax undoes raisePriority. Only the flag SCHED_RESET_ON_FORK, which RaisePriority has set, stays, because an unprivileged
// thread cannot clear it.
//
//go:nosplit
//go:norace
func (s *session) relax() {
	if s.urgent {
		s.urgent = !thread.RestorePriority(s.policy)
	}
}

// currentProcessor returns the number of the processor on which this thread runs, or -1 if the kernel does not report it.
func currentProcessor() int {
	var cpu uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return -1
	}
	return int(cpu)
}

// MayHurry reports whether this process may use real-time priority while a target is stopped.
func MayHurry() bool {
	soft := unix.Rlimit{}
	if err := unix.Getrlimit(unix.RLIMIT_RTPRIO, &soft); err == nil && soft.Cur >= 1 {
		return true
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	err := unix.Capget(&header, &sets[0])
	return err == nil && sets[0].Effective&(1<<unix.CAP_SYS_NICE) != 0
}
