package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/pg/cluster"
)

// postmasterOf runs a script as a user that can be a server's. The script ends with the execution of the postmaster.
func postmasterOf(t *testing.T, dir, script string) (c cluster.Cluster, children func() []int) {
	t.Helper()
	const user = 65534
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	t.Cleanup(func() { _ = syscall.Kill(-pid, syscall.SIGKILL); _ = cmd.Wait() })
	stat, err := process.ReadStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	return cluster.Cluster{PostmasterPID: pid, PostmasterStart: stat.StartTime, UID: user, GID: user}, func() []int {
		list, _ := process.Children(pid)
		return list
	}
}

// TestChildWithOtherRights checks that no child of a postmaster that its user could not trace is a process of the
// server, although it runs the same program file.
func TestChildWithOtherRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a setgid program")
	}
	var mounted unix.Statfs_t
	if err := unix.Statfs(os.TempDir(), &mounted); err == nil && mounted.Flags&unix.ST_NOSUID != 0 {
		t.Skip("the temporary directory is mounted with nosuid")
	}
	for _, tool := range []string{"sleep", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	sleep, _ := exec.LookPath("sleep")
	code, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "pgcluster")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "postgres")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(program, code, 0o755), os.Chown(program, 0, 65533),
		os.Chmod(program, 0o755|os.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	// no_new_privs makes the kernel ignore the setgid bit.
	const ordinary = "exec setpriv --no-new-privs ./postgres "
	c, children := postmasterOf(t, dir, "./postgres 1001 & ("+ordinary+"1002) & sleep 1003 & "+ordinary+"1000")
	titles := func() map[string]int {
		found := make(map[string]int)
		for _, pid := range append(children(), c.PostmasterPID) {
			found[cluster.Title(pid)] = pid
		}
		return found
	}
	var pids map[string]int
	for until := time.Now().Add(pgtest.Patience); ; time.Sleep(time.Millisecond) {
		pids = titles()
		if pids["./postgres 1000"] != 0 && pids["./postgres 1001"] != 0 && pids["./postgres 1002"] != 0 &&
			pids["sleep 1003"] != 0 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("the processes are %v", pids)
		}
	}
	setgid, member, helper := pids["./postgres 1001"], pids["./postgres 1002"], pids["sleep 1003"]
	target, err := c.Contains(member)
	if err != nil || target.Rights == nil {
		t.Errorf("a process of the server: %+v, %v", target, err)
	}
	target.Held.Release()
	var denied *process.PermissionError
	if _, err := c.Contains(setgid); !errors.As(err, &denied) || denied.Reason != process.ReasonRights ||
		errors.Is(err, cluster.ErrNotMember) {
		t.Errorf("a setgid process: %v", err)
	}
	if _, err := c.Contains(helper); !errors.Is(err, cluster.ErrNotMember) {
		t.Errorf("a helper program: %v", err)
	}
	members, err := c.Members()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range members {
		got = append(got, fmt.Sprintf("%s %v", strings.TrimSpace(m.Title), m.Denied != nil))
	}
	slices.Sort(got)
	if want := []string{"./postgres 1001 true", "./postgres 1002 false"}; !slices.Equal(got, want) {
		t.Errorf("members: %q, want %q", got, want)
	}

	// A postmaster that is such a program itself has no processes that can be examined.
	c, children = postmasterOf(t, dir, "./postgres 1001 & exec ./postgres 1000")
	for until := time.Now().Add(pgtest.Patience); len(children()) == 0 || titles()["./postgres 1000"] == 0; {
		if time.Now().After(until) {
			t.Fatal("the second postmaster has not started")
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := c.Contains(children()[0]); !errors.Is(err, process.ErrNotPermitted) {
		t.Errorf("a child of a setgid postmaster: %v", err)
	}
	if members, err := c.Members(); !errors.Is(err, process.ErrNotPermitted) {
		t.Errorf("the members of a setgid postmaster: %v, %v", members, err)
	}
	if _, err := c.Postmaster(); !errors.Is(err, process.ErrNotPermitted) {
		t.Errorf("a setgid postmaster: %v", err)
	}
	// postmaster.pid of such a process leads to no server.
	text := fmt.Sprintf("%d\n%s\n%d\n5432\n\n\n\nready   \n", c.PostmasterPID, dir, time.Now().Unix())
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "PG_VERSION"), []byte("15\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "postmaster.pid"), []byte(text), 0o644), os.Chown(dir, c.UID, c.GID)); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.ByDataDir(dir); !errors.Is(err, cluster.ErrNoAccess) ||
		!strings.Contains(err.Error(), "its real group id is 65534 and not 65533") {
		t.Errorf("the data directory of a setgid postmaster: %v", err)
	}
}
