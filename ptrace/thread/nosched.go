package thread

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// EnterSyscall declares to the Go scheduler that this thread is in a system call, until ExitSyscall.
//
//go:linkname EnterSyscall runtime.entersyscall
func EnterSyscall()

// ExitSyscall ends the system call. It may wait for one of the scheduler's processors.
//
//go:linkname ExitSyscall runtime.exitsyscall
func ExitSyscall()

// Constants of linux/sched.h and linux/sched/types.h.
const (
	schedFIFO        = 1
	schedRR          = 2
	schedDeadline    = 6
	schedResetOnFork = 0x40000000 // threads that the Go runtime starts meanwhile get ordinary priority
	urgentPriority   = 1
)

// schedParam is struct sched_param.
type schedParam struct{ priority int32 }

// OrdinaryPolicy returns the scheduling policy of this thread. ok is false if the thread has a real-time policy, or if
// the policy is unknown.
func OrdinaryPolicy() (policy uintptr, ok bool) {
	policy, _, errno := unix.RawSyscall(unix.SYS_SCHED_GETSCHEDULER, 0, 0, 0)
	policy &^= schedResetOnFork
	return policy, errno == 0 && policy != schedFIFO && policy != schedRR && policy != schedDeadline
}

// RaisePriority gives this thread the lowest real-time priority. It reports whether the kernel permits this.
//
//go:nosplit
//go:norace
func RaisePriority() bool { return setScheduler(schedFIFO, urgentPriority) }

// RestorePriority gives this thread an ordinary policy again, as OrdinaryPolicy returned it.
//
//go:nosplit
//go:norace
func RestorePriority(policy uintptr) bool { return setScheduler(policy, 0) }

//go:nosplit
//go:norace
func setScheduler(policy uintptr, priority int32) bool {
	param := schedParam{priority}
	_, _, errno := unix.RawSyscall(unix.SYS_SCHED_SETSCHEDULER, 0, policy|schedResetOnFork,
		uintptr(unsafe.Pointer(&param)))
	return errno == 0
}
