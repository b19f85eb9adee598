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

	"pg_stat_backtrace/worker/host/rootfs"
)

// Names in a spool directory. The file ready exists while the worker accepts requests. SQL checks this file before it writes
// to the file system, which may be full or gone. The worker writes answers in the directory work and then renames them, so
// that readers see only complete answers.
const (
	dirPrefix = "pg_stat_backtrace."
	readyName = "ready"
	workName  = "work"
	reqSuffix = ".req"
	repSuffix = ".rep"
)

// dir is a private directory. Files in it are accessed through its file descriptor. So a directory that another user puts in
// its place is never used.
type dir struct {
	name string // as the server sees it
	full string // as this process names it in messages; path may lead through a file descriptor
	path string // as this process reaches it
	f    *os.File
	base *rootfs.Dir // the directory that contains this one; nil: this process did not make it
}

func (d *dir) fd() int { return int(d.f.Fd()) }

// candidateBases returns the directories in which a spool directory may be made, as the server sees them, in order of
// preference.
func candidateBases(cfg Config) []string {
	switch {
	case cfg.Base != "":
		return []string{cfg.Base}
	case cfg.Root != "":
		return []string{"/dev/shm", "/tmp"}
	}
	return []string{"/dev/shm", os.TempDir()}
}

// makeDir makes a spool directory in the first suitable base.
func makeDir(cfg Config) (*dir, error) {
	names := candidateBases(cfg)
	errs := make([]error, 0, len(names))
	for i, name := range names {
		base, err := openBase(cfg, name, cfg.Base == "" && i == 0)
		if err == nil {
			var d *dir
			if d, err = makeDirIn(base, name); err == nil {
				return d, nil
			}
			err = errors.Join(err, base.Close())
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// openBase opens a directory for spool directories. It returns an error if the directory is not suitable; see checkBase.
func openBase(cfg Config, name string, wantTmpfs bool) (*rootfs.Dir, error) {
	odd := func(r rune) bool { return r <= ' ' || r > '~' || r == '\\' }
	if strings.IndexFunc(name, odd) >= 0 || !filepath.IsAbs(name) {
		return nil, fmt.Errorf("spool base %q is not an absolute path in plain ASCII", name)
	}
	base, err := rootfs.OpenDir(cfg.prefix(name) + name)
	if err != nil {
		return nil, fmt.Errorf("spool base: %w", err)
	}
	if err := checkBase(base.Path(), base.Name(), wantTmpfs); err != nil {
		return nil, errors.Join(err, base.Close())
	}
	return base, nil
}

// checkBase returns an error for a directory in which other users could replace the spool directory, for a directory without room,
// for a directory in which this process may not write and, if wantTmpfs is set, for a directory that is not in memory.
func checkBase(path, base string, wantTmpfs bool) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("spool base %s: %w", base, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("spool base %s is not a directory", base)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("spool base %s belongs to UID %d: %w", base, st.Uid, ErrUnsafe)
	case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0:
		return fmt.Errorf("spool base %s: other users may rename its entries: %w", base, ErrUnsafe)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return fmt.Errorf("spool base %s: %w", base, err)
	}
	switch {
	case wantTmpfs && fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC:
		return fmt.Errorf("spool base %s is not a tmpfs", base)
	case !hasRoom(&fs):
		return fmt.Errorf("spool base %s: %w", base, ErrFull)
	}
	// With ProtectSystem=strict of the systemd unit, /tmp is read-only for the worker.
	if err := unix.Access(path, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("spool base %s: %w", base, err)
	}
	return nil
}

// hasRoom reports whether the file system has room for requests and answers. A file system without a size limit (ramfs)
// has room.
func hasRoom(fs *unix.Statfs_t) bool {
	return fs.Blocks == 0 || fs.Bavail*uint64(fs.Bsize) >= reserve
}

// makeDirIn makes a spool directory in a base. If it succeeds, the result has the open base, and closes it at its end.
func makeDirIn(base *rootfs.Dir, name string) (*dir, error) {
	leaf := dirPrefix + strings.ToLower(rand.Text())
	path := base.Join(leaf)
	if err := os.Mkdir(path, 0o700); err != nil { // fails if the path exists, even as a symbolic link
		return nil, fmt.Errorf("spool directory in %s: %w", base.Name(), err)
	}
	d, err := openDir(path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	d.name, d.full = filepath.Join(name, leaf), filepath.Join(base.Name(), leaf)
	if err := d.fill(); err != nil {
		return nil, errors.Join(err, d.remove())
	}
	d.base = base
	return d, nil
}

// fill locks the directory, which marks it as in use, and makes the directory work in it.
func (d *dir) fill() error {
	if err := unix.Flock(d.fd(), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("locking spool directory %s: %w", d.name, err)
	}
	if err := unix.Fchmod(d.fd(), 0o700); err != nil { // independent of the umask
		return fmt.Errorf("spool directory %s: %w", d.name, err)
	}
	if err := unix.Mkdirat(d.fd(), workName, 0o700); err != nil {
		return fmt.Errorf("spool directory %s: %w", d.name, err)
	}
	return nil
}

// openDir opens a directory. The error wraps ErrUnsafe if the directory is not private to this user.
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
	return &dir{name: path, path: path, f: f}, nil
}

// touch renews the time of the file ready. Servers that cannot see this process know from it that the worker runs: see line 10
// of the pid file.
func (d *dir) touch() error {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	err := unix.UtimesNanoAt(d.fd(), readyName, now, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.ENOENT) { // the file is missing while requests are not accepted
		return fmt.Errorf("spool directory %s: %w", d.name, err)
	}
	return nil
}

// markReady makes (yes is true) or removes the file ready, which means that requests are accepted.
func (d *dir) markReady(yes bool) error {
	if !yes {
		return d.unlink(readyName)
	}
	fd, err := unix.Openat(d.fd(), readyName, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("spool directory %s: %w", d.name, err)
	}
	return unix.Close(fd)
}

// unlink removes a file of the directory. A missing file is not an error.
func (d *dir) unlink(name string) error {
	err := unix.Unlinkat(d.fd(), name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("removing %s: %w", name, err)
}

// check reports whether the file system is full. The error wraps ErrLost if the directory was removed or moved, or is not
// writable.
func (d *dir) check() (full bool, err error) {
	if !isSameFile(d.f, d.path) {
		return false, fmt.Errorf("%w: %s is gone", ErrLost, d.name)
	}
	if err := unix.Faccessat(d.fd(), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return false, fmt.Errorf("%w: %s: %w", ErrLost, d.name, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(d.fd(), &fs); err != nil {
		return false, fmt.Errorf("%w: %s: %w", ErrLost, d.name, err)
	}
	return !hasRoom(&fs), nil
}

// size returns the size of the file system in bytes; 0: the file system has no size limit, or the size is unknown.
func (d *dir) size() int64 {
	var fs unix.Statfs_t
	if unix.Fstatfs(d.fd(), &fs) != nil {
		return 0
	}
	return int64(fs.Blocks) * int64(fs.Bsize) //nolint:unconvert // Bsize is a uint32 on s390x
}

// remove removes the directory and its contents. It removes nothing if the directory's path now leads to another directory.
func (d *dir) remove() error {
	var err error
	if isSameFile(d.f, d.path) {
		err = os.RemoveAll(d.path)
		if errors.Is(err, os.ErrPermission) { // write permission was removed from the directory or its contents
			err = errors.Join(d.restoreModes(), os.RemoveAll(d.path))
		}
	}
	err = errors.Join(err, d.f.Close())
	if d.base != nil {
		err = errors.Join(err, d.base.Close())
	}
	return err
}

// restoreModes gives the spool directory and the directory work in it the modes again with which they were made.
func (d *dir) restoreModes() error {
	err := unix.Fchmod(d.fd(), 0o700)
	work, openErr := unix.Openat(d.fd(), workName, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if openErr == nil {
		err = errors.Join(err, unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", work), 0o700), unix.Close(work))
	}
	if err != nil {
		return fmt.Errorf("spool directory %s: %w", d.name, err)
	}
	return nil
}

// removeStale removes the spool directories of killed workers from the directory name. The parameter own is the spool
// directory of this cluster's last worker. Other spool directories belong to the workers of other clusters. A locked
// directory is in use and stays. name and own are paths as the server sees them, and root is the prefix with which this
// process reaches them.
func removeStale(name, root, own string) error {
	base, err := rootfs.OpenDir(root + name)
	if err != nil {
		return nil //nolint:nilerr // without the directory there is nothing to remove
	}
	paths, err := filepath.Glob(base.Join(dirPrefix + "*"))
	for _, path := range paths {
		err = errors.Join(err, removeUnused(path, filepath.Join(name, filepath.Base(path)) == own))
	}
	return errors.Join(err, base.Close())
}

// young is the age below which an unlocked directory of another worker may be new, and not locked yet.
const young = time.Minute

func removeUnused(path string, own bool) error {
	d, err := openDir(path)
	if err != nil {
		return nil //nolint:nilerr // the directory is gone, or belongs to another user
	}
	info, err := d.f.Stat()
	if err != nil || !own && time.Since(info.ModTime()) < young || unix.Flock(d.fd(), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return d.f.Close()
	}
	return d.remove()
}
