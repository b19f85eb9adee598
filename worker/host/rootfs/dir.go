package rootfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Dir is a directory in which files are made and removed. A directory below another process's root directory is kept
// open. So the Dir stays the same directory even if another one is put in its place.
type Dir struct {
	name string
	f    *os.File // nil: the directory is used by its name
}

// OpenDir opens a directory. A path that does not lead through the root directory of another process is not opened, and
// need not exist.
func OpenDir(path string) (*Dir, error) {
	if _, _, ok := Split(path); !ok {
		return &Dir{name: path}, nil
	}
	f, _, err := User{}.find(path, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return &Dir{name: path, f: f}, nil
}

// Within opens a directory below d. A symbolic link that leads out of d is refused.
func (d *Dir) Within(name string) (*Dir, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY
	f, err := openBelow(unix.AT_FDCWD, d.Path(), name, flags, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_MAGICLINKS)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, errFiltered) {
		f, err = openOld(unix.AT_FDCWD, d.Path(), name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(d.name, name), err)
	}
	return &Dir{name: filepath.Join(d.name, name), f: f}, nil
}

// Name returns the path by which the directory was opened, for messages.
func (d *Dir) Name() string { return d.name }

// Path returns a path that leads to the directory as long as it is open.
func (d *Dir) Path() string {
	if d.f == nil {
		return d.name
	}
	return descriptorPath(d.f)
}

// Join returns the path of an entry of the directory. The function that opens the path decides whether it follows a
// symbolic link.
func (d *Dir) Join(name string) string { return d.Path() + "/" + name }

// Close closes the directory. Its paths are then invalid.
func (d *Dir) Close() error {
	if d.f == nil {
		return nil
	}
	return d.f.Close()
}

// Socket returns a path by which a unix socket can be connected to (reach). The path is valid until the caller calls
// the function done.
func Socket(path string) (reach string, done func(), err error) {
	if _, _, ok := Split(path); !ok {
		return path, func() {}, nil
	}
	f, _, err := User{}.find(path, 0)
	if err != nil {
		return "", nil, err
	}
	return descriptorPath(f), func() { _ = f.Close() }, nil
}

// Dial connects with the function dial. For the network "unix" it calls dial with the path that Socket returns.
func Dial(
	ctx context.Context, network, path string, dial func(context.Context, string, string) (net.Conn, error),
) (net.Conn, error) {
	if network != "unix" {
		return dial(ctx, network, path)
	}
	reach, done, err := Socket(path)
	if err != nil {
		return nil, err
	}
	defer done()
	return dial(ctx, network, reach)
}
