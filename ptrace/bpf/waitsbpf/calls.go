//go:build amd64 || arm64

package waitsbpf

import (
	"slices"

	"golang.org/x/sys/unix"
)

// A call is a system call in which a server waits.
type call struct {
	name   string
	number int
}

// waitCalls returns the system calls that are timed, and the number of read(2), which is timed for IO events only: in a
// latch's wait it empties a signalfd and does not wait. A timed futex or clock_nanosleep that a signal interrupted
// continues in restart_syscall.
func waitCalls() (calls []call, read int) {
	return slices.Concat([]call{
		{"read", unix.SYS_READ}, {"write", unix.SYS_WRITE}, {"ppoll", unix.SYS_PPOLL},
		{"pread64", unix.SYS_PREAD64}, {"pwrite64", unix.SYS_PWRITE64}, {"preadv", unix.SYS_PREADV},
		{"pwritev", unix.SYS_PWRITEV}, {"pwritev2", unix.SYS_PWRITEV2},
		{"epoll_pwait", unix.SYS_EPOLL_PWAIT}, {"epoll_pwait2", unix.SYS_EPOLL_PWAIT2}, {"pselect6", unix.SYS_PSELECT6},
		{"futex", unix.SYS_FUTEX}, {"fsync", unix.SYS_FSYNC}, {"fdatasync", unix.SYS_FDATASYNC},
		{"sync_file_range", unix.SYS_SYNC_FILE_RANGE}, {"msync", unix.SYS_MSYNC},
		{"ftruncate", unix.SYS_FTRUNCATE}, {"fallocate", unix.SYS_FALLOCATE}, {"copy_file_range", unix.SYS_COPY_FILE_RANGE},
		{"nanosleep", unix.SYS_NANOSLEEP}, {"clock_nanosleep", unix.SYS_CLOCK_NANOSLEEP},
		{"restart_syscall", unix.SYS_RESTART_SYSCALL}, {"wait4", unix.SYS_WAIT4},
		{"semtimedop", unix.SYS_SEMTIMEDOP}, {"semop", unix.SYS_SEMOP},
		{"io_uring_enter", unix.SYS_IO_URING_ENTER},
	}, olderCalls()), unix.SYS_READ
}
