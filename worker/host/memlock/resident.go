// Package memlock keeps the program's own code in memory. A service that is asked once a month has lost its pages to
// others by then, and reads them again from the disk that the server may be hanging on.
package memlock

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/procfs"
)

// Allow lets the program lock what Lock wants to, whoever it becomes. It takes root (CAP_SYS_RESOURCE); without it the
// limit that there is stays (RLIMIT_MEMLOCK in getrlimit(2): 8 MB, where nobody has set another one).
func Allow() error {
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit})
}

// limit is for the program, and for one that will have grown.
const limit = 64 << 20

// Lock reads the program and locks it in memory: its instructions first, then its constants and tables, as far as the
// limit goes. It returns how many bytes it has locked; an error is why that is not all. Data is not locked: pages of a
// file are what a kernel without memory takes first.
func Lock() (int, error) {
	maps, err := procfs.Maps(os.Getpid())
	if err != nil {
		return 0, err
	}
	var self unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &self); err != nil {
		return 0, &os.PathError{Op: "stat", Path: "/proc/self/exe", Err: err}
	}
	maps = slices.DeleteFunc(maps, func(m procfs.Mapping) bool {
		return m.Inode != self.Ino || m.Perms&procfs.Write != 0
	})
	slices.SortStableFunc(maps, func(a, b procfs.Mapping) int {
		return int(b.Perms&procfs.Exec) - int(a.Perms&procfs.Exec)
	})
	locked, failed := 0, error(nil)
	for i := range maps {
		m := &maps[i]
		size := uintptr(m.End - m.Start)
		if _, _, e := unix.Syscall(unix.SYS_MLOCK, uintptr(m.Start), size, 0); e != 0 {
			failed = errors.Join(failed, os.NewSyscallError("mlock", e))
			continue
		}
		locked += int(size)
	}
	return locked, failed
}
