package console

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Output is where a result goes: standard output, or a file that is there only if it is complete.
type Output struct {
	io.Writer

	file *os.File // nil: standard output
	name string   // of the complete file; "": file is not to be renamed
}

// CreateOutput opens the output. The empty name is standard output. A regular file is written under another name until
// commit, so that an error leaves no half file, and an old file of that name stays. The new file has the permissions of
// the old one. Without an old one, the umask decides.
func CreateOutput(name string, stdout io.Writer) (*Output, error) {
	if name == "" || name == "-" {
		return &Output{Writer: stdout}, nil
	}
	target, err := followLinks(name)
	if err != nil {
		return nil, err
	}
	if target.descriptor >= 0 {
		file, err := duplicate(target.descriptor, name)
		if err != nil {
			return nil, err
		}
		return &Output{Writer: file, file: file}, nil
	}
	info, err := os.Stat(target.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		info = nil
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory", name)
	case !info.Mode().IsRegular():
		file, err := os.OpenFile(target.path, os.O_WRONLY, 0) // a device or a pipe
		if err != nil {
			return nil, err
		}
		return &Output{Writer: file, file: file}, nil
	}
	file, err := createBeside(target.path)
	if err != nil {
		return nil, err
	}
	o := &Output{Writer: file, file: file, name: target.path}
	if info != nil {
		if err := keepAttributes(file, info); err != nil {
			o.Discard()
			return nil, err
		}
	}
	return o, nil
}

// linkTarget is where a name leads: a path that is no link, or a file descriptor of this process.
type linkTarget struct {
	path       string
	descriptor int // -1: none
}

// followLinks follows the links of a name, but no link of another user: in a folder for all users, that user would
// choose which file root writes. Such a link is replaced.
func followLinks(name string) (linkTarget, error) {
	const most = 40 // as the kernel does
	path := name
	for range most {
		switch folderOf(path) {
		case "/dev/fd", "/proc/self/fd", fmt.Sprintf("/proc/%d/fd", os.Getpid()):
			if n, err := strconv.Atoi(filepath.Base(path)); err == nil {
				return linkTarget{descriptor: n}, nil
			}
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			return linkTarget{path: path, descriptor: -1}, nil //nolint:nilerr // a file that is not there will be made
		}
		if owner, _ := info.Sys().(*syscall.Stat_t); owner == nil || owner.Uid != 0 && int(owner.Uid) != os.Geteuid() {
			return linkTarget{path: path, descriptor: -1}, nil
		}
		next, err := os.Readlink(path)
		if err != nil {
			return linkTarget{}, err
		}
		if !filepath.IsAbs(next) {
			next = folderOf(path) + "/" + next
		}
		path = next
	}
	return linkTarget{}, fmt.Errorf("%s: %w", name, syscall.ELOOP)
}

// folderOf returns the folder of a path. Package filepath would remove "..", which is wrong behind a link to a folder.
func folderOf(path string) string {
	switch i := strings.LastIndexByte(path, '/'); i {
	case -1:
		return "."
	case 0:
		return "/"
	default:
		return path[:i]
	}
}

// duplicate opens a file descriptor of this process again. Its position is shared: what the shell wrote before stays.
func duplicate(descriptor int, name string) (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// createBeside makes a file with an unused name in the folder of another one, with the permissions of the umask.
func createBeside(path string) (*os.File, error) {
	const attempts = 1000
	for i := range attempts {
		name := fmt.Sprintf("%s/.%s.%d.%d", folderOf(path), filepath.Base(path), os.Getpid(), i)
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666) //nolint:gosec // the umask decides
		switch {
		case errors.Is(err, fs.ErrPermission):
			return nil, fmt.Errorf("cannot write %s: user %s may not create files in its directory. Choose another one", path, nameOf(os.Geteuid()))
		case !errors.Is(err, fs.ErrExist):
			return file, err
		}
	}
	return nil, fmt.Errorf("%s: no unused name beside it", path)
}

// keepAttributes gives a file the owner and the permissions of the file that it replaces. Only root can give a file to
// another user.
func keepAttributes(file *os.File, old fs.FileInfo) error {
	if owner, ok := old.Sys().(*syscall.Stat_t); ok {
		if err := file.Chown(int(owner.Uid), int(owner.Gid)); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return file.Chmod(old.Mode().Perm())
}

// Commit completes the file.
func (o *Output) Commit() error {
	if o.file == nil {
		return nil
	}
	file := o.file
	var err error
	if o.name != "" {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil && o.name != "" {
		err = os.Rename(file.Name(), o.name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", o.name, err)
	}
	o.file = nil
	return nil
}

// Discard removes a file that was not completed.
func (o *Output) Discard() {
	if o.file == nil {
		return
	}
	_ = o.file.Close()
	if o.name != "" {
		_ = os.Remove(o.file.Name())
	}
	o.file = nil
}

// CheckedWriter keeps the first error of the standard output. The help of a command is written without a check.
type CheckedWriter struct {
	w      io.Writer
	failed error
}

// NewCheckedWriter returns a writer to w.
func NewCheckedWriter(w io.Writer) *CheckedWriter { return &CheckedWriter{w: w} }

// Err returns the first error.
func (c *CheckedWriter) Err() error { return c.failed }

func (c *CheckedWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	if c.failed == nil {
		c.failed = err
	}
	return n, err
}

// IsColoured reports whether a text for this output has colours: on a terminal that can show them, except if the
// environment variable NO_COLOR is set.
func IsColoured(w io.Writer) bool {
	if c, ok := w.(*CheckedWriter); ok {
		w = c.w
	}
	file, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "" && os.Getenv("TERM") != "dumb" && IsTerminal(file)
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
