package disktest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// An Ext4 is a file system in an image file.
type Ext4 struct {
	// Dir is the mount point, and Image the file with the file system.
	Dir, Image string
	t          testing.TB
}

// NewExt4 mounts an ext4 of 16 MB, with so many inodes, until the test ends. An error in its data structures makes it read-only.
func NewExt4(t testing.TB, inodes string) *Ext4 {
	t.Helper()
	return newExt4(t, t.TempDir(), "-N", inodes)
}

// NewThin mounts an ext4 on a device that can have less room than the file system believes, as volumes with thin provisioning. The
// function fill takes this room, until its result is called: write(2) works, and fsync(2) fails. It has no journal: an error in a
// journal would make it read-only.
func NewThin(t testing.TB) (e *Ext4, fill func() (empty func())) {
	t.Helper()
	dir := Tmpfs(t, "size=20m")
	return newExt4(t, dir, "-O", "^has_journal"), func() func() { return Fill(t, dir, 0) }
}

func newExt4(t testing.TB, dir string, options ...string) *Ext4 {
	t.Helper()
	e := &Ext4{Dir: filepath.Join(dir, "mount"), Image: filepath.Join(dir, "image"), t: t}
	if err := errors.Join(os.WriteFile(e.Image, nil, 0o600), os.Truncate(e.Image, 16<<20), os.Mkdir(e.Dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	e.run(append([]string{"mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0", e.Image}, options...)...)
	e.Mount()
	t.Cleanup(func() { _ = unix.Unmount(e.Dir, unix.MNT_DETACH) })
	return e
}

// run runs a program, and skips the test if it fails.
func (e *Ext4) run(words ...string) {
	e.t.Helper()
	//nolint:gosec // the words are those of this package
	if out, err := exec.CommandContext(e.t.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
		e.t.Skipf("%s: %v %s", words[0], err, out)
	}
}

// Mount mounts the file system again after Unmount.
func (e *Ext4) Mount() {
	e.t.Helper()
	e.run("mount", "-o", "loop,errors=remount-ro", e.Image, e.Dir)
}

// Unmount unmounts the file system. It returns an error while a process has a file of it open.
func (e *Ext4) Unmount() error { return unix.Unmount(e.Dir, 0) }

// Break makes the kernel find an error, as on a damaged disk: it makes the file system read-only until Repair.
func (e *Ext4) Break() {
	e.t.Helper()
	out, err := exec.CommandContext(e.t.Context(), "findmnt", "-no", "SOURCE", e.Dir).Output() //nolint:gosec // a directory of the test
	if err != nil {
		e.t.Fatal("findmnt of util-linux does not find the file system: ", err)
	}
	trigger := filepath.Join("/sys/fs/ext4", filepath.Base(string(out[:len(out)-1])), "trigger_fs_error")
	if err := os.WriteFile(trigger, []byte("by a test"), 0); err != nil {
		e.t.Skip("this kernel cannot make errors of ext4 for tests (trigger_fs_error): ", err)
	}
}

// Repair repairs an unmounted file system.
func (e *Ext4) Repair() {
	e.t.Helper()
	// The exit status 1 means that errors were corrected.
	out, err := exec.CommandContext(e.t.Context(), "e2fsck", "-fy", e.Image).CombinedOutput() //nolint:gosec // a file of the test
	var status *exec.ExitError
	if err != nil && (!errors.As(err, &status) || status.ExitCode() != 1) {
		e.t.Skipf("e2fsck: %v %s", err, out)
	}
}

// Sync writes everything to the image.
func (e *Ext4) Sync() error {
	f, err := os.Open(e.Dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// Unreadable makes reads of the disk fail with EIO, except of what the kernel has in memory (see Evict), until the returned function is
// called.
func (e *Ext4) Unreadable() (repair func()) {
	e.t.Helper()
	content, err := os.ReadFile(e.Image)
	if err == nil {
		err = os.Truncate(e.Image, 0)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	return func() {
		f, err := os.OpenFile(e.Image, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.Write(content)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			e.t.Fatal(err)
		}
	}
}

// Freeze makes writes to the file system wait, until the returned function is called or the test ends. A process that writes then
// ignores all signals.
func (e *Ext4) Freeze() (thaw func()) {
	e.t.Helper()
	const fifreeze, fithaw = 0xc0045877, 0xc0045878
	f, err := os.Open(e.Dir)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(f.Fd()), fifreeze, 0); err != nil {
		e.t.Skipf("the file system cannot be frozen: %v", err)
	}
	done := false
	thaw = func() {
		if !done {
			done = true
			_ = unix.IoctlSetInt(int(f.Fd()), fithaw, 0)
			_ = f.Close()
		}
	}
	e.t.Cleanup(thaw)
	return thaw
}

// Tmpfs mounts a tmpfs with options such as "size=1m,nr_inodes=20" until the test ends, and returns its directory.
func Tmpfs(t testing.TB, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("no tmpfs can be mounted: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// Fill writes a file until the file system has no room except for so many bytes, and returns the function that removes the file.
func Fill(t testing.TB, dir string, except int64) (empty func()) {
	t.Helper()
	path := filepath.Join(dir, "filled")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	block, size := make([]byte, 4096), int64(0)
	for {
		n, err := f.Write(block)
		size += int64(n)
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Truncate(max(0, size-except)), f.Close()); err != nil {
		t.Fatal(err)
	}
	return func() { _ = os.Remove(path) }
}

// FillInodes makes files until the file system has no inode, and returns the function that removes them.
func FillInodes(t testing.TB, dir string) (empty func()) {
	t.Helper()
	folder := filepath.Join(dir, "files")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for {
		f, err := os.CreateTemp(folder, "")
		if errors.Is(err, unix.ENOSPC) {
			return func() { _ = os.RemoveAll(folder) }
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// Evict makes the kernel forget its copy of a file, so that the next reader reads the disk.
func Evict(t testing.TB, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err == nil {
		err = errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}
