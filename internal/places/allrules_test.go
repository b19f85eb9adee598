package places

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestAllRules has one file of rules for two servers of two users. The first process, which may signal no process of another user,
// makes the workers read it again. An error in the file changes nothing, and a file that the servers' users cannot read
// takes no other function from them. If the first process is killed, the workers end.
func TestAllRules(t *testing.T) {
	needRoot(t, "setpriv")
	bin := pgtest.BinDirs(t)[0]
	one := pgtest.Start(t, bin, pgtest.Options{})
	two := pgtest.Start(t, executable(t, bin, "daemon"), pgtest.Options{Account: "daemon"})
	servers := []*pgtest.Server{one, two}
	if a, _ := one.OSUser(); a == statusNumber(two.PostmasterPID(), "Uid") {
		t.Skip("PGSB_TEST_USER is daemon: both servers have the same user")
	}
	dir, err := os.MkdirTemp("", "rules") // other users cannot reach the files of t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "rules.yaml")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	write("rules: {lock_wait: {after: 1h}}", 0o644)
	for _, s := range servers {
		s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
		holder, waiter := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
		if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_lock(1)"); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = waiter.Exec(t.Context(), "SELECT pg_advisory_lock(1)") }()
	}
	start := func() all {
		w := serveAllWith(t, []string{"--rules", file}, filepath.Join(dir, "state"), one.DataDir, two.DataDir)
		for _, s := range servers {
			pgtest.Wait(t, "an answer of "+s.DataDir, func() bool { return answers(t, s) })
		}
		return w
	}
	w := start()
	hangup := func() {
		t.Helper()
		if err := w.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	said := func(message, dir, rule, part string) bool {
		return slices.ContainsFunc(w.entries(), func(e entry) bool {
			return e.Message == message && e.Cluster == dir && e.Rule == rule && strings.Contains(e.Error, part)
		})
	}

	write("rules: {lock_wait: {after: 1}}", 0o644)
	hangup()
	pgtest.Wait(t, "the error", func() bool { return said("the old rules stay", "", "", file+": line 1: after must be a time") })
	write("rules: {lock_wait: {after: 1s}}", 0o644)
	hangup()
	for _, s := range servers {
		pgtest.Wait(t, "an incident by the new rules", func() bool { return said("incident", s.DataDir, "lock_wait", "") })
		if w.count("rules were read again", s.DataDir) != 1 || w.count("the old rules stay", s.DataDir) != 0 {
			t.Error("a worker has read the file with the error")
		}
	}

	pids := []int{w.worker(one.DataDir), w.worker(two.DataDir)}
	if err := w.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the end of the workers", func() bool { return !alive(pids[0]) && !alive(pids[1]) })

	write("rules: {lock_wait: {after: 1s}}", 0o600)
	w = start()
	for _, s := range servers {
		pgtest.Wait(t, "the reason", func() bool {
			return said("the built-in rules apply, without alerts: correct the file of rules, and send SIGHUP", s.DataDir, "", "permission denied")
		})
	}
	write("rules: {lock_wait: {after: 1s}}", 0o644)
	hangup()
	for _, s := range servers {
		pgtest.Wait(t, "the rules", func() bool { return w.count("rules were read again", s.DataDir) == 1 })
	}
}

// executable returns the directory of a server's programs that a user can execute: binDir, or a copy in a directory that all users
// can enter.
func executable(t *testing.T, binDir, user string) string {
	t.Helper()
	works := func(bin string) bool {
		return exec.Command("setpriv", "--reuid", user, "--clear-groups", filepath.Join(bin, "initdb"), "--version").Run() == nil
	}
	if works(binDir) {
		return binDir
	}
	dir, err := os.MkdirTemp("", "programs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	tree := filepath.Join(dir, "pg")
	run(t, "cp", "-r", filepath.Dir(binDir), tree)
	run(t, "chmod", "-R", "a+rX", dir)
	if copied := filepath.Join(tree, filepath.Base(binDir)); works(copied) {
		return copied
	}
	t.Skipf("user %s cannot execute the programs in %s, nor a copy", user, binDir)
	return ""
}
