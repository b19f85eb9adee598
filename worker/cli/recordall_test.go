package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// TestUserFolders makes the folders of workers, and refuses directories in which another user could replace one.
func TestUserFolders(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "state")
	uids := []int{os.Geteuid()}
	if os.Geteuid() == 0 {
		uids = append(uids, 65534)
	}
	for _, uid := range uids {
		for range 2 { // it stays
			path, err := makeFolder(dir, uid)
			if err != nil {
				t.Fatal(err)
			}
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil || int(st.Uid) != uid || st.Mode != unix.S_IFDIR|0o700 {
				t.Errorf("%s: user %d, mode %o, %v", path, st.Uid, st.Mode, err)
			}
		}
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != folderMode {
		t.Errorf("%v, %v", st, err)
	}
	bad := map[string]string{filepath.Join(base, "none", "state"): "no such file"}
	for name, want := range map[string]string{"link": "not a directory", "file": "not a directory", "open": "others may write"} {
		bad[filepath.Join(base, name)] = want
	}
	for _, err := range []error{
		os.Symlink(dir, filepath.Join(base, "link")), os.WriteFile(filepath.Join(base, "file"), nil, 0o600),
		os.Mkdir(filepath.Join(base, "open"), 0o700), os.Chmod(filepath.Join(base, "open"), 0o777), // the case
		os.Mkdir(filepath.Join(base, "planted"), 0o755), os.Symlink(dir, filepath.Join(base, "planted", "uid-4711")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	bad[filepath.Join(base, "planted")] = "not a directory"
	if os.Geteuid() == 0 {
		for name, uid := range map[string]int{"theirs": 65534, "mine": 0} {
			path := filepath.Join(base, name)
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Chown(path, uid, -1); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(base, "mine", "uid-4711"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(base, "mine", "uid-4711"), 65534, -1); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(base, "closed"), 0o700); err != nil {
			t.Fatal(err)
		}
		bad[filepath.Join(base, "theirs")] = "belongs to user 65534"
		bad[filepath.Join(base, "mine")] = "uid-4711 belongs to user 65534"
		bad[filepath.Join(base, "closed")] = "chmod 755"
	}
	for path, want := range bad {
		if folder, err := makeFolder(path, 4711); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v, want %q", path, folder, err, want)
		}
	}
	var log strings.Builder
	u := userFolders{dir: filepath.Join(base, "open"), log: zerolog.New(&log), told: map[string]bool{}}
	if words := slices.Concat(u.words(4711), u.words(4711)); len(words) != 0 || strings.Count(log.String(), "no history is recorded") != 1 {
		t.Errorf("%q, %s", words, log.String())
	}
}
