package spool

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/disktest"
)

// TestOtherRoot checks a spool for a server in another root directory, including that server's absolute links.
func TestOtherRoot(t *testing.T) {
	pid := disktest.Jail(t, disktest.Tree{
		"/srv/data/pg_stat_tmp": "", "/data": "-> /srv/data", "/spools": "-> /srv/spools", "/srv/spools": "",
	})
	root := fmt.Sprintf("/proc/%d/root", pid)
	s, err := Open(Config{DataDir: root + "/data", Root: root, Base: "/spools", Version: "1.2"})
	if err != nil {
		t.Fatal(err)
	}
	info, err := Find(root + "/data")
	if err != nil || !strings.HasPrefix(info.Dir, "/spools/"+dirPrefix) || info.PID != os.Getpid() {
		t.Errorf("%+v, %v", info, err)
	}
	if s.Dir() != root+info.Dir {
		t.Errorf("it is in %s", s.Dir())
	}
	inside := filepath.Join(root+"/srv/spools", filepath.Base(info.Dir))
	link, err := os.Readlink(root + "/srv/data/pg_stat_tmp/pg_stat_backtrace")
	if err != nil || link != info.Dir || !exists(inside+"/"+readyName) || !exists(root+"/srv/data/"+lockName) {
		t.Errorf("the link leads to %s, %v", link, err)
	}
	if err := s.checkPeriodically(time.Now()); err != nil || s.reported != "" {
		t.Error(err, s.reported)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{inside, root + "/srv/data/" + pidName, root + "/srv/data/" + lockName} {
		if exists(path) {
			t.Errorf("%s is still there", path)
		}
	}
}

// TestHostileRoot checks that links from another root directory to files of this host are neither read nor written.
func TestHostileRoot(t *testing.T) {
	for name, test := range map[string]struct {
		tree   disktest.Tree // %s is a directory of this host
		opened bool
	}{
		"data directory": {disktest.Tree{"/data": "-> %s", "/spools": ""}, false},
		"a link to it":   {disktest.Tree{"/data": "-> /up", "/up": "-> ../../../../../../..%s", "/spools": ""}, false},
		"spool base":     {disktest.Tree{"/data/pg_stat_tmp": "", "/spools": "-> %s"}, false},
		"lock":           {disktest.Tree{"/data/" + lockName: "-> %s/" + lockName, "/spools": ""}, false},
		"pid file":       {disktest.Tree{"/data/" + pidName: "-> %s/" + pidName, "/spools": ""}, true},
		"temporary file": {disktest.Tree{"/data/" + pidName + ".tmp": "-> %s/x", "/spools": ""}, true},
		"requests":       {disktest.Tree{"/data/pg_stat_tmp": "-> %s", "/spools": ""}, true},
		"postmaster.pid": {disktest.Tree{"/data/postmaster.pid": "-> %s/postmaster.pid", "/spools": ""}, true},
	} {
		t.Run(name, func(t *testing.T) {
			outside := t.TempDir()
			for file, text := range map[string]string{
				pidName: "1\n1\n1\n/host\n1.0\n/host\n", "postmaster.pid": "1\n/host\n1\n", "pg_stat_tmp/keep": "",
			} {
				path := filepath.Join(outside, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			before := listing(t, outside)
			tree := disktest.Tree{}
			for path, what := range test.tree {
				tree[path] = strings.ReplaceAll(what, "%s", outside)
			}
			root := fmt.Sprintf("/proc/%d/root", disktest.Jail(t, tree))
			if info, err := Find(root + "/data"); err == nil {
				t.Errorf("a pid file of this host was read: %+v", info)
			}
			s, err := Open(Config{DataDir: root + "/data", Root: root, Base: "/spools"})
			if (err == nil) != test.opened {
				t.Errorf("%v", err)
			}
			if now := listing(t, outside); now != before {
				t.Errorf("this host's directory holds %s, not %s", now, before)
			}
			if err == nil {
				if info, err := Find(root + "/data"); err != nil || info.DataDir == "/host" {
					t.Errorf("%+v, %v", info, err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
			if now := listing(t, outside); now != before {
				t.Errorf("this host's directory holds %s, not %s", now, before)
			}
		})
	}
}

// listing lists the files in a directory, with sizes.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		out = append(out, fmt.Sprint(strings.TrimPrefix(path, dir), " ", info.Mode(), " ", info.Size(), info.ModTime()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, ", ")
}
