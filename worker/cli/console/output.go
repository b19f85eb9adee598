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

// Output is the destination of a result: standard output, or a file that gets its name only when it is complete.
type Output struct {
	io.Writer

	file *os.File // nil: standard output
	name string   // name that the complete file gets; "": file keeps its name
}

// CreateOutput opens the output; name "" or "-": standard output. A regular file has another name until Commit. So
// after an error, there is no incomplete file, and an old file of that name stays. The new file has the permissions of
// the old file or, without an old file, the permissions that the umask allows. A file or pipe of another user in a folder
// for all users, such as /tmp, is replaced as if it did not exist: otherwise that user would get the result.
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
	info, err := os.Lstat(target.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		info = nil
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory", name)
	case info.Mode()&fs.ModeSymlink != 0, isForeign(info) && isShared(folderOf(target.path)): // see followLinks about the link
		info = nil
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

// linkTarget is the file to which a name leads: a path, or a file descriptor of this process.
type linkTarget struct {
	path       string
	descriptor int // -1: none
}

// followLinks follows symbolic links of this user and of root. It does not follow a link of another user, and returns the link's
// own path, so that the result replaces the link. Otherwise, in a folder for all users, that user could choose the file that root
// writes.
func followLinks(name string) (linkTarget, error) {
	const most = 40 // the kernel's limit too
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
			return linkTarget{path: path, descriptor: -1}, nil //nolint:nilerr // a missing file will be created
		}
		if isForeign(info) {
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

// isForeign reports whether a file belongs to another user than this one and root.
func isForeign(info fs.FileInfo) bool {
	owner, _ := info.Sys().(*syscall.Stat_t)
	return owner == nil || owner.Uid != 0 && int(owner.Uid) != os.Geteuid()
}

// isShared reports whether every user may create files in a folder.
func isShared(folder string) bool {
	info, err := os.Stat(folder)
	return err != nil || info.Mode().Perm()&0o002 != 0
}

// folderOf returns the folder of a path. Package filepath would remove "..", which gives another folder if the name before it is a
// link.
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

// duplicate duplicates a file descriptor of this process. Both share the position in the file, so the result is written after the
// data that the shell wrote before.
func duplicate(descriptor int, name string) (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// createBeside creates a file with an unused name in the folder of path. The umask decides about its permissions.
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

// keepAttributes gives a new file the owner and the permissions of the old file. If this user may not change the owner, as only
// root can, the owner stays.
func keepAttributes(file *os.File, old fs.FileInfo) error {
	if owner, ok := old.Sys().(*syscall.Stat_t); ok {
		if err := file.Chown(int(owner.Uid), int(owner.Gid)); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return file.Chmod(old.Mode().Perm())
}

// Commit closes the file and gives it its name. For standard output, it does nothing. After an error, the caller must call Discard.
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

// Discard removes the file if it was not committed.
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

// CheckedWriter is a writer that keeps the first error of standard output. It is needed because cobra ignores errors when it writes
// the help of a command.
type CheckedWriter struct {
	w      io.Writer
	failed error
}

var errClosedOutput = errors.New("standard output is closed, or not open for writing")

// NewCheckedWriter returns a CheckedWriter that writes to w.
func NewCheckedWriter(w io.Writer) *CheckedWriter { return &CheckedWriter{w: w} }

// Err returns the first error of a write; nil: there was none.
func (c *CheckedWriter) Err() error { return c.failed }

func (c *CheckedWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	if errors.Is(err, syscall.EBADF) {
		err = errClosedOutput
	}
	if c.failed == nil {
		c.failed = err
	}
	return n, err
}

// IsColoured reports whether text for w should have colours: w is a terminal that can show colours, and the environment variable
// NO_COLOR is not set.
func IsColoured(w io.Writer) bool {
	if c, ok := w.(*CheckedWriter); ok {
		w = c.w
	}
	file, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "" && os.Getenv("TERM") != "dumb" && IsTerminal(file)
}

// TerminalWidth returns the number of columns of the terminal to which w writes; 0: w is no terminal, or its size is not known.
func TerminalWidth(w io.Writer) int {
	file := terminal(w)
	if file == nil {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// RefuseBinary returns an error if a profile in this format is binary and w is a terminal.
func RefuseBinary(format string, w io.Writer) error {
	if format != FormatPprof || terminal(w) == nil {
		return nil
	}
	return Usage(errors.New("--format pprof is binary: write it to a file or a pipe"))
}

// terminal returns the terminal to which w writes; nil: w is no terminal.
func terminal(w io.Writer) *os.File {
	if o, ok := w.(*Output); ok {
		w = o.Writer
	}
	if c, ok := w.(*CheckedWriter); ok {
		w = c.w
	}
	if file, ok := w.(*os.File); ok && IsTerminal(file) {
		return file
	}
	return nil
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
