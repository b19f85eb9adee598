package debuginfod

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pg_stat_backtrace/internal/imagetest"
)

// serve has elfutils' server serve a program and its debug file.
func serve(t *testing.T) (*imagetest.Debuginfod, imagetest.SplitProgram) {
	t.Helper()
	p := imagetest.BuildSplit(t, "testdata/program.c")
	dir := t.TempDir()
	for _, file := range []string{p.Exe, p.Debug} {
		data, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(file)), data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return imagetest.StartDebuginfod(t, dir, p.BuildID), p
}

// find runs elfutils' client on a cache.
func find(t *testing.T, cacheDir, url string, args ...string) (string, error) {
	t.Helper()
	exe, err := exec.LookPath("debuginfod-find")
	if err != nil {
		t.Skipf("no debuginfod-find: %v (Debian: apt-get install debuginfod)", err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", EnvCache + "=" + cacheDir, EnvURLs + "=" + url, "HOME=" + t.TempDir()}
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// noServer is a URL without a server.
const noServer = "http://127.0.0.1:1"

// TestRealServer gets files from elfutils' server, many requests at once. elfutils' client must find them in the
// cache after the server has stopped, and the other way round.
func TestRealServer(t *testing.T) {
	server, program := serve(t)
	c, events := newClient(t, Config{URLs: []string{server.URL}})
	url := "/buildid/" + program.BuildID + "/debuginfo"
	before := server.Requests(t, url)
	var wg sync.WaitGroup
	paths := make([]string, 50)
	for i := range paths {
		wg.Go(func() {
			var err error
			if paths[i], err = c.Fetch(t.Context(), DebugInfo, program.BuildID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := server.Requests(t, url) - before; n != 1 {
		t.Errorf("%d requests for one file", n)
	}
	if events.count(Started) != 1 || events.count(Arrived) != 1 {
		t.Errorf("events: %+v", events.events)
	}
	same(t, paths[0], program.Debug)
	exe, err := c.Fetch(t.Context(), Executable, program.BuildID)
	if err != nil {
		t.Fatal(err)
	}
	same(t, exe, program.Exe)
	for kind, want := range map[Kind]string{DebugInfo: paths[49], Executable: exe} {
		if got, err := find(t, c.Dir(), noServer, string(kind), program.BuildID); err != nil || got != want {
			t.Errorf("debuginfod-find %s: %q, %v; want %q", kind, got, err, want)
		}
	}
	t.Run("the other way round", func(t *testing.T) {
		theirs := t.TempDir()
		want, err := find(t, theirs, server.URL, "debuginfo", program.BuildID)
		if err != nil {
			t.Fatal(err)
		}
		c, events := newClient(t, Config{URLs: []string{noServer}, CacheDir: theirs})
		if got, err := c.Fetch(t.Context(), DebugInfo, program.BuildID); err != nil || got != want || len(events.events) > 0 {
			t.Errorf("%q, %v, %v; want %q", got, err, events.events, want)
		}
	})
}

func same(t *testing.T, file, want string) {
	t.Helper()
	a, err1 := os.ReadFile(file)
	b, err2 := os.ReadFile(want)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Errorf("%s is not %s", file, want)
	}
}

// TestRealMisses checks that misses are remembered for elfutils' client too, and that elfutils' misses count here.
func TestRealMisses(t *testing.T) {
	server, _ := serve(t)
	at := &clock{at: time.Now()}
	c, events := newClient(t, Config{URLs: []string{server.URL}})
	c.now = at.now
	url := "/buildid/" + buildID + "/debuginfo"
	for range 3 {
		if _, err := c.Fetch(t.Context(), DebugInfo, buildID); !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
	}
	if n := server.Requests(t, url); n != 1 || events.count(Missing) != 1 {
		t.Errorf("%d requests for a file that is not there, %v", n, events.events)
	}
	if out, err := find(t, c.Dir(), server.URL, "debuginfo", buildID); err == nil {
		t.Errorf("debuginfod-find: %q", out)
	}
	if n := server.Requests(t, url); n != 1 {
		t.Errorf("debuginfod-find asked, though the miss is remembered: %d requests", n)
	}
	at.advance(defaultMiss + time.Second)
	if _, err := c.Fetch(t.Context(), DebugInfo, buildID); !errors.Is(err, ErrNotFound) || server.Requests(t, url) != 2 {
		t.Errorf("an old miss: %v, %d requests", err, server.Requests(t, url))
	}
	theirs := t.TempDir()
	if out, err := find(t, theirs, server.URL, "debuginfo", otherID); err == nil {
		t.Errorf("debuginfod-find: %q", out)
	}
	c, events = newClient(t, Config{URLs: []string{server.URL}, CacheDir: theirs})
	if _, err := c.Fetch(t.Context(), DebugInfo, otherID); !errors.Is(err, ErrNotFound) || len(events.events) > 0 {
		t.Errorf("a miss of debuginfod-find: %v, %v", err, events.events)
	}
}

// TestRequest checks that a request returns at once, and later reports that the file has arrived or when to retry.
func TestRequest(t *testing.T) {
	server, program := serve(t)
	c, _ := newClient(t, Config{URLs: []string{server.URL}})
	type result struct {
		arrived bool
		again   time.Time
	}
	for id, want := range map[string]bool{program.BuildID: true, buildID: false, "../../etc/passwd": false} {
		done := make(chan result, 2)
		if c.DebugFile(id) != "" {
			t.Fatalf("%s is there already", id)
		}
		c.RequestDebugFile(id, func(arrived bool, again time.Time) { done <- result{arrived, again} })
		if got := <-done; got.arrived != want || got.again.Before(time.Now().Add(retryPause/2)) {
			t.Errorf("%s: %+v", id, got)
		}
		if path := c.DebugFile(id); (path != "") != want {
			t.Errorf("%s: %q", id, path)
		}
	}
	c.Close()
	done := make(chan bool, 1)
	c.RequestDebugFile(otherID, func(arrived bool, _ time.Time) { done <- arrived })
	if <-done {
		t.Error("a closed client got a file")
	}
	if _, err := c.Fetch(context.Background(), DebugInfo, otherID); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
