package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/host/rootfs"
)

// lockName is the file whose lock ensures that a cluster has only one worker. It is not the pid file, which is
// replaced by renaming.
const lockName = "pg_stat_backtrace.lock"

// lock takes the lock of a data directory. The error wraps ErrLocked if another worker has the lock. The kernel releases the
// lock when the process ends in any way.
func lock(data *rootfs.Dir) (*os.File, error) {
	path := data.Join(lockName)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if errors.Is(err, unix.EROFS) {
			return nil, fmt.Errorf("lock file: %w: %w", ErrReadOnly, err)
		}
		if err != nil {
			return nil, fmt.Errorf("lock file: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("%w: %s is locked%s", ErrLocked, filepath.Join(data.Name(), lockName),
					lockHolder(data.Path()))
			}
			return nil, fmt.Errorf("locking %s: %w", filepath.Join(data.Name(), lockName), err)
		}
		if isSameFile(f, path) {
			return f, nil
		}
		_ = f.Close() // the worker that had the lock has removed the file after this process opened it: try again
	}
}

// unlock removes the lock file, then releases the lock. A process that opened the file earlier locks it, finds it removed, and
// tries again.
func unlock(f *os.File) error {
	var err error
	if isSameFile(f, f.Name()) {
		err = os.Remove(f.Name())
	}
	return errors.Join(err, f.Close())
}

// isSameFile reports whether path leads to the open file.
func isSameFile(f *os.File, path string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Lstat(path)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

func lockHolder(dataDir string) string {
	info, err := Find(dataDir)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" by PID %d", info.PID)
}
