package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrShared means that another user than root can change a file or replace it.
var ErrShared = errors.New("another user than root can change it")

// maxLinks bounds the symbolic links in a path. The kernel has the same limit.
const maxLinks = 40

// RootOnlyPath returns the path of a file without symbolic links. It returns an error if another user than root can change
// the file or replace it. Each directory on the way, and each symbolic link, must belong to root. Other users may write
// to a directory only if it is sticky, such as /tmp. The error wraps ErrShared, or is the error of a system call.
func RootOnlyPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for range maxLinks {
		next, err := follow(path)
		switch {
		case err != nil:
			return "", err
		case next == "":
			return path, nil
		}
		path = next
	}
	return "", &os.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
}

// follow checks the elements of an absolute path up to its first symbolic link. It returns the path with this link
// replaced by its target, or "" if the path has no link.
func follow(path string) (next string, err error) {
	const others = 0o022
	names := strings.Split(path, "/")[1:]
	element := "/"
	for i := -1; i < len(names); i++ {
		if i >= 0 {
			element = filepath.Join(element, names[i])
		}
		info, err := os.Lstat(element)
		if err != nil {
			return "", err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		switch mode := info.Mode(); {
		case !ok || stat.Uid != 0:
			return "", fmt.Errorf("%s: %w", element, ErrShared)
		case mode&os.ModeSymlink != 0:
			target, err := os.Readlink(element)
			if err != nil {
				return "", err
			}
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(element), target)
			}
			return filepath.Join(append([]string{target}, names[i+1:]...)...), nil
		case mode.Perm()&others != 0 && (!mode.IsDir() || mode&os.ModeSticky == 0):
			return "", fmt.Errorf("%s: %w", element, ErrShared)
		}
	}
	return "", nil
}
