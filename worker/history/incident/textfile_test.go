package incident_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/disktest"
	"pg_stat_backtrace/worker/history/incident"
)

// TestWriteText tries paths that would leave the directory, replace a file, or look like an incident.
func TestWriteText(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	d := incident.Dir{Path: filepath.Join(top, "incidents")}
	for _, path := range []string{"a.txt", "case_7/b.txt", "a/b/c/d.txt", "case_7/c-1.x.txt"} {
		if err := d.WriteText(path, []byte("stack\n")); err != nil {
			t.Fatal(path, err)
		}
		st, err := os.Lstat(filepath.Join(d.Path, path))
		if err != nil || st.Mode() != 0o600 || st.Size() != 6 {
			t.Error(path, st, err)
		}
		if err := d.WriteText(path, []byte("other\n")); !errors.Is(err, incident.ErrExists) {
			t.Errorf("%s a second time: %v", path, err)
		}
	}
	outside := t.TempDir()
	for link, to := range map[string]string{"link": outside, "file.txt": filepath.Join(outside, "file.txt"), "case_7/deep": outside} {
		if err := os.Symlink(to, filepath.Join(d.Path, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{
		"", ".", "..", ".txt", "/a.txt", "../a.txt", "a/../../b.txt", "a/../c.txt", "./c.txt", "a//c.txt", "a.txt/", "c", "c.json",
		"20260102T030405Z-lock_wait-0001.json", "c.html", "c.tmp", "-c.txt", ".c.txt", "a/.c/d.txt", "a/b/c/d/e.txt", "c\x00.txt",
		"c\n.txt", "c.txt\n", "é.txt", "c .txt", strings.Repeat("a", 200) + ".txt", "link/a.txt", "case_7/deep/a.txt", "a.txt/c.txt",
	} {
		if err := d.WriteText(path, []byte("x")); !errors.Is(err, incident.ErrBadPath) {
			t.Errorf("%q: %v", path, err)
		}
	}
	if err := d.WriteText("file.txt", nil); !errors.Is(err, incident.ErrExists) {
		t.Error("a symbolic link:", err)
	}
	if list, err := os.ReadDir(outside); err != nil || len(list) > 0 {
		t.Error("a link was followed:", list, err)
	}
	if list, err := d.List(); err != nil || len(list) > 0 {
		t.Error("a text file is taken for an incident:", list, err)
	}
	if err := d.WriteText("large.txt", make([]byte, 3<<20)); !errors.Is(err, incident.ErrTooMany) {
		t.Error("a large file:", err)
	}
	full := incident.Dir{Path: d.Path, MinFree: 1 << 62}
	if err := full.WriteText("full.txt", []byte("x")); !errors.Is(err, incident.ErrNoSpace) {
		t.Error("a full disk:", err)
	}
	many := incident.Dir{Path: filepath.Join(top, "many")}
	if err := many.WriteText("a.txt", nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(many.Path, "a.txt"), 200<<20); err != nil {
		t.Fatal(err)
	}
	if err := many.WriteText("b.txt", []byte("x")); !errors.Is(err, incident.ErrTooMany) {
		t.Error("beyond the size of all:", err)
	}
	if err := os.Chmod(d.Path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteText("open.txt", nil); !errors.Is(err, incident.ErrDirectory) {
		t.Error("a directory of others:", err)
	}
}

// TestTextsLeaveRoomForSuperusers: a role that writes files without end leaves a part of their number to superusers.
func TestTextsLeaveRoomForSuperusers(t *testing.T) {
	t.Parallel()
	d := incident.Dir{Path: filepath.Join(t.TempDir(), "incidents"), Ordinary: true}
	if err := os.Mkdir(d.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 750 {
		if err := os.WriteFile(filepath.Join(d.Path, strconv.Itoa(i)+".txt"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.WriteText("a.txt", nil); !errors.Is(err, incident.ErrTooMany) {
		t.Error("a role:", err)
	}
	d.Ordinary = false
	if err := d.WriteText("a.txt", nil); err != nil {
		t.Error("a superuser:", err)
	}
}

// TestTextsOfRoles has a role that writes as many files as it may. Another role can still write.
func TestTextsOfRoles(t *testing.T) {
	t.Parallel()
	d := incident.Dir{Path: filepath.Join(t.TempDir(), "incidents"), Ordinary: true, Role: 16384}
	if err := d.WriteText("a/b/c/first.txt", nil); err != nil {
		t.Fatal(err)
	}
	mark := func(path, role string) error {
		return unix.Setxattr(path, "user.pg_stat_backtrace.role", []byte(role), 0)
	}
	for i := range 370 { // of the half of 750
		path := filepath.Join(d.Path, strconv.Itoa(i)+".txt")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := mark(path, "16384"); errors.Is(err, unix.ENOTSUP) {
			t.Skip("this file system has no extended attributes of users")
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := d.WriteText("last.txt", nil); err != nil {
		t.Error("the last file:", err)
	}
	if err := d.WriteText("more.txt", nil); !errors.Is(err, incident.ErrTooMany) {
		t.Error("one more file:", err)
	}
	d.Role = 16385
	if err := d.WriteText("a/other.txt", nil); err != nil {
		t.Error("another role:", err)
	}
	if err := os.Truncate(filepath.Join(d.Path, "a", "other.txt"), 38<<20); err != nil { // more than half of 75 MB
		t.Fatal(err)
	}
	if err := d.WriteText("large.txt", nil); !errors.Is(err, incident.ErrTooMany) {
		t.Error("beyond the bytes of a role:", err)
	}
	d.Ordinary = false
	if err := d.WriteText("more.txt", nil); err != nil {
		t.Error("a superuser:", err)
	}
}

// TestTextOnFullDisk fills a file system. Earlier files do not count twice, and a file that was not written is removed.
func TestTextOnFullDisk(t *testing.T) {
	t.Parallel()
	disk := disktest.Tmpfs(t, "size=4m")
	d := incident.Dir{Path: filepath.Join(disk, "incidents"), MinFree: 2 << 20}
	for _, f := range []struct {
		name string
		size int
		want error
	}{{"a.txt", 1 << 20, nil}, {"b.txt", 1 << 19, nil}, {"c.txt", 1 << 20, incident.ErrNoSpace}} {
		if err := d.WriteText(f.name, make([]byte, f.size)); !errors.Is(err, f.want) {
			t.Errorf("%s: %v, want %v", f.name, err, f.want)
		}
	}
	disktest.Fill(t, disk, 4096)
	d.MinFree = 0
	if err := d.WriteText("d.txt", make([]byte, 1<<16)); !errors.Is(err, incident.ErrNoSpace) {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(d.Path, "d.txt")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
