package host

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrUnsupported means that this kernel has no seccomp filters, or that this package does not know the architecture.
var ErrUnsupported = errors.New("no seccomp filters here")

// forbidden lists the calls that a worker never makes.
var forbidden = []uint32{
	unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL, // change, signal or inspect another process
	unix.SYS_TKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_PROCESS_MADVISE,
	unix.SYS_PROCESS_MRELEASE, unix.SYS_KCMP, unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES,
	unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_SET, unix.SYS_SETPGID,
	unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, // shared memory, semaphores and message queues
	unix.SYS_SEMGET, unix.SYS_SEMTIMEDOP, unix.SYS_SEMCTL,
	unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL,
	unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK, unix.SYS_MQ_NOTIFY,
	unix.SYS_EXECVE, unix.SYS_EXECVEAT, // start a program, or change executable memory
	unix.SYS_PERSONALITY, unix.SYS_PKEY_MPROTECT, unix.SYS_REMAP_FILE_PAGES,
	unix.SYS_SETNS, unix.SYS_UNSHARE, unix.SYS_CHROOT, unix.SYS_PIVOT_ROOT, // change the file system or the namespaces
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, openTreeAttr, unix.SYS_MOUNT_SETATTR,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_MKNODAT, unix.SYS_FANOTIFY_INIT,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_BPF, unix.SYS_USERFAULTFD, unix.SYS_REBOOT, unix.SYS_ADD_KEY, unix.SYS_KEYCTL, unix.SYS_REQUEST_KEY,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_SYSLOG,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_VHANGUP,
	unix.SYS_LOOKUP_DCOOKIE, unix.SYS_LSM_SET_SELF_ATTR,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, // would bypass the filter
	unix.SYS_SECCOMP, // another filter, whose supervisor would decide on calls
	unix.SYS_LISTEN,  // accept connections
}

// openTreeAttr is open_tree_attr(2), on every architecture.
const openTreeAttr = 467

// fenceRaised remembers that this process has the filter, which forbids to install another filter.
var fenceRaised struct {
	sync.Mutex

	done bool
}

// RaiseFence installs the filter, and sets no_new_privs (prctl(2)), which the filter needs. A second call changes nothing.
// The calls in allowed stay permitted although a worker usually does not need them.
func RaiseFence(allowed ...uint32) error {
	machine, ok := machines[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("%w: architecture %s", ErrUnsupported, runtime.GOARCH)
	}
	fenceRaised.Lock()
	defer fenceRaised.Unlock()
	if fenceRaised.done {
		return nil
	}
	// SECCOMP_FILTER_FLAG_TSYNC applies no_new_privs and the filter of this thread to all threads.
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
	fenceRaised.done = true
	return nil
}
