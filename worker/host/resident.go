package host

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// AllowLock raises the limit of the memory that LockMemory may lock (RLIMIT_MEMLOCK in getrlimit(2)). The new limit
// stays when the process changes its user. AllowLock never lowers a limit: maps of BPF programs count too before Linux
// 5.11. To raise the hard limit it needs root (CAP_SYS_RESOURCE). Without this capability it returns an error and the
// existing limit stays, 8 MB by default.
func AllowLock() error { return allowLock(lockLimit) }

func allowLock(bytes uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &now); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: max(now.Cur, bytes), Max: max(now.Max, bytes)})
}

// lockLimit is a limit in bytes that is enough for this program, and for larger versions of it.
const lockLimit = 64 << 20

// LockMemory reads the program into memory and locks it: its instructions first, then its constants and tables, up to the
// limit. It returns the number of bytes that it has locked, and an error if it could not lock everything. It does not
// lock writable data: a kernel that is short of memory first drops pages that it can read again from files.
func LockMemory() (int, error) {
	maps, err := process.Maps(os.Getpid())
	if err != nil {
		return 0, err
	}
	var self unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &self); err != nil {
		return 0, &os.PathError{Op: "stat", Path: "/proc/self/exe", Err: err}
	}
	maps = slices.DeleteFunc(maps, func(m process.Mapping) bool {
		return m.Inode != self.Ino || m.Perms&process.Write != 0
	})
	slices.SortStableFunc(maps, func(a, b process.Mapping) int {
		return int(b.Perms&process.Exec) - int(a.Perms&process.Exec)
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
