package process

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReadDiskIO writes a file to a disk and expects the bytes in the counts of this process.
func TestReadDiskIO(t *testing.T) {
	const size = 8 << 20
	before, err := ReadDiskIO(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if inMemory(t, dir) { // TMPDIR often is
		if dir, err = os.MkdirTemp("/var/tmp", "diskio"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
	}
	file, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	after, err := ReadDiskIO(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if inMemory(t, dir) {
		t.Skip("the directories for temporary files are in memory: what is written there is not for a disk")
	}
	if wrote := after.Written - before.Written; wrote < size || wrote > 2*size {
		t.Errorf("%d bytes written, want %d", wrote, size)
	}
	if _, err := ReadDiskIO(1 << 30); err == nil {
		t.Error("a process that does not exist has read or written")
	}
}

// inMemory reports whether the files of a directory are in memory.
func inMemory(t *testing.T, dir string) bool {
	t.Helper()
	var system unix.Statfs_t
	if err := unix.Statfs(dir, &system); err != nil {
		t.Fatal(err)
	}
	return system.Type == unix.TMPFS_MAGIC
}
