package rootfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// errReplaced means that a path does not lead to the file that this user has made.
var errReplaced = errors.New("another user has replaced it")

// SetMode sets the mode of a file that this user has just made, whose mode the umask may have changed. fileType is the file's
// type, such as unix.S_IFDIR. It does not follow a symbolic link. Another user with write permission for the directory
// may have put a link in the file's place, and chmod(2) would change the file to which the link leads.
func SetMode(path string, fileType, mode uint32) error {
	fail := func(err error) error { return &os.PathError{Op: "chmod", Path: path, Err: err} }
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Mode&unix.S_IFMT != fileType || int(st.Uid) != os.Geteuid()) {
		err = errReplaced
	}
	if err == nil {
		err = unix.Chmod(descriptorPath(f), mode) // fchmod(2) refuses a descriptor with O_PATH
	}
	if err != nil {
		return fail(err)
	}
	return nil
}
