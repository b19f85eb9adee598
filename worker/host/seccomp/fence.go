// Package seccomp permanently forbids this process the system calls with which an attacker could do harm. These
// change or end another process, run a program, enter a namespace, or load code into the kernel. The package allows
// the ptrace requests that a capture needs, none of which writes. It uses a seccomp filter (seccomp(2)) for all
// threads. A refused call fails with EPERM.
//
// Landlock is unsuitable for a tracer, because it forbids tracing processes outside its domain.
//
// The package does not know what the worker does.
package seccomp

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrUnsupported means that this kernel has no seccomp filters, or that this package does not know the architecture.
var ErrUnsupported = errors.New("no seccomp filters here")

// forbidden lists the calls that a worker never makes.
var forbidden = []uint32{
	unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL, // another process
	unix.SYS_TKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_PROCESS_MADVISE,
	unix.SYS_EXECVE, unix.SYS_EXECVEAT, // another program
	unix.SYS_SETNS, unix.SYS_UNSHARE, unix.SYS_CHROOT, unix.SYS_PIVOT_ROOT, // another view of the system
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_FSOPEN,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_BPF, unix.SYS_USERFAULTFD, unix.SYS_REBOOT, unix.SYS_ADD_KEY, unix.SYS_KEYCTL,
	unix.SYS_IO_URING_SETUP, // would bypass the filter
	unix.SYS_LISTEN,         // a server on the network
}

// Raise installs the filter, and sets no_new_privs (prctl(2)), which the filter needs. A second call changes nothing.
// The calls in allowed stay permitted although a worker usually does not need them.
func Raise(allowed ...uint32) error {
	machine, ok := machines[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("%w: architecture %s", ErrUnsupported, runtime.GOARCH)
	}
	// The kernel applies both to all threads, with the state of this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	filter := machine.filter(unix.Getpid(), allowed)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// SPEC_ALLOW: without it, older kernels disable speculation for the process, which makes it slow.
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags,
		uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	switch {
	case errno == unix.ENOSYS || errno == unix.EINVAL:
		return fmt.Errorf("%w: %w", ErrUnsupported, errno)
	case errno != 0:
		return fmt.Errorf("setting a seccomp filter: %w", errno)
	case thread != 0:
		return fmt.Errorf("setting a seccomp filter: thread %d cannot take it", thread)
	}
	return nil
}
