package spool

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Names in a spool directory. ready is there while requests are welcome: SQL
// looks for it instead of running into a full or vanished file system. work
// is where answers are written, so that only complete ones show.
const (
	dirPrefix = "pg_stat_backtrace."
	readyName = "ready"
	workName  = "work"
	reqSuffix = ".req"
	repSuffix = ".rep"
)

// dir is a private directory; all access goes through its descriptor, so that
// a directory put in its place is never used.
type dir struct {
	path string
	f    *os.File
}

func (d *dir) fd() int { return int(d.f.Fd()) }

// bases returns where a spool directory may be made, best first.
func bases(cfg Config) []string {
	switch {
	case cfg.Base != "":
		return []string{cfg.Root + cfg.Base}
	case cfg.Root != "":
		return []string{cfg.Root + "/dev/shm", cfg.Root + "/tmp"}
	}
	return []string{"/dev/shm", os.TempDir()}
}

// makeDir makes a spool directory in the first base that will do.
func makeDir(cfg Config) (*dir, error) {
	candidates := bases(cfg)
	errs := make([]error, 0, len(candidates))
	for i, base := range candidates {
		err := checkBase(base, cfg.Base == "" && i == 0)
		if err == nil {
			var d *dir
			if d, err = makeDirIn(base); err == nil {
				return d, nil
			}
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// checkBase refuses a place where others could replace the directory, and one without room.
func checkBase(base string, wantTmpfs bool) error {
	odd := func(r rune) bool { return r <= ' ' || r > '~' || r == '\\' }
	if strings.IndexFunc(base, odd) >= 0 || !filepath.IsAbs(base) {
		return fmt.Errorf("spool base %q is no absolute path in plain ASCII", base)
	}
	var st unix.Stat_t
	if err := unix.Stat(base, &st); err != nil {
		return fmt.Errorf("spool base %s: %w", base, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("spool base %s is no directory", base)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("spool base %s belongs to UID %d: %w", base, st.Uid, ErrUnsafe)
	case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0:
		return fmt.Errorf("spool base %s: others may rename what is in it: %w", base, ErrUnsafe)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(base, &fs); err != nil {
		return fmt.Errorf("spool base %s: %w", base, err)
	}
	switch {
	case wantTmpfs && fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC:
		return fmt.Errorf("spool base %s is no tmpfs", base)
	case !room(&fs):
		return fmt.Errorf("spool base %s: %w", base, ErrFull)
	}
	return nil
}

// room says whether requests and answers fit. A file system without a size (ramfs) has room.
func room(fs *unix.Statfs_t) bool {
	return fs.Blocks == 0 || fs.Bavail*uint64(fs.Bsize) >= reserve
}

func makeDirIn(base string) (*dir, error) {
	path := filepath.Join(base, dirPrefix+strings.ToLower(rand.Text()))
	if err := os.Mkdir(path, 0o700); err != nil { // fails when there is something, a symbolic link too
		return nil, fmt.Errorf("spool directory: %w", err)
	}
	d, err := openDir(path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	if err := d.fill(); err != nil {
		return nil, errors.Join(err, d.remove())
	}
	return d, nil
}

// fill locks the directory, by which others see that it is in use, and makes its fixed contents.
func (d *dir) fill() error {
	if err := unix.Flock(d.fd(), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("locking spool directory %s: %w", d.path, err)
	}
	if err := unix.Fchmod(d.fd(), 0o700); err != nil { // whatever the umask
		return fmt.Errorf("spool directory %s: %w", d.path, err)
	}
	if err := unix.Mkdirat(d.fd(), workName, 0o700); err != nil {
		return fmt.Errorf("spool directory %s: %w", d.path, err)
	}
	return nil
}

// openDir opens a directory and refuses one that is not this user's alone.
func openDir(path string) (*dir, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("spool directory: %w", err)
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	if err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0) {
		err = fmt.Errorf("owner UID %d, mode %04o: %w", st.Uid, st.Mode&0o7777, ErrUnsafe)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("spool directory %s: %w", path, err), f.Close())
	}
	return &dir{path: path, f: f}, nil
}

// touch shows those who cannot see this process that it still runs: see line 10 of the pid file.
func (d *dir) touch() error {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	err := unix.UtimesNanoAt(d.fd(), readyName, now, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.ENOENT) { // no requests are welcome now
		return fmt.Errorf("spool directory %s: %w", d.path, err)
	}
	return nil
}

// welcome makes or removes the file that says that requests are welcome.
func (d *dir) welcome(yes bool) error {
	if !yes {
		return d.unlink(readyName)
	}
	fd, err := unix.Openat(d.fd(), readyName, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("spool directory %s: %w", d.path, err)
	}
	return unix.Close(fd)
}

// unlink removes a file of the directory; that there is none is no error.
func (d *dir) unlink(name string) error {
	err := unix.Unlinkat(d.fd(), name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("removing %s: %w", name, err)
}

// check says whether the directory is still where it was and can be written,
// and whether there is room.
func (d *dir) check() (full bool, err error) {
	if !still(d.f, d.path) {
		return false, fmt.Errorf("%w: %s is gone", ErrLost, d.path)
	}
	if err := unix.Faccessat(d.fd(), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return false, fmt.Errorf("%w: %s: %w", ErrLost, d.path, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(d.fd(), &fs); err != nil {
		return false, fmt.Errorf("%w: %s: %w", ErrLost, d.path, err)
	}
	return !room(&fs), nil
}

// remove removes the directory and what is in it, unless another has its name now.
func (d *dir) remove() error {
	var err error
	if still(d.f, d.path) {
		err = os.RemoveAll(d.path)
	}
	return errors.Join(err, d.f.Close())
}

// removeStale removes the spool directory of this cluster's last worker if it
// did not end in order, and those of other clusters' workers that did not and
// were never followed by another. A directory whose lock is held is in use.
func removeStale(base, own string) error {
	paths, err := filepath.Glob(filepath.Join(base, dirPrefix+"*"))
	for _, path := range paths {
		err = errors.Join(err, removeUnused(path, path == own))
	}
	return err
}

// young is the age at which a directory without a lock may be about to get it.
const young = time.Minute

func removeUnused(path string, own bool) error {
	d, err := openDir(path)
	if err != nil {
		return nil //nolint:nilerr // gone, or another user's
	}
	info, err := d.f.Stat()
	if err != nil || !own && time.Since(info.ModTime()) < young || unix.Flock(d.fd(), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return d.f.Close()
	}
	return d.remove()
}
