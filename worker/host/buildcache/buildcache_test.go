package buildcache

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const build = "0123456789abcdef"

// saved returns a folder with one result, its key and the path of its file.
func saved(t *testing.T) (f Folder, k Key, path string) {
	t.Helper()
	f = Folder(filepath.Join(t.TempDir(), "above", "cache"))
	k = Key{Kind: "names", Build: build, Detail: "detail"}
	if err := f.Save(k, []byte("result")); err != nil {
		t.Fatal(err)
	}
	return f, k, filepath.Join(string(f), k.name())
}

func TestResultIsFound(t *testing.T) {
	t.Parallel()
	f, k, path := saved(t)
	if got := f.Load(k); string(got) != "result" {
		t.Fatalf("got %q", got)
	}
	for _, p := range []string{string(f), path} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", p, info, err)
		}
	}
	for _, other := range []Key{
		{"lines", build, "detail"}, {"names", "fedcba9876543210", "detail"}, {"names", build, "other"},
		{"names", "../" + build, "detail"}, {"", build, "detail"}, {"a/b", build, "detail"},
	} {
		if f.Load(other) != nil {
			t.Errorf("%+v has a result", other)
		}
	}
	if Folder("").Load(k) != nil || Folder("").Save(k, nil) != nil {
		t.Error("no folder has a result, or fails")
	}
	if f.Save(Key{"names", "..", ""}, nil) == nil || f.Save(k, make([]byte, LargestResult+1)) == nil {
		t.Error("an unusable result is kept")
	}
	if entries, err := os.ReadDir(string(f)); err != nil || len(entries) != 1 {
		t.Errorf("entries: %v, %v", entries, err)
	}
}

// TestChangedFileIsIgnored cuts a file at each place, changes each byte, and appends one.
func TestChangedFileIsIgnored(t *testing.T) {
	t.Parallel()
	f, k, path := saved(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ignored := func(what string, content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := f.Load(k); got != nil {
			t.Errorf("%s: got %q", what, got)
		}
	}
	for i := range whole {
		ignored(fmt.Sprintf("cut at %d", i), whole[:i])
		changed := bytes.Clone(whole)
		changed[i] ^= 0x40
		ignored(fmt.Sprintf("byte %d", i), changed)
	}
	ignored("a byte more", append(bytes.Clone(whole), 0))
	other := Key{"names", build, "other"}
	ignored("another key's file", encode(other.text(), []byte("forged")))
	if err := os.WriteFile(path, whole, 0o600); err != nil || string(f.Load(k)) != "result" {
		t.Errorf("the right file is ignored: %v", err)
	}
}

// TestForeignFilesAreIgnored has files and folders that another user could have made or could change.
func TestForeignFilesAreIgnored(t *testing.T) {
	t.Parallel()
	file := func(change func(path string) error) func(Folder, string) error {
		return func(_ Folder, path string) error { return change(path) }
	}
	for name, c := range map[string]struct {
		change     func(f Folder, path string) error
		rootOnly   bool
		stillSaves bool
	}{
		"group can read the file":   {file(func(p string) error { return os.Chmod(p, 0o640) }), false, true},
		"others can write the file": {file(func(p string) error { return os.Chmod(p, 0o602) }), false, true},
		"another user's file":       {file(func(p string) error { return os.Chown(p, 12345, 12345) }), true, true},
		"symbolic link": {file(func(p string) error {
			return errors.Join(os.Rename(p, p+".real"), os.Symlink(p+".real", p))
		}), false, true},
		"directory":                  {file(func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) }), false, false},
		"others can open the folder": {func(f Folder, _ string) error { return os.Chmod(string(f), 0o755) }, false, false},
		"another user's folder":      {func(f Folder, _ string) error { return os.Chown(string(f), 12345, 12345) }, true, false},
		"folder is a symbolic link": {func(f Folder, _ string) error {
			return errors.Join(os.Rename(string(f), string(f)+".real"), os.Symlink(string(f)+".real", string(f)))
		}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.rootOnly && os.Geteuid() != 0 {
				t.Skip("only root gives files to another user")
			}
			f, k, path := saved(t)
			if err := c.change(f, path); err != nil {
				t.Fatal(err)
			}
			if got := f.Load(k); got != nil {
				t.Errorf("got %q", got)
			}
			if err := f.Save(k, []byte("new")); (err == nil) != c.stillSaves || c.stillSaves && string(f.Load(k)) != "new" {
				t.Errorf("save: %v, then %q", err, f.Load(k))
			}
		})
	}
}

// TestParentOfRootsFolder: a service of another user can have its own folder beside root's, whatever umask root has. Folders
// above another folder are private.
func TestParentOfRootsFolder(t *testing.T) { // not parallel: the umask is one of the whole process
	if os.Geteuid() != 0 {
		t.Skip("needs root: only its folder is in a directory that it shares with other users")
	}
	defer unix.Umask(unix.Umask(0o077))
	parent, other := filepath.Join(t.TempDir(), "cache", "pg_stat_backtrace"), filepath.Join(t.TempDir(), "cache", "folder")
	defer func(own Folder) { rootFolder = own }(rootFolder)
	rootFolder = Folder(filepath.Join(parent, "root"))
	for _, f := range []Folder{rootFolder, Folder(other)} {
		if err := f.Save(Key{"names", build, "detail"}, []byte("result")); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]os.FileMode{
		filepath.Dir(parent): 0o755, parent: 0o755, parent + "/root": 0o700, filepath.Dir(other): 0o700, other: 0o700,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
}

// TestFolderIsBounded keeps more results than the folder may have. The used one stays.
func TestFolderIsBounded(t *testing.T) {
	t.Parallel()
	f, used, path := saved(t)
	key := func(i int) Key { return Key{"names", build, strconv.Itoa(i)} }
	old := time.Now().Add(-48 * time.Hour)
	age := func(path string, by time.Duration) {
		t.Helper()
		if err := os.Chtimes(path, old.Add(by), old.Add(by)); err != nil {
			t.Fatal(err)
		}
	}
	age(path, 0)
	unfinished := filepath.Join(string(f), temporary+"x")
	if err := os.WriteFile(unfinished, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	age(unfinished, 0)
	for i := range maxFiles - 1 {
		if err := f.Save(key(i), []byte{1}); err != nil {
			t.Fatal(err)
		}
		k := key(i)
		age(filepath.Join(string(f), k.name()), time.Duration(i+1)*time.Second)
	}
	if f.Load(used) == nil { // it now counts as the newest
		t.Fatal("a result is missing before the folder is full")
	}
	if err := f.Save(key(maxFiles), []byte{1}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(string(f))
	if err != nil || len(entries) != maxFiles {
		t.Errorf("%d files, %v", len(entries), err)
	}
	if f.Load(used) == nil || f.Load(key(0)) != nil || f.Load(key(1)) == nil {
		t.Errorf("kept: used %t, oldest %t, second %t", f.Load(used) != nil, f.Load(key(0)) != nil, f.Load(key(1)) != nil)
	}
	for i := range maxBytes/LargestResult + 1 {
		name := filepath.Join(string(f), "names-large"+strconv.Itoa(i))
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, LargestResult)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Save(key(0), []byte{1}); err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	entries, _ = os.ReadDir(string(f))
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			total += info.Size()
		}
	}
	if total > maxBytes || total < maxBytes/2 || f.Load(key(0)) == nil {
		t.Errorf("%d bytes in %d files", total, len(entries))
	}
}

func TestOwnFolder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env        string
		uid        int
		sinceStart bool
		want       Folder
	}{
		{"XDG_CACHE_HOME=/x HOME=/h CACHE_DIRECTORY=/s", 0, true, "/var/cache/pg_stat_backtrace/root"},
		{"XDG_CACHE_HOME=/x HOME=/h", 54321, true, "/x/pg_stat_backtrace"},
		{"XDG_CACHE_HOME=x HOME=/h", 54321, true, "/h/.cache/pg_stat_backtrace"},
		{"HOME=/", 54321, true, ""},
		{"HOME=/nonexistent", 54321, true, ""},
		{"XDG_CACHE_HOME=/x HOME=/h", 54321, false, ""},
		{"HOME=/h CACHE_DIRECTORY=/s:/t", 54321, false, "/s/pg_stat_backtrace"},
	} {
		getenv := func(name string) string {
			for v := range strings.FieldsSeq(c.env) {
				if value, ok := strings.CutPrefix(v, name+"="); ok {
					return value
				}
			}
			return ""
		}
		if got := own(getenv, c.uid, c.sinceStart); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// TestBuildIDIsSafeInFileName has texts that would leave the folder, or are too short or too long.
func TestBuildIDIsSafeInFileName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"01234567": true, "abcdef09abcdef09": true, strings.Repeat("a", 128): true,
		"": false, "0123456": false, strings.Repeat("a", 129): false, "0123456g": false, "ABCDEF09": false, "../../../etc": false,
		"01234567\n": false, "0123456/": false, "01234567\x00": false, "é1234567": false,
	} {
		if got := IsBuildID(text); got != want {
			t.Errorf("%q: %t, want %t", text, got, want)
		}
	}
}
