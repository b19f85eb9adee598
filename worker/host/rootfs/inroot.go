// Package rootfs opens files below another process's root directory, /proc/PID/root, as that process would. A
// symbolic link there, absolute or with too many "..", leads to a place below that directory and never to a file
// outside. All other paths are opened unchanged. The package does not know the purpose of the files.
package rootfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// readFlags opens a file without blocking, whatever its type.
const readFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC

// Open opens a file for reading. It does not wait for the other end of a pipe.
func Open(path string) (*os.File, error) { return open(path, readFlags) }

// Stat describes the file that a path leads to.
func Stat(path string) (fs.FileInfo, error) {
	f, err := open(path, unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return f.Stat()
}

// ReadFile reads a regular file of at most limit bytes. The last element of the path must not be a symbolic link.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := open(path, readFlags|syscall.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%s: not a regular file of at most %d bytes", path, limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// Split splits a path that leads through the root directory of another process. It returns false for any other path.
func Split(path string) (root, inside string, ok bool) {
	rest, ok := strings.CutPrefix(path, "/proc/")
	if !ok {
		return "", "", false
	}
	pid, rest, ok := strings.Cut(rest, "/")
	if !ok || pid == "" || strings.Trim(pid, "0123456789") != "" {
		return "", "", false
	}
	folder := "/proc/" + pid
	if thread, found := strings.CutPrefix(rest, "task/"); found {
		tid, below, _ := strings.Cut(thread, "/")
		if tid == "" || strings.Trim(tid, "0123456789") != "" {
			return "", "", false
		}
		folder, rest = folder+"/task/"+tid, below
	}
	inside, ok = strings.CutPrefix(rest, "root/")
	return folder + "/root", inside, ok && inside != ""
}

// open opens a path with the flags of open(2). It creates no file.
func open(path string, flags int) (*os.File, error) {
	root, inside, ok := Split(path)
	if !ok {
		return os.OpenFile(path, flags, 0)
	}
	f, err := openBelow(root, inside, flags, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, errFiltered):
		return openOld(path, root, inside, flags)
	case err != nil:
		return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
	}
	return f, nil
}

// errFiltered means that the system call is refused, as by filters of old container engines for calls that they do
// not know.
var errFiltered = errors.New("openat2 is not permitted")

// openBelow opens a path below a directory, with the rules of openat2(2).
func openBelow(dir, inside string, flags int, resolve uint64) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
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
			return os.NewFile(uintptr(opened), dir+"/"+inside), nil
		case errors.Is(err, unix.EPERM):
			return nil, errFiltered
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return nil, err
		}
	}
	return nil, err
}

// openOld is for kernels before 5.6, which do not have openat2. It follows no symbolic links.
func openOld(path, root, inside string, flags int) (*os.File, error) {
	fail := func(err error) (*os.File, error) { return nil, &os.PathError{Op: "open", Path: path, Err: err} }
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
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
			return fail(err)
		}
		dir = next
	}
	f := os.NewFile(uintptr(dir), path)
	if info, err := f.Stat(); err != nil || info.Mode()&fs.ModeSymlink != 0 { // as O_PATH opens one
		_ = f.Close()
		return fail(errors.Join(err, unix.ELOOP))
	}
	return f, nil
}
