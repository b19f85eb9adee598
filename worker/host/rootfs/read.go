package rootfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// Open opens a regular file for reading. If the path leads through the root or working directory of a process, it is
// opened with the ids of that process, any other path with the rights of this process. If the path does not lead to a
// regular file, the error is ErrNotRegular.
//
// The files of /proc/PID/exe and /proc/PID/map_files are opened with the rights of this process. The kernel checked the
// other process's permissions when the process executed or mapped these files. So root can read the symbols of a
// program that the user may execute but not read.
func Open(path string) (*os.File, error) { return User{}.Open(path) }

// Open works like the function Open. But if u has ids, it uses the rights of u for each path.
func (u User) Open(path string) (*os.File, error) { return u.openIf(path, 0, nil) }

// OpenSame opens a regular file with the rights of this process if the function same returns true for the file's device
// and inode. Otherwise the error is fs.ErrNotExist.
func OpenSame(path string, same func(device, inode uint64) bool) (*os.File, error) {
	return User{}.openIf(path, 0, func(st *unix.Stat_t) error {
		if !same(st.Dev, st.Ino) {
			return fmt.Errorf("another file: %w", fs.ErrNotExist)
		}
		return nil
	})
}

func (u User) openIf(path string, flags int, accept func(*unix.Stat_t) error) (*os.File, error) {
	p, err := u.at(path)
	if err != nil {
		return nil, err
	}
	defer p.close()
	return p.regular(flags, accept)
}

// OpenBelow opens a regular file below a directory with the rights of u. The directory is opened with the rights of
// this process, unless it is in another process's folder in /proc. The element ".." in path does not lead out of the
// directory, but symbolic links may.
func (u User) OpenBelow(dir, path string) (*os.File, error) {
	path = filepath.Join("/", path)
	full := filepath.Join(dir, path)
	if _, _, ok := cutFolder(full); ok {
		return u.Open(full)
	}
	base, _, err := User{}.find(dir, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = base.Close() }()
	p := place{path: full, user: u, base: int(base.Fd()), inside: "." + path}
	return p.regular(0, nil)
}

// Stat describes the file to which a path leads. It walks the path with the same ids as Open.
func Stat(path string) (fs.FileInfo, error) { return User{}.Stat(path) }

// Stat works like the function Stat. But if u has ids, it uses the rights of u for each path.
func (u User) Stat(path string) (fs.FileInfo, error) {
	f, _, err := u.find(path, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return f.Stat()
}

// ReadFile reads a regular file. It opens the file with the same ids as Open. It returns an error if the file has more than
// limit bytes, or if the last element of the path is a symbolic link.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := User{}.openIf(path, unix.O_NOFOLLOW, atMost(limit))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, limit))
}

// atMost returns a function that accepts a file of at most limit bytes.
func atMost(limit int64) func(*unix.Stat_t) error {
	return func(st *unix.Stat_t) error {
		if st.Size > limit {
			return fmt.Errorf("larger than %d bytes", limit)
		}
		return nil
	}
}

// ReadIn reads a file of a data directory. Its errors are those of ReadFile. If this process is root, it opens the file with
// the ids of the process through whose root or working directory dir leads. For any other dir it uses the ids of the
// directory's owner. If the owner is root and other users may make files in the directory, it uses ids that own no files.
func ReadIn(dir, name string, limit int64) ([]byte, error) {
	base, u, err := User{}.find(dir, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = base.Close() }()
	if !u.set {
		if u, err = writer(base); err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
	}
	p := place{path: filepath.Join(dir, name), user: u, base: int(base.Fd()), inside: filepath.Base(name)}
	f, err := p.regular(unix.O_NOFOLLOW, atMost(limit))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, limit))
}

// writer returns the owner of a directory, or ids that own no files, see ReadIn.
func writer(dir *os.File) (User, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return User{}, err
	}
	if st.Uid == 0 && st.Mode&(unix.S_IWGRP|unix.S_IWOTH) != 0 {
		return OfUser(unowned), nil
	}
	return OfUser(int(st.Uid)), nil
}

// ReadNames returns the names in a directory, at most limit of them. It opens the directory with the same ids
// as Stat.
func ReadNames(path string, limit int) ([]string, error) {
	p, err := User{}.at(path)
	if err != nil {
		return nil, err
	}
	defer p.close()
	var dir *os.File
	open := func() (err error) { // O_DIRECTORY refuses all other files
		dir, err = p.open(readFlags | unix.O_DIRECTORY)
		return err
	}
	if err = p.user.Do(open); errors.Is(err, errIDs) {
		err = open()
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(limit)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// ofFolder returns the user of the process whose folder in /proc is open.
func ofFolder(fd int) (User, error) {
	if os.Geteuid() != 0 {
		return User{}, nil
	}
	file, err := retry(func() (int, error) { return unix.Openat(fd, "status", unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return User{}, err
	}
	f := os.NewFile(uintptr(file), "status")
	defer func() { _ = f.Close() }()
	const maxStatus = 1 << 20 // enough for a process with 65,536 groups
	text, err := io.ReadAll(io.LimitReader(f, maxStatus))
	if err != nil {
		return User{}, err
	}
	status, err := process.ParseStatus(string(text))
	if err != nil {
		return User{}, err
	}
	return OfStatus(status), nil
}
