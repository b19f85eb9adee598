package cluster_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
)

// TestByPostmaster: only the process that postmaster.pid names counts as the postmaster.
func TestByPostmaster(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	want := byDataDir(t, server)
	c, err := cluster.ByPostmaster(server.DataDir, server.PostmasterPID())
	if err != nil || !c.Same(want) {
		t.Errorf("%v instead of %v: %v", c, want, err)
	}
	children, err := want.Children()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.ByPostmaster(server.DataDir, children[0]); !errors.Is(err, cluster.ErrNotRunning) {
		t.Error(err)
	}
}

// TestTitleIsBounded: of the arguments of a process, which can be megabytes, the title has few bytes.
func TestTitleIsBounded(t *testing.T) {
	words := append([]string{"600"}, strings.Fields(strings.Repeat("0 ", 50_000))...)
	command := exec.Command("sleep", words...)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	var title string
	pgtest.Wait(t, "the title", func() bool { // a read has a timeout, which a crowded machine can exceed
		title = cluster.Title(command.Process.Pid)
		return title != ""
	})
	if len(title) > 4096 || !strings.HasPrefix(title, "sleep 600") {
		t.Errorf("a title of %d bytes: %.40s", len(title), title)
	}
}
