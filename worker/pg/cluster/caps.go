package cluster

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Capabilities belong to threads, and a Go program has many threads. So the calls below use syscall.AllThreadsSyscall,
// which stops the program and repeats a system call on every thread. AllThreadsSyscall works only in binaries without
// cgo.

const maxCapability = 63 // the last bit of the two 32-bit words that capget(2) and capset(2) exchange

// useful returns the set of capabilities that a worker can use: CAP_SYS_PTRACE, and CAP_PERFMON if the level in
// perfEventParanoid (the content of /proc/sys/kernel/perf_event_paranoid) is above 2 or unreadable. Above 2,
// unprivileged users cannot sample even their own processes.
func useful(perfEventParanoid string) uint64 {
	var set uint64 = 1 << unix.CAP_SYS_PTRACE
	const everybody = 2
	if level, err := strconv.Atoi(strings.TrimSpace(perfEventParanoid)); err != nil || level > everybody {
		set |= 1 << unix.CAP_PERFMON
	}
	return set
}

// NoNewPrivileges ensures that the programs which this process executes gain no privileges (prctl(2),
// PR_SET_NO_NEW_PRIVS). This is permanent, for all threads. It returns ErrNotStatic in a binary linked with cgo.
func NoNewPrivileges() error {
	if err := prctlAll(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	return nil
}

// allowUrgency raises the limit for real-time priorities (RLIMIT_RTPRIO) to the lowest priority, if the kernel permits
// it. The limit survives the change of user, so the process need not keep a capability for it.
func allowUrgency() {
	const lowest = 1
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_RTPRIO, &limit); err != nil || limit.Cur >= lowest {
		return
	}
	limit.Cur, limit.Max = lowest, max(limit.Max, lowest)
	_ = unix.Setrlimit(unix.RLIMIT_RTPRIO, &limit) // an error is ignored: the priority is optional
}

type capabilitySets [2]unix.CapUserData // the low and the high 32 bits of each set

func permitted() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets capabilitySets
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return 0, fmt.Errorf("reading capabilities: %w", err)
	}
	return uint64(sets[1].Permitted)<<32 | uint64(sets[0].Permitted), nil
}

// setCapabilities sets the permitted and the effective set of every thread to the capabilities in the parameter keep.
// It empties the inheritable set, and with it the ambient set.
func setCapabilities(keep uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets capabilitySets
	for i := range sets {
		word := uint32(keep >> (32 * i))
		sets[i] = unix.CapUserData{Effective: word, Permitted: word}
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0)
	if err := static(errno); err != nil {
		return fmt.Errorf("reducing capabilities to %#x: %w", keep, err)
	}
	return nil
}

// dropBounding empties the bounding set, so that no program executed later gains a capability. Root in a container may
// lack the right to empty it: dropBounding then returns nil, because no_new_privs has the same effect.
func dropBounding() error {
	for capability := uintptr(0); capability <= maxCapability; capability++ {
		err := prctlAll(unix.PR_CAPBSET_DROP, capability)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
			return nil // after the kernel's last capability, or not permitted
		}
		if err != nil {
			return fmt.Errorf("dropping capability %d from the bounding set: %w", capability, err)
		}
	}
	return nil
}

func prctlAll(option, value uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, option, value, 0, 0, 0, 0)
	return static(errno)
}

// static converts the result of AllThreadsSyscall to an error. In binaries with cgo, AllThreadsSyscall returns ENOTSUP, which
// static converts to ErrNotStatic.
func static(errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return ErrNotStatic
	default:
		return errno
	}
}
