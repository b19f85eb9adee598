package debuginfod

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// put writes a file of the cache that was used last at a time.
func put(t *testing.T, path string, size int, used time.Time) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, make([]byte, size), 0o600)
	}
	if err == nil {
		err = os.Chtimes(path, used, used)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestEvict checks that only the least recently used files are removed.
func TestEvict(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	hour := func(n int) time.Time { return now.Add(-time.Duration(n) * time.Hour) }
	files := []struct {
		name string
		size int
		age  int
		stay bool
	}{
		{"aaaa/debuginfo", 1000, 5, false},
		{"aaaa/executable", 1000, 1, true},
		{"bbbb/debuginfo", 1000, 4, false},
		{"cccc/debuginfo", 1000, 3, true},
		{"dddd/debuginfo", 0, 1, false},   // a miss that has expired
		{"eeee/executable", 0, 0, true},   // a miss that counts
		{"ffff/debuginfo", 1000, 9, true}, // the file that has just arrived
		{"ffff/.pg_stat_backtrace-debuginfo-1", 9000, 30, false},
		{"ffff/.pg_stat_backtrace-debuginfo-2", 9000, 1, true},
		// All below is not of this cache's making.
		{"ffff/source##usr##x.c", 9000, 99, true},
		{"ffff/hdr-debuginfo", 9000, 99, true},
		{"debuginfo", 9000, 99, true},
		{"cache_clean_interval_s", 5, 99, true},
		{"notes/debuginfo", 9000, 99, true},
		{"AAAA/debuginfo", 9000, 99, true},
		{"aaa/debuginfo", 9000, 99, true},
		{"aaaa/debuginfo.old", 9000, 99, true},
		{"aaaa/sub/debuginfo", 9000, 99, true},
	}
	var want []string
	for _, f := range files {
		put(t, filepath.Join(dir, f.name), f.size, hour(f.age))
		if f.stay {
			want = append(want, f.name)
		}
	}
	outside := filepath.Join(t.TempDir(), "bbbb")
	put(t, filepath.Join(outside, "debuginfo"), 9000, hour(99))
	if err := errors.Join(os.Symlink(outside, filepath.Join(dir, "bbbbbb")),
		os.Mkdir(filepath.Join(dir, "cccccc"), 0o700),
		os.Symlink(filepath.Join(outside, "debuginfo"), filepath.Join(dir, "cccccc", "debuginfo"))); err != nil {
		t.Fatal(err)
	}
	want = append(want, "bbbbbb", "cccccc/debuginfo")
	c := &cache{dir: dir, limit: 3000}
	c.evict(filepath.Join(dir, "ffff/debuginfo"), now)
	got := listing(t, dir)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for _, gone := range []string{"bbbb", "dddd"} {
		if _, err := os.Stat(filepath.Join(dir, gone)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("empty folder %s: %v", gone, err)
		}
	}
	if got := listing(t, outside); len(got) != 1 {
		t.Errorf("behind a link: %q", got)
	}
}

// TestTimesOfLink: the cache changes no times of a file to which a symbolic link in it leads.
func TestTimesOfLink(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	path, link, old := filepath.Join(dir, "file"), filepath.Join(dir, "link"), now.Add(-time.Hour)
	put(t, path, 1, old)
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if err := touch(link, now, unix.NsecToTimespec(now.UnixNano())); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || !info.ModTime().Equal(old) || !lastUse(info).Equal(old) {
		t.Errorf("the file's times have changed: %v, %v", info, err)
	}
	if info, err := os.Lstat(link); err != nil || !info.ModTime().Equal(now) {
		t.Errorf("the link's times: %v, %v", info, err)
	}
}

// TestSizeLimit checks that used files stay and others are removed. A file larger than the whole cache stays until
// the next one arrives.
func TestSizeLimit(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := strings.Split(r.URL.Path, "/")[2]
		write(w, elfFile(id, make([]byte, 10<<10)...))
	}))
	defer server.Close()
	at := &clock{at: time.Now()}
	c, _ := newClient(t, Config{URLs: []string{server.URL}, CacheSize: 35 << 10})
	c.now = at.now
	for _, id := range []string{"aaaa", "bbbb", "cccc", "aaaa", "dddd", "aaaa", "eeee"} {
		at.advance(time.Minute)
		if _, err := c.Fetch(t.Context(), DebugInfo, id); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"aaaa/debuginfo", "dddd/debuginfo", "eeee/debuginfo"}
	if got := listing(t, c.Dir()); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	c, _ = newClient(t, Config{URLs: []string{server.URL}, CacheSize: 1})
	for _, id := range []string{"aaaa", "bbbb"} {
		if path, err := c.Fetch(t.Context(), DebugInfo, id); err != nil || c.Cached(DebugInfo, id) != path {
			t.Error(path, err)
		}
	}
	if got := listing(t, c.Dir()); !slices.Equal(got, []string{"bbbb/debuginfo"}) {
		t.Errorf("got %q", got)
	}
}

// fixedServer sends one and the same file.
func fixedServer() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		write(w, elfFile(buildID))
	}))
}

// TestDamaged checks that a cached file with the wrong content is replaced, and never returned before.
func TestDamaged(t *testing.T) {
	server := fixedServer()
	defer server.Close()
	c, _ := newClient(t, Config{URLs: []string{server.URL}})
	put(t, filepath.Join(c.Dir(), buildID, "debuginfo"), 4096, time.Now())
	path, err := c.Fetch(t.Context(), DebugInfo, buildID)
	if err != nil || !intact(path, buildID) {
		t.Error(path, err)
	}
}

// TestFull checks that a download which would leave too little free space is not started. It must not count as a
// failure of the server.
func TestFull(t *testing.T) {
	server := fixedServer()
	defer server.Close()
	c, events := newClient(t, Config{URLs: []string{server.URL}, MinFree: 1 << 60})
	for n := range 5 {
		if _, err := c.Fetch(t.Context(), DebugInfo, strings.Repeat("ab", n+2)); !errors.Is(err, ErrNoSpace) {
			t.Error(err)
		}
	}
	if left := listing(t, c.Dir()); len(left) > 0 || events.count(Paused) > 0 {
		t.Error(left, events.events)
	}
}

// TestMissTime checks that the file cache_miss_s sets how long a miss is remembered.
func TestMissTime(t *testing.T) {
	for content, want := range map[string]time.Duration{
		"": defaultMiss, "60\n": time.Minute, "0": 0, "-1": defaultMiss, "x": defaultMiss,
		"9223372036854775807": 365 * 24 * time.Hour,
	} {
		c := &cache{dir: t.TempDir()}
		if err := os.WriteFile(filepath.Join(c.dir, missFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := c.missTime(); got != want {
			t.Errorf("%q: %s, want %s", content, got, want)
		}
	}
}

// TestUnusable checks that an unusable cache folder gives an error at once.
func TestUnusable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", "relative", file, file + "/below", "/proc/nothing"} {
		if _, err := New(Config{URLs: []string{noServer}, CacheDir: dir}); err == nil {
			t.Errorf("%q is no folder", dir)
		}
	}
	for _, url := range []string{
		"", "localhost", "ftp://host", "file:///tmp", "http://", "http://host/?a", "http://[", "-",
	} {
		if _, err := New(Config{URLs: []string{url}, CacheDir: t.TempDir()}); err == nil {
			t.Errorf("%q is no server", url)
		}
	}
}
