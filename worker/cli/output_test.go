package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/report/profilefmt"
)

// writeTo writes a text by CreateOutput.
func writeTo(t *testing.T, name, text string) {
	t.Helper()
	o, err := console.CreateOutput(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Discard()
	if _, err := fmt.Fprint(o, text); err != nil {
		t.Fatal(err)
	}
	if err := o.Commit(); err != nil {
		t.Fatal(err)
	}
}

func isLink(t *testing.T, name string) bool {
	t.Helper()
	info, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()&os.ModeSymlink != 0
}

func content(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestOutputLinks expects that links stay, and that the files to which they lead get the data.
func TestOutputLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, step := range []error{
		os.MkdirAll(dir+"/a/b", 0o700),
		os.Symlink("a/b", dir+"/folder"),
		os.WriteFile(dir+"/a/old", []byte("old"), 0o600),
		os.Symlink("../old", dir+"/a/b/link"),
		os.Symlink("link", dir+"/a/b/second"),
		os.Symlink("new", dir+"/a/b/dangling"),
		os.Symlink("round", dir+"/round"),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	for name, target := range map[string]string{
		dir + "/a/b/link":      dir + "/a/old",
		dir + "/folder/second": dir + "/a/old",
		dir + "/a/b/dangling":  dir + "/a/b/new",
	} {
		writeTo(t, name, name)
		if !isLink(t, name) || content(t, target) != name {
			t.Errorf("%s: a link %v, and its target has %q", name, isLink(t, name), content(t, target))
		}
	}
	writeTo(t, dir+"/folder/../plain", "text") // behind the link, not beside it
	if content(t, dir+"/a/plain") != "text" {
		t.Error("the file is in another folder")
	}
	if _, err := console.CreateOutput(dir+"/round", nil); err == nil || !strings.Contains(err.Error(), "round") {
		t.Errorf("a link to itself: %v", err)
	}
}

// TestOutputForeignLink expects that a link of another user is replaced: it must not choose a file of root's.
func TestOutputForeignLink(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a link of another user")
	}
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/important", []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := dir + "/link"
	if err := os.Symlink("important", link); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(link, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	writeTo(t, link, "new")
	if isLink(t, link) || content(t, link) != "new" || content(t, dir+"/important") != "old" {
		t.Errorf("a link: %v, and the file has %q", isLink(t, link), content(t, dir+"/important"))
	}
}

// TestOutputDescriptor expects that /dev/stdout and /dev/fd/N mean an open file. Its name and its earlier data stay.
func TestOutputDescriptor(t *testing.T) {
	t.Parallel()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	link := filepath.Join(t.TempDir(), "stdout")
	if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), link); err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("first "); err != nil {
		t.Fatal(err)
	}
	writeTo(t, link, "second ")
	writeTo(t, fmt.Sprintf("/dev/fd/%d", file.Fd()), "third")
	if !isLink(t, link) || content(t, file.Name()) != "first second third" {
		t.Errorf("a link: %v, and the file has %q", isLink(t, link), content(t, file.Name()))
	}
	if _, err := console.CreateOutput("/dev/fd/99999", nil); err == nil {
		t.Error("a descriptor that is not open was accepted")
	}
}

// TestOutputMode expects the permissions and the owner of the old file. A new file has the permissions of the umask.
func TestOutputMode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := dir + "/old"
	if err := os.WriteFile(old, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	owner := os.Geteuid()
	if owner == 0 {
		owner = 65534
		if err := os.Chown(old, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	writeTo(t, old, "new")
	info, err := os.Stat(old)
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; info.Mode().Perm() != 0o600 || int(uid) != owner {
		t.Errorf("the file has mode %o and belongs to %d", info.Mode().Perm(), uid)
	}
	// The umask is the process's: another file shows it.
	other, err := os.Create(dir + "/other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	writeTo(t, dir+"/new", "new")
	want, err := other.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.Stat(dir + "/new"); err != nil || got.Mode() != want.Mode() {
		t.Errorf("a new file: %v, %v, not %v", got, err, want.Mode())
	}
}

// TestOutputForeignFile expects that a file, link or pipe of another user in a folder for all users is replaced by a file of this
// user, with the permissions of the umask. Otherwise the other user would get the result.
func TestOutputForeignFile(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a file of another user")
	}
	dir, stranger := t.TempDir(), 65534
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	other, err := os.Create(dir + "/other") // has the permissions of the umask
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	want, err := other.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []error{
		os.WriteFile(dir+"/file", nil, 0o600), os.Chmod(dir+"/file", 0o666), os.Lchown(dir+"/file", stranger, stranger),
		os.Mkdir(dir+"/own", 0o755), os.WriteFile(dir+"/own/target", []byte("old"), 0o600),
		os.Chmod(dir+"/own/target", 0o666), os.Lchown(dir+"/own/target", stranger, stranger),
		os.Symlink("own/target", dir+"/link"), os.Lchown(dir+"/link", stranger, stranger),
		syscall.Mkfifo(dir+"/pipe", 0o666), os.Lchown(dir+"/pipe", stranger, stranger),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	reader, err := os.OpenFile(dir+"/pipe", os.O_RDONLY|syscall.O_NONBLOCK, 0) // as the other user would wait for the result
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for _, name := range []string{"/file", "/link", "/pipe"} {
		writeTo(t, dir+name, "new")
		got, err := os.Lstat(dir + name)
		if err != nil {
			t.Fatal(err)
		}
		if uid := got.Sys().(*syscall.Stat_t).Uid; uid != 0 || got.Mode() != want.Mode() {
			t.Errorf("%s has mode %v, not %v, and belongs to %d", name, got.Mode(), want.Mode(), uid)
			continue
		}
		if text := content(t, dir+name); text != "new" {
			t.Errorf("%s has %q", name, text)
		}
	}
}

// TestCaptureProfiles expects the same stack in each format that counts stacks.
func TestCaptureProfiles(t *testing.T) {
	pid := waiter(t)
	for format, begin := range map[string]string{
		console.FormatFolded: "cli.test;", console.FormatPprof: "\x1f\x8b", console.FormatSpeedscope: `{"$schema":`, console.FormatHTML: "<!DOCTYPE html>",
	} {
		status, out, errOut := run(t, "capture", "-f", format, "--repeat", "2", pid)
		if status != exitOK || !strings.HasPrefix(strings.ToLower(out), strings.ToLower(begin)) {
			t.Errorf("%s: status %d, %.60q, %s", format, status, out, errOut)
		}
		if p, err := profilefmt.Read(strings.NewReader(out), nil, nil); (format == console.FormatFolded || format == console.FormatPprof) &&
			(err != nil || len(p.Sample) == 0 || p.Sample[0].Value[0] < 1) {
			t.Errorf("%s: %v", format, err)
		}
	}
}
