package symbolize

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker/host/rootfs"
)

// TestRightsForDebugFiles: root opens the files that an image names with the rights of the image's user, and files in
// the folders for debug files with its own.
func TestRightsForDebugFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can take on the ids of other users")
	}
	const stranger = 47130
	dir, err := os.MkdirTemp("/tmp", "debug")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	folder := filepath.Join(dir, "folder")
	err = errors.Join(os.Chmod(dir, 0o755), os.MkdirAll(filepath.Join(folder, "root/bin"), 0o700),
		os.WriteFile(filepath.Join(folder, "file"), nil, 0o600), os.WriteFile(filepath.Join(folder, "root/bin/x"), nil, 0o644),
		os.WriteFile(filepath.Join(folder, "root/bin/secret"), nil, 0o600), os.WriteFile(filepath.Join(dir, "secret"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "open"), nil, 0o644), unix.Mkfifo(filepath.Join(dir, "pipe"), 0o666),
		os.Chmod(filepath.Join(dir, "pipe"), 0o666), unix.Mkfifo(filepath.Join(folder, "pipe"), 0o666))
	if err != nil {
		t.Fatal(err)
	}
	// The directory of Root may be closed to the user, as those of container engines are: an administrator named it.
	root := filepath.Join(folder, "root")
	if err := errors.Join(os.Chmod(root, 0o755), os.Chmod(root+"/bin", 0o755)); err != nil {
		t.Fatal(err)
	}
	// An image may name a file by the folder of another process, here of one of root's.
	t.Chdir(dir)
	self := ProcFolder(os.Getpid())
	for path, want := range map[string]error{
		dir + "/secret": fs.ErrPermission, dir + "/open": nil, dir + "/pipe": rootfs.ErrNotRegular,
		folder + "/file": nil, folder + "/pipe": rootfs.ErrNotRegular,
		folder + "/../secret": fs.ErrPermission, folder + "/none": fs.ErrNotExist,
		self + "/root" + dir + "/secret": fs.ErrPermission, self + "/root" + dir + "/open": nil,
		self + "/cwd/secret": fs.ErrPermission, self + "/cwd/open": nil,
	} {
		m := Module{User: rootfs.IDs(stranger, stranger), Sources: &Sources{Folders: []string{folder}}}
		check(t, &m, path, want)
	}
	for path, want := range map[string]error{
		root + "/bin/x": nil, root + "/bin/secret": fs.ErrPermission, root + "/../file": fs.ErrPermission,
		dir + "/secret": fs.ErrPermission,
	} {
		m := Module{User: rootfs.IDs(stranger, stranger), Root: root, Sources: &Sources{}}
		check(t, &m, path, want)
	}
}

func check(t *testing.T, m *Module, path string, want error) {
	t.Helper()
	f, err := m.openDebugFile(path)
	if err == nil {
		_ = f.Close()
	} else if f != nil {
		t.Errorf("%s: an open file and %v", path, err)
	}
	if !errors.Is(err, want) || want == nil && err != nil {
		t.Errorf("%s: %v, want %v", path, err, want)
	}
}
