package capture

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// open opens the candidate's file for reading. A path below another process's root directory, /proc/PID/root, is
// followed as that process would follow it: a symbolic link there, absolute or with too many "..", leads to a place
// below that directory, never to a file of this process's.
func (c candidate) open() (*os.File, error) {
	root, inside, ok := c.split()
	if !ok {
		return os.OpenFile(string(c), openFlags, 0)
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer func() { _ = unix.Close(dir) }()
	how := unix.OpenHow{
		Flags:   uint64(openFlags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	// The kernel gives up with EAGAIN when something is renamed meanwhile.
	const attempts = 16
	for range attempts {
		fd, err := unix.Openat2(dir, inside, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), string(c)), nil
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // the latter from old filters of containers
			return c.openOld()
		}
		return nil, &os.PathError{Op: "openat2", Path: string(c), Err: err}
	}
	return nil, &os.PathError{Op: "openat2", Path: string(c), Err: unix.EAGAIN}
}

const openFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY

// split takes a path apart that leads through /proc/PID/root.
func (c candidate) split() (root, inside string, ok bool) {
	rest, ok := strings.CutPrefix(string(c), "/proc/")
	if !ok {
		return "", "", false
	}
	pid, rest, ok := strings.Cut(rest, "/")
	if !ok || pid == "" || strings.Trim(pid, "0123456789") != "" {
		return "", "", false
	}
	inside, ok = strings.CutPrefix(rest, "root/")
	return "/proc/" + pid + "/root", inside, ok && inside != ""
}

// openOld is for kernels before 5.6, which have no such call: what leaves the root directory is refused once it is
// open.
func (c candidate) openOld() (*os.File, error) {
	root, _, _ := c.split()
	f, err := os.OpenFile(string(c), openFlags, 0)
	if err != nil {
		return nil, err
	}
	where, err1 := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	base, err2 := os.Readlink(root)
	if errors.Join(err1, err2) == nil && (base == "/" || strings.HasPrefix(where, base+"/")) {
		return f, nil
	}
	_ = f.Close()
	return nil, &os.PathError{Op: "open", Path: string(c), Err: unix.EXDEV}
}
