package rules

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckProgram has ways to a program that another user can change, and ways that only root can.
func TestCheckProgram(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make files of other users")
	}
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must := func(err ...error) {
		t.Helper()
		if err := errors.Join(err...); err != nil {
			t.Fatal(err)
		}
	}
	must(
		os.Mkdir(in("own"), 0o755), os.Mkdir(in("sticky"), 0o755), os.Mkdir(in("open"), 0o755),
		os.Chmod(in("sticky"), 0o777|os.ModeSticky), os.Chmod(in("open"), 0o777), //nolint:gosec // what the test is about
		os.WriteFile(in("own/program"), []byte("#!/bin/sh\n"), 0o755), //nolint:gosec // an executable file
		os.Symlink("program", in("own/link")), os.Symlink("../own/./link", in("sticky/link")), os.Symlink(in("sticky"), in("own/folder")),
		os.Symlink("../own/program", in("open/link")), os.Symlink(in("open/link"), in("own/through")),
		os.Symlink(in("own/program"), in("sticky/theirs")), os.Lchown(in("sticky/theirs"), 4711, -1),
		os.Symlink("../sticky/theirs", in("own/theirs")), os.Symlink("loop", in("own/loop")),
		os.Symlink("folder/../own/link", in("own/dots")), // folder/.. is the parent of sticky
		// its owner can put a symbolic link in the place of this directory
		os.Mkdir(in("sticky/b"), 0o755), os.Lchown(in("sticky/b"), 4711, -1), os.Symlink("../sticky/b/../../own/program", in("own/back")),
	)
	for name, want := range map[string]string{
		"own/program": "", "own/link": "", "sticky/link": "", "own/folder/link": "", "own/dots": "",
		"open/link": "can be written", "own/through": "can be written",
		"sticky/theirs": "belongs to user id 4711", "own/theirs": "belongs to user id 4711", "own/folder/theirs": "belongs to user id 4711",
		"own/back": "belongs to user id 4711", "own/loop": "too many", "own/missing": "no such file",
	} {
		err := CheckProgram(in(name))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
