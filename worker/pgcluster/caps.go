package pgcluster

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Capabilities belong to threads, and a Go program has many. The calls below that change them therefore go through
// syscall.AllThreadsSyscall, which stops the program and repeats a system call on every thread. It does so only in
// binaries without cgo.

const maxCapability = 63 // of the two words that capget(2) and capset(2) exchange

// useful is what a worker can make use of: CAP_SYS_PTRACE, and, where the kernel lets nobody else sample a process of
// his own (perf_event_paranoid above 2), CAP_PERFMON. A level that cannot be read counts as a high one.
func useful(perfEventParanoid string) uint64 {
	var set uint64 = 1 << unix.CAP_SYS_PTRACE
	const everybody = 2
	if level, err := strconv.Atoi(strings.TrimSpace(perfEventParanoid)); err != nil || level > everybody {
		set |= 1 << unix.CAP_PERFMON
	}
	return set
}

// NoNewPrivileges makes sure that nothing which this process executes gains rights (prctl(2), PR_SET_NO_NEW_PRIVS). It
// holds for every thread, and for good. ErrNotStatic in a binary linked with cgo.
func NoNewPrivileges() error {
	if err := prctlAll(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	return nil
}

// allowUrgency makes the lowest real-time priority available to whoever this process becomes, if it may: for that the
// resource limit is enough, and no capability has to be kept.
func allowUrgency() {
	const lowest = 1
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_RTPRIO, &limit); err != nil || limit.Cur >= lowest {
		return
	}
	limit.Cur, limit.Max = lowest, max(limit.Max, lowest)
	_ = unix.Setrlimit(unix.RLIMIT_RTPRIO, &limit) // it works without
}

type capabilitySets [2]unix.CapUserData // low and high word

func permitted() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets capabilitySets
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return 0, fmt.Errorf("reading capabilities: %w", err)
	}
	return uint64(sets[1].Permitted)<<32 | uint64(sets[0].Permitted), nil
}

// setCapabilities makes keep the permitted and the effective set of every thread, and empties the inheritable set (and
// with it the ambient one).
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

// dropBounding empties the bounding set, so that no program executed later gains a capability. A container's root may
// lack the right to do so; no_new_privs then does the same alone.
func dropBounding() error {
	for capability := uintptr(0); capability <= maxCapability; capability++ {
		err := prctlAll(unix.PR_CAPBSET_DROP, capability)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
			return nil // beyond the kernel's last one, or not allowed
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

// static turns the error of AllThreadsSyscall into an error; ENOTSUP is its answer in binaries with cgo.
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
