// Package rootfs opens files that the user of another process may have chosen: files below the process's root or
// working directory, files of a data directory, and files that such a file names. Below another process's root
// directory, a symbolic link (absolute, or with too many "..") leads to a place below this directory and never to a
// file outside.
//
// A file is first opened with O_PATH, which has no effect on it. Only a regular file is then opened for reading, through
// that descriptor. So a device or a pipe is never opened, and no other file can be put in the file's place meanwhile.
// Files that the kernel makes, as in /proc and /sys, are refused like devices. If this process is root, it walks the
// whole path with the ids of the user of the other process. A path that an administrator names is opened with the
// rights of this process.
//
// RootOnlyPath finds files that only root can change or replace. A process that is root reads a file for another user
// only if this function accepts it: otherwise that user could put a link to any file of root in the file's place.
//
// Other packages of the worker open files that another user may have chosen only through this package (TestNoOtherWay).
// The package does not know the purpose of the files.
package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// readFlags are the flags for opening a regular file. The open does not wait if another process has a lease on the file.
const readFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC

// ErrNotRegular means that a path leads to a directory, a device, a pipe or a socket. It was not opened.
var ErrNotRegular = errors.New("not a regular file")

// Split splits a path that leads through the root directory of another process (/proc/PID/root/...) at this directory.
// It returns false for any other path.
func Split(path string) (root, inside string, ok bool) {
	folder, rest, ok := cutFolder(path)
	if !ok {
		return "", "", false
	}
	inside, ok = strings.CutPrefix(rest, "root/")
	return folder + "/root", inside, ok && inside != ""
}

// cutFolder splits a path into a process's or a thread's folder in /proc and the rest. It returns false for any other
// path.
func cutFolder(path string) (folder, rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, "/proc/")
	if !ok {
		return "", "", false
	}
	pid, rest, ok := strings.Cut(rest, "/")
	if !ok || !isNumber(pid) {
		return "", "", false
	}
	folder = "/proc/" + pid
	if thread, found := strings.CutPrefix(rest, "task/"); found {
		tid, below, _ := strings.Cut(thread, "/")
		if !isNumber(tid) {
			return "", "", false
		}
		folder, rest = folder+"/task/"+tid, below
	}
	return folder, rest, true
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// place is a path that is walked with the rights of a user.
type place struct {
	path string
	user User
	// base is the descriptor of the directory at which the walk begins, and inside is the rest of the path.
	base   int
	inside string
	// root is set if base is the folder of a process in /proc, and inside is below its root directory.
	root bool
}

// at returns the place of a path. The caller closes the place. The path is walked with the ids of u. If u has no ids, a path
// that leads through a process's root or working directory is walked with the ids of that process. The folder of the
// process in /proc stays open until the file is open, because another process may get the process id.
func (u User) at(path string) (place, error) {
	folder, rest, ok := cutFolder(path)
	root := strings.HasPrefix(rest, "root/") && rest != "root/"
	if !ok || !root && rest != "cwd" && !strings.HasPrefix(rest, "cwd/") {
		return place{path: path, user: u, base: unix.AT_FDCWD, inside: path}, nil
	}
	fd, err := unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return place{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if !u.set { // otherwise the user u may have chosen the path, and the process may have more rights
		if u, err = ofFolder(fd); err != nil {
			_ = unix.Close(fd)
			return place{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return place{path: path, user: u, base: fd, inside: strings.TrimPrefix(rest, "root/"), root: root}, nil
}

func (p *place) close() {
	if p.base >= 0 {
		_ = unix.Close(p.base)
	}
}

// open opens the place, with the rights of the calling thread. It creates no file.
func (p *place) open(flags int) (*os.File, error) {
	f, err := p.openAt(flags)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p.path, Err: err}
	}
	return f, nil
}

func (p *place) openAt(flags int) (*os.File, error) {
	if !p.root {
		fd, err := retry(func() (int, error) { return unix.Openat(p.base, p.inside, flags|unix.O_CLOEXEC, 0) })
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), p.path), nil
	}
	f, err := openBelow(p.base, "root", p.inside, flags, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, errFiltered) {
		return openOld(p.base, "root", p.inside, flags)
	}
	return f, err
}

// find opens a path with O_PATH, which needs no right to read the file and has no effect on the file. The result as is
// the user whose ids find used for the walk.
func (u User) find(path string, flags int) (f *os.File, as User, err error) {
	p, err := u.at(path)
	if err != nil {
		return nil, User{}, err
	}
	defer p.close()
	open := func() (err error) {
		f, err = p.open(flags | unix.O_PATH)
		return err
	}
	if err = p.user.Do(open); errors.Is(err, errIDs) {
		err = open()
	}
	return f, p.user, err
}

// regular opens a place for reading. It returns an error if the place is not a regular file. If the callback accept is
// not nil, regular also returns the error of this callback.
func (p *place) regular(flags int, accept func(*unix.Stat_t) error) (f *os.File, err error) {
	open := func() (err error) {
		f, err = p.readable(flags, accept)
		return err
	}
	if err = p.user.Do(open); !errors.Is(err, errIDs) {
		return f, err
	}
	return p.readable(flags, p.user.mayRead(accept))
}

// mayRead returns a callback that checks the permission bits of a file. It returns an error unless the user may read
// the file as its owner or as any user. Then it calls accept, if accept is not nil. It is for a root process without
// the capabilities to take on the user's ids.
func (u User) mayRead(accept func(*unix.Stat_t) error) func(*unix.Stat_t) error {
	return func(st *unix.Stat_t) error {
		if st.Mode&unix.S_IROTH == 0 && (int(st.Uid) != u.uid || st.Mode&unix.S_IRUSR == 0) {
			return unix.EACCES
		}
		if accept != nil {
			return accept(st)
		}
		return nil
	}
}

// readable does the work of the method regular with the rights of the calling thread.
func (p *place) readable(flags int, accept func(*unix.Stat_t) error) (*os.File, error) {
	found, err := p.open(flags | unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer func() { _ = found.Close() }()
	fail := func(err error) error { return &os.PathError{Op: "open", Path: p.path, Err: err} }
	var st unix.Stat_t
	if err := unix.Fstat(int(found.Fd()), &st); err != nil {
		return nil, fail(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fail(fmt.Errorf("%s, %w", kind(st.Mode), ErrNotRegular))
	}
	if p.base != unix.AT_FDCWD || p.user.isOther() {
		if err := notOfKernel(found); err != nil {
			return nil, fail(err)
		}
	}
	if accept != nil {
		if err := accept(&st); err != nil {
			return nil, fail(err)
		}
	}
	fd, err := retry(func() (int, error) { return unix.Open(descriptorPath(found), readFlags, 0) })
	if err != nil {
		return nil, fail(err)
	}
	return os.NewFile(uintptr(fd), p.path), nil
}

// notOfKernel returns an error for a file whose content the kernel makes, as in /proc. Some of these files show more to
// a process with CAP_SYS_PTRACE or CAP_SYSLOG, which root keeps after it has taken on another user's ids. And reading some
// of them has an effect.
func notOfKernel(f *os.File) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return err
	}
	switch uint32(st.Type) { // on some architectures Type has 64 bits, but the constants have 32
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC,
		unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.BPF_FS_MAGIC, unix.PSTOREFS_MAGIC, unix.EFIVARFS_MAGIC,
		unix.SELINUX_MAGIC, unix.SMACK_MAGIC, unix.NSFS_MAGIC, unix.BINFMTFS_MAGIC, unix.RDTGROUP_SUPER_MAGIC:
		return fmt.Errorf("a file of the kernel, %w", ErrNotRegular)
	}
	return nil
}

// descriptorPath returns a path that leads to an open file.
func descriptorPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// kind names the type of a file.
func kind(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "a device"
	case unix.S_IFIFO:
		return "a pipe"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFLNK:
		return "a symbolic link"
	}
	return "a file of an unknown type"
}

// retry repeats a call that a signal interrupted.
func retry(open func() (int, error)) (int, error) {
	for {
		fd, err := open()
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// errFiltered means that openat2 is refused. Filters of old container engines refuse all calls that they do not know.
var errFiltered = errors.New("openat2 is not permitted")

// openBelow opens the path inside below the directory dir, which is relative to base. resolve has the RESOLVE flags of
// openat2(2).
func openBelow(base int, dir, inside string, flags int, resolve uint64) (*os.File, error) {
	fd, err := unix.Openat(base, dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve}
	// The kernel returns EAGAIN if a file was renamed meanwhile.
	const attempts = 16
	for range attempts {
		var opened int
		opened, err = unix.Openat2(fd, inside, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(opened), filepath.Join(dir, inside)), nil
		case errors.Is(err, unix.EPERM):
			return nil, errFiltered
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return nil, err
		}
	}
	return nil, err
}

// openOld is openBelow for kernels before 5.6, which do not have openat2. It follows no symbolic links.
func openOld(base int, root, inside string, flags int) (*os.File, error) {
	dir, err := unix.Openat(base, root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	names := strings.FieldsFunc(inside, func(r rune) bool { return r == '/' })
	for i, name := range names {
		how := flags | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if i < len(names)-1 {
			how = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		}
		next := -1
		if err = unix.EXDEV; name != ".." {
			next, err = unix.Openat(dir, name, how, 0)
		}
		_ = unix.Close(dir)
		if err != nil {
			return nil, err
		}
		dir = next
	}
	f := os.NewFile(uintptr(dir), inside)
	if info, err := f.Stat(); err != nil || info.Mode()&fs.ModeSymlink != 0 { // O_PATH opens the link itself
		_ = f.Close()
		return nil, errors.Join(err, unix.ELOOP)
	}
	return f, nil
}
