package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const other = 4711
	base := t.TempDir()
	path := func(name string) string { return filepath.Join(base, name) }
	fail := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"root", "theirs", "open", "sticky"} {
		fail(os.Mkdir(path(dir), 0o755))
		fail(os.WriteFile(path(dir)+"/file", nil, 0o600))
	}
	fail(os.Lchown(path("theirs"), other, other))
	fail(os.Chmod(path("open"), 0o777))
	fail(os.Chmod(path("sticky"), 0o777|os.ModeSticky))
	fail(os.WriteFile(path("root/theirs"), nil, 0o600))
	fail(os.Lchown(path("root/theirs"), other, other))
	fail(os.WriteFile(path("root/writable"), nil, 0o600))
	fail(os.Chmod(path("root/writable"), 0o660))
	for link, target := range map[string]string{
		"root/link": "file", "root/up": "../sticky/file", "root/out": path("theirs/link"), "theirs/link": path("root/file"),
		"sticky/link": path("root/file"), "root/loop": "loop",
	} {
		fail(os.Symlink(target, path(link)))
	}
	fail(os.Lchown(path("sticky/link"), other, other))
	for name, want := range map[string]error{
		"root/file": nil, "root/link": nil, "root/up": nil, "sticky/file": nil,
		"root/theirs": ErrShared, "root/writable": ErrShared, "theirs/file": ErrShared, "open/file": ErrShared,
		"root/out": ErrShared, "theirs/link": ErrShared, "sticky/link": ErrShared,
		"root/loop": syscall.ELOOP, "root/missing": os.ErrNotExist,
	} {
		resolved, err := RootOnlyPath(path(name))
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if expected, _ := filepath.EvalSymlinks(path(name)); want == nil && resolved != expected {
			t.Errorf("%s: %s, want %s", name, resolved, expected)
		}
	}
}
