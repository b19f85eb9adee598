package rootfs

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSetMode sets the modes of a directory and of a socket. It changes no file that is in their place, and no file to which a
// symbolic link leads.
func TestSetMode(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("unix", dir+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	err = errors.Join(os.Mkdir(dir+"/folder", 0o700), os.Chmod(dir+"/socket", 0o600), os.WriteFile(dir+"/file", nil, 0o600),
		os.Symlink("folder", dir+"/link"), os.Symlink("file", dir+"/link to a file"))
	if err != nil {
		t.Fatal(err)
	}
	mode := func(name string) os.FileMode {
		info, err := os.Stat(dir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	for name, refused := range map[string]error{
		"link": errReplaced, "link to a file": errReplaced, "file": errReplaced, "none": os.ErrNotExist,
	} {
		if err := SetMode(dir+"/"+name, unix.S_IFDIR, 0o755); !errors.Is(err, refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if mode("folder") != 0o700 || mode("file") != 0o600 {
		t.Errorf("changed: folder %o, file %o", mode("folder"), mode("file"))
	}
	if err := errors.Join(SetMode(dir+"/folder", unix.S_IFDIR, 0o755), SetMode(dir+"/socket", unix.S_IFSOCK, 0o666)); err != nil {
		t.Fatal(err)
	}
	if mode("folder") != 0o755 || mode("socket") != 0o666 {
		t.Errorf("not changed: folder %o, socket %o", mode("folder"), mode("socket"))
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(dir+"/folder", stranger, stranger); err != nil {
		t.Fatal(err)
	}
	if err := SetMode(dir+"/folder", unix.S_IFDIR, 0o700); !errors.Is(err, errReplaced) || mode("folder") != 0o755 {
		t.Errorf("another user's folder: %v, %o", err, mode("folder"))
	}
}
