//go:build amd64 || arm64

package waits

import (
	"slices"

	"golang.org/x/sys/unix"
)

// epollWait is the kernel function that does the work of three system calls.
const epollWait = "do_epoll_wait"

// sendCall is the system call by which a server answers its client. The BPF programs do not time it: its entry is for them
// the end of a statement.
func sendCall() call { return call{name: "sendto", number: unix.SYS_SENDTO, rare: true} }

// waitCalls returns the system calls that are timed, and the number of the system call read(2). read(2) is timed for IO
// events only, because a server that waits for a latch only empties a signalfd with it. restart_syscall is timed because a
// futex or clock_nanosleep call that a signal interrupted continues in it.
func waitCalls() (calls []call, read int) {
	return slices.Concat([]call{
		{name: "read", number: unix.SYS_READ}, {name: "write", number: unix.SYS_WRITE},
		{name: "ppoll", number: unix.SYS_PPOLL}, {name: "pread64", number: unix.SYS_PREAD64},
		{name: "pwrite64", number: unix.SYS_PWRITE64}, {name: "preadv", number: unix.SYS_PREADV},
		{name: "pwritev", number: unix.SYS_PWRITEV}, {name: "pwritev2", number: unix.SYS_PWRITEV2},
		{name: "epoll_pwait", number: unix.SYS_EPOLL_PWAIT, inner: epollWait},
		{name: "epoll_pwait2", number: unix.SYS_EPOLL_PWAIT2, inner: epollWait, rare: true},
		{name: "pselect6", number: unix.SYS_PSELECT6}, {name: "futex", number: unix.SYS_FUTEX, inner: "do_futex"},
		{name: "fsync", number: unix.SYS_FSYNC}, {name: "fdatasync", number: unix.SYS_FDATASYNC},
		{name: "sync_file_range", number: unix.SYS_SYNC_FILE_RANGE}, {name: "msync", number: unix.SYS_MSYNC, rare: true},
		{name: "ftruncate", number: unix.SYS_FTRUNCATE}, {name: "fallocate", number: unix.SYS_FALLOCATE},
		{name: "copy_file_range", number: unix.SYS_COPY_FILE_RANGE, inner: "vfs_copy_file_range", rare: true},
		{name: "nanosleep", number: unix.SYS_NANOSLEEP}, {name: "clock_nanosleep", number: unix.SYS_CLOCK_NANOSLEEP},
		{name: "restart_syscall", number: unix.SYS_RESTART_SYSCALL, rare: true}, {name: "wait4", number: unix.SYS_WAIT4},
		{name: "semtimedop", number: unix.SYS_SEMTIMEDOP, inner: "do_semtimedop", rare: true},
		{name: "semop", number: unix.SYS_SEMOP, inner: "do_semtimedop", rare: true},
		{name: uringEnter, number: unix.SYS_IO_URING_ENTER},
	}, olderCalls()), unix.SYS_READ
}
