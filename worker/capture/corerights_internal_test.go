package capture

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/unwind/corefile"
	"pg_stat_backtrace/worker/host/rootfs"
)

// TestRightsOfCore: root opens the files that a core names with the rights of the core's owner. The program that an
// administrator names needs only to be a regular file.
func TestRightsOfCore(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can take on the ids of other users")
	}
	const stranger = 47140
	dir, err := os.MkdirTemp("/tmp", "core")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program, err := os.ReadFile("/bin/true")
	core, pipe, secret := filepath.Join(dir, "core"), filepath.Join(dir, "pipe"), filepath.Join(dir, "secret")
	err = errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(core, nil, 0o600), os.Chown(core, stranger, 0),
		unix.Mkfifo(pipe, 0o666), os.Chmod(pipe, 0o666), os.WriteFile(secret, program, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := openStream(pipe, nil); !errors.Is(err, rootfs.ErrNotRegular) {
		t.Errorf("a pipe for a core: %v", err)
	}
	stored := filepath.Join(dir, "stored")
	if err := os.WriteFile(stored, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(stored, "user.coredump.uid", []byte("47140"), 0); err != nil {
		t.Log("this file system has no attributes: ", err)
		stored = core
	}
	for _, file := range []string{core, stored} {
		f, user, err := openStream(file, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		if f, err := user.Open(secret); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v", file, err)
			_ = f.Close()
		}
	}
	f, user, err := openStream(core, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	for _, test := range []struct {
		options CoreOptions
		exe     bool
		path    string
		want    error
	}{
		{path: "/bin/true"},
		{path: secret, want: fs.ErrPermission},
		{path: pipe, want: rootfs.ErrNotRegular},
		{path: "/dev/zero", want: rootfs.ErrNotRegular},
		{options: CoreOptions{Sysroot: dir}, path: "/secret", want: fs.ErrPermission},
		{options: CoreOptions{Sysroot: filepath.Join(dir, "none")}, path: "/../secret", want: fs.ErrNotExist},
		{options: CoreOptions{Exe: secret}, exe: true, path: "/x"},
		{options: CoreOptions{Exe: pipe}, exe: true, path: "/x", want: rootfs.ErrNotRegular},
	} {
		r := &reader{options: test.options, user: user}
		m := &corefile.Mapped{Path: test.path, Exe: test.exe}
		for _, file := range r.files(m) {
			_, opened, err := r.openImage(m, file)
			if err == nil {
				_ = opened.Close()
			}
			if !errors.Is(err, test.want) || test.want == nil && err != nil {
				t.Errorf("%+v: %v", test, err)
			}
		}
	}
}
