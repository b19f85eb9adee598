package ptrace

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

//go:linkname entersyscall runtime.entersyscall
func entersyscall()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

// Of linux/sched.h and linux/sched/types.h.
const (
	schedFIFO        = 1
	schedRR          = 2
	schedDeadline    = 6
	schedResetOnFork = 0x40000000 // threads that the runtime starts meanwhile have ordinary priority
	urgentPriority   = 1
)

// schedParam is struct sched_param.
type schedParam struct{ priority int32 }

// ordinaryPolicy returns the scheduling policy of this thread. It is false if the thread has a real-time policy, or if
// the policy is unknown.
func ordinaryPolicy() (policy uintptr, ok bool) {
	policy, _, errno := unix.RawSyscall(unix.SYS_SCHED_GETSCHEDULER, 0, 0, 0)
	policy &^= schedResetOnFork
	return policy, errno == 0 && policy != schedFIFO && policy != schedRR && policy != schedDeadline
}

// raiseThread gives this thread the lowest real-time priority. It reports whether the kernel permits this.
//
//go:nosplit
//go:norace
func raiseThread() bool { return setScheduler(schedFIFO, urgentPriority) }

// relaxThread gives this thread an ordinary policy again, as ordinaryPolicy returned it.
//
//go:nosplit
//go:norace
func relaxThread(policy uintptr) bool { return setScheduler(policy, 0) }

//go:nosplit
//go:norace
func setScheduler(policy uintptr, priority int32) bool {
	param := schedParam{priority}
	_, _, errno := unix.RawSyscall(unix.SYS_SCHED_SETSCHEDULER, 0, policy|schedResetOnFork,
		uintptr(unsafe.Pointer(&param)))
	return errno == 0
}
