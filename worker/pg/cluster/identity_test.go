package cluster_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/pg/cluster"
)

// TestIdentity: the identity of a server in a container does not depend on the process by whose root directory the
// worker reaches it. Other directories with the same path inside of a container, also copies, have other identities.
func TestIdentity(t *testing.T) {
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	dir := t.TempDir()
	initialize := func(name string, identifier uint64) string {
		t.Helper()
		data := filepath.Join(dir, name)
		control := binary.NativeEndian.AppendUint64(nil, identifier)
		if err := os.MkdirAll(filepath.Join(data, "global"), 0o700); err != nil {
			t.Fatal(err)
		}
		err := os.WriteFile(filepath.Join(data, "global", "pg_control"), append(control, make([]byte, 8184)...), 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	identity := func(pid int, data string) string {
		return cluster.Cluster{DataDir: fmt.Sprintf("/proc/%d/root%s", pid, data)}.Identity()
	}
	first := initialize("data", 7)
	if got := (cluster.Cluster{DataDir: first}).Identity(); got != first {
		t.Errorf("%s, not %s", got, first)
	}
	got := identity(os.Getpid(), first)
	if !strings.HasPrefix(got, first+"#") {
		t.Errorf("%s for %s", got, first)
	}
	if again := identity(child.Process.Pid, first); again != got {
		t.Errorf("after a restart %s, not %s", again, got)
	}
	renamed := filepath.Join(dir, "other")
	if err := os.Rename(first, renamed); err != nil {
		t.Fatal(err)
	}
	if standby := identity(os.Getpid(), initialize("data", 7)); standby == got {
		t.Errorf("a copy has the same identity %s", standby)
	}
	mark := func(identity string) string { return identity[strings.LastIndex(identity, "#"):] }
	if mark(identity(os.Getpid(), renamed)) != mark(got) {
		t.Error("the mark depends on the path")
	}
	if _ = initialize("other", 8); mark(identity(os.Getpid(), renamed)) == mark(got) {
		t.Error("another system identifier has the same mark")
	}
}
