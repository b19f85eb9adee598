package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/disktest"
	"pg_stat_backtrace/worker/pg/cluster"
)

// TestHostileDataDir checks that links from another root directory to files of this host are not read.
func TestHostileDataDir(t *testing.T) {
	outside := t.TempDir()
	for name, text := range map[string]string{
		"PG_VERSION": "secret", "18/PG_VERSION": "18\n", "postmaster.pid": "4711\n/host\n1700000000\n",
		"18/postmaster.pid": "4711\n/host\n1700000000\n",
	} {
		path := filepath.Join(outside, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pid := disktest.Jail(t, disktest.Tree{
		"/linked": "-> " + outside, "/numbered": "-> " + outside + "/18",
		"/version/PG_VERSION": "-> " + outside + "/PG_VERSION",
		"/running/PG_VERSION": "18\n", "/running/postmaster.pid": "-> " + outside + "/postmaster.pid",
		"/srv/data/PG_VERSION": "18\n", "/srv/data/postmaster.pid": "4712\n/data\n1700000000\n", "/good": "-> /srv/data",
	})
	for _, dir := range []string{"/linked", "/numbered", "/version", "/running"} {
		_, err := cluster.ByDataDir(fmt.Sprintf("/proc/%d/root%s", pid, dir))
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "4711") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	_, err := cluster.ByDataDir(fmt.Sprintf("/proc/%d/root/good", pid))
	if !errors.Is(err, cluster.ErrNotRunning) || !strings.Contains(err.Error(), "4712") {
		t.Errorf("its own link is followed: %v", err)
	}
}
