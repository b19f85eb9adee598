package ptrace

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's struct sigaction: the handler, the flags and further fields that depend on the
// architecture.
type sigaction struct {
	handler, flags uint64
	rest           [4]uint64
}

const (
	saNoCldStop = 1
	maskSize    = 8 // of sigset_t in the kernel
)

// setAction calls rt_sigaction(2), which stores the previous action in before. action and before may be nil.
func setAction(sig unix.Signal, action, before *sigaction) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(action)),
		uintptr(unsafe.Pointer(before)), maskSize, 0, 0); errno != 0 {
		return fmt.Errorf("rt_sigaction: %w", errno)
	}
	return nil
}

// muteStops makes the kernel send no SIGCHLD to this process when a tracee or child stops; SIGCHLD still comes when a child
// ends. Otherwise the Go runtime's handler would run on another thread. It could take the processor away from the capture
// or the target while the target is stopped. The handler itself stays. Each capture calls muteStops, because os/signal can
// set the handler again without the flag SA_NOCLDSTOP.
func muteStops() {
	var action sigaction
	if err := setAction(unix.SIGCHLD, nil, &action); err != nil || action.flags&saNoCldStop != 0 {
		return
	}
	action.flags |= saNoCldStop
	_ = setAction(unix.SIGCHLD, &action, nil)
}
