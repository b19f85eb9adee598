package incident

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of the text files in the directory of incidents.
const (
	maxTextFiles     = 1000      // number of files and their folders
	maxTextFile      = 2 << 20   // bytes of one file
	maxTextFileBytes = 100 << 20 // bytes of all files
	ordinaryPart     = 75        // percent of the number and of the bytes that roles without superuser rights may use
	rolePart         = 50        // percent of this part that one of these roles may use
)

// roleAttribute is the extended attribute of a text file, and of a folder made for it, with the oid of the caller. Without it, because
// the file system has no such attributes, a file belongs to no role.
const roleAttribute = "user.pg_stat_backtrace.role"

var (
	// ErrBadPath means that WriteText does not accept the path.
	ErrBadPath = errors.New("not a path for a text file")
	// ErrExists means that a file with this path exists already.
	ErrExists = errors.New("the file exists already")
	// ErrTooMany means that the text is too large, or that the directory has too many text files or too many bytes of them.
	ErrTooMany = errors.New("too many text files")
)

// textPath matches paths of up to four names. No name begins with a dot. The last name ends in .txt, so that no text file is taken
// for an incident.
var textPath = regexp.MustCompile(`^([A-Za-z0-9_][A-Za-z0-9_.-]{0,99}/){0,3}[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.txt$`)

// CheckTextPath returns ErrBadPath for a path that WriteText never accepts.
func CheckTextPath(path string) error {
	if !textPath.MatchString(path) {
		return ErrBadPath
	}
	return nil
}

// WriteText writes a text to a new file below the directory, with mode 0600, and makes its folders with mode 0700. It
// follows no symbolic link and replaces no file. The errors are ErrBadPath, ErrExists, ErrTooMany, ErrNoSpace and ErrDirectory.
func (d *Dir) WriteText(path string, text []byte) error {
	if err := CheckTextPath(path); err != nil {
		return err
	}
	if len(text) > maxTextFile {
		return fmt.Errorf("%w: %d bytes", ErrTooMany, len(text))
	}
	if err := d.make(); err != nil {
		return err
	}
	if err := d.roomForText(int64(len(text))); err != nil {
		return err
	}
	at, err := unix.Open(d.Path, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	folders := strings.Split(path, "/")
	name := folders[len(folders)-1]
	for _, folder := range folders[:len(folders)-1] {
		err := unix.Mkdirat(at, folder, 0o700)
		next := -1
		made := err == nil
		if made || errors.Is(err, unix.EEXIST) {
			next, err = unix.Openat(at, folder, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		if made && err == nil {
			d.mark(next)
		}
		unix.Close(at)
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
			return fmt.Errorf("%w: %s: %w", ErrBadPath, folder, err)
		}
		if err != nil {
			return failed(err)
		}
		at = next
	}
	defer unix.Close(at)
	fd, err := unix.Openat(at, name, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EEXIST) {
		return ErrExists
	}
	if err != nil {
		return failed(err)
	}
	d.mark(fd)
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = unix.Unlinkat(at, name, 0)
	}
	return failed(err)
}

// mark notes the caller's role in a new file or folder.
func (d *Dir) mark(fd int) {
	if d.Ordinary && d.Role != 0 {
		_ = unix.Fsetxattr(fd, roleAttribute, []byte(d.role()), 0) // see roleAttribute
	}
}

func (d *Dir) role() string { return strconv.FormatUint(uint64(d.Role), 10) }

// failed makes ErrNoSpace or ErrDirectory of an error of the file system; nil stays nil.
func failed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return fmt.Errorf("%w: %w", ErrDirectory, err)
}

// roomForText returns an error if a new text file of this size would exceed the limits of text files, or leave too little free
// space.
func (d *Dir) roomForText(size int64) error {
	files, most := maxTextFiles, int64(maxTextFileBytes)
	if d.Ordinary {
		files, most = files*ordinaryPart/100, most*ordinaryPart/100
	}
	entries, all := 0, size
	own, ownSize, value := 0, size, make([]byte, 16)
	err := filepath.WalkDir(d.Path, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another process has just removed the file
		}
		if err != nil {
			return err
		}
		if path == d.Path || !e.IsDir() && !strings.HasSuffix(path, ".txt") {
			return nil
		}
		bytes := int64(0)
		if info, err := e.Info(); err == nil && !e.IsDir() {
			bytes = info.Size()
		}
		all += bytes
		if entries++; entries >= files || all > most {
			return ErrTooMany
		}
		if !d.Ordinary || d.Role == 0 {
			return nil
		}
		if n, err := unix.Lgetxattr(path, roleAttribute, value); err != nil || string(value[:n]) != d.role() {
			return nil
		}
		ownSize += bytes
		if own++; own >= files*rolePart/100 || ownSize > most*rolePart/100 {
			return ErrTooMany
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	return d.free(size)
}
