package debuginfod

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/host/rootfs"
)

const (
	// defaultMiss is how long a miss is remembered if the cache has no file cache_miss_s.
	defaultMiss = 10 * time.Minute
	missFile    = "cache_miss_s"
	maxMissFile = 64 // bytes
	// tempPrefix begins the names of files that this client is downloading.
	tempPrefix = ".pg_stat_backtrace-"
)

// cache is the folder of files: DIR/BUILDID/KIND. An empty file remembers a miss: at its modification time no server
// had the file. elfutils' client uses the same format. Other programs write to the folder too, so it may contain
// anything: the client uses only regular files, never waits for a read, and bounds the size.
type cache struct {
	dir   string
	limit int64 // in bytes; 0: no limit
	mu    sync.Mutex
}

// prepare makes the folder and checks that it is writable.
func (c *cache) prepare() error {
	if !filepath.IsAbs(c.dir) {
		return fmt.Errorf("%q is not an absolute path", c.dir)
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(c.dir, tempPrefix+"*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func (c *cache) path(kind Kind, id string) string { return filepath.Join(c.dir, id, string(kind)) }

// find returns the path of a cached file. For a remembered miss it returns the time until which the miss is valid.
// Otherwise it returns zero values.
func (c *cache) find(kind Kind, id string, now time.Time) (path string, missedUntil time.Time) {
	path = c.path(kind, id)
	info, err := os.Lstat(path)
	switch {
	case err != nil || !info.Mode().IsRegular():
		return "", time.Time{}
	case info.Size() > 0:
		// Eviction uses access times, which many file systems do not update.
		_ = touch(path, now, unix.Timespec{Nsec: unix.UTIME_OMIT})
		return path, time.Time{}
	}
	if until := info.ModTime().Add(c.missTime()); now.Before(until) {
		return "", until
	}
	return "", time.Time{}
}

// missTime returns how long a miss is remembered: the number of seconds in the file cache_miss_s.
func (c *cache) missTime() time.Duration {
	const longest = 365 * 24 * time.Hour
	data, err := rootfs.ReadFile(filepath.Join(c.dir, missFile), maxMissFile)
	if err != nil {
		return defaultMiss
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || n < 0 {
		return defaultMiss
	}
	return min(seconds(n), longest)
}

// miss remembers that no server has the file. An existing file that is not empty stays.
func (c *cache) miss(kind Kind, id string, now time.Time) error {
	path := c.path(kind, id)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		return f.Close()
	}
	if info, statErr := os.Lstat(path); statErr == nil && info.Mode().IsRegular() && info.Size() == 0 {
		return touch(path, now, unix.NsecToTimespec(now.UnixNano()))
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// touch sets the time of the last read and of the last change of a file. It does not follow a symbolic link.
func touch(path string, read time.Time, changed unix.Timespec) error {
	times := []unix.Timespec{unix.NsecToTimespec(read.UnixNano()), changed}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "chtimes", Path: path, Err: err}
	}
	return nil
}

// temp makes the file for a download. The file is in the final folder, so that deposit can rename it.
func (c *cache) temp(kind Kind, id string) (*os.File, error) {
	dir := filepath.Join(c.dir, id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return os.CreateTemp(dir, tempPrefix+string(kind)+"-*")
}

// deposit moves a verified file to its place, and then evicts other files if the cache is full.
func (c *cache) deposit(temp *os.File, kind Kind, id string, now time.Time) (string, error) {
	path := c.path(kind, id)
	if err := temp.Chmod(0o400); err != nil {
		return "", err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return "", err
	}
	c.evict(path, now)
	return path, nil
}

// discard removes a rejected file, and its folder if that is empty.
func (c *cache) discard(temp *os.File) {
	_ = os.Remove(temp.Name())
	_ = os.Remove(filepath.Dir(temp.Name()))
}
