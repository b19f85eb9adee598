package cluster_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/memctx"
)

// TestWithoutDescriptors checks that a server and its processes do not count as ended or as unknown if this process can open no file.
// It must not run in parallel with other tests, because it lowers a limit of this process.
func TestWithoutDescriptors(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{TCP: true})
	c := byDataDir(t, s)
	conn := s.Connect(t, s.User, "postgres")
	pid := int(conn.PgConn().PID())
	capturer, err := capture.New(capture.Config{})
	if err != nil {
		t.Fatal(err)
	}
	target := process.Target{PID: pid}
	errs := map[string]func() error{
		"Contains": func() error {
			found, err := c.Contains(pid)
			found.Held.Release()
			return err
		},
		"Members":        func() error { _, err := c.Members(); return err },
		"ByDataDir":      func() error { _, err := cluster.ByDataDir(s.DataDir); return err },
		"Verify":         func() error { return c.Verify(t.Context(), conn) },
		"ServerBuild":    func() error { _, err := capturer.ServerBuild(pid); return err },
		"MemoryContexts": func() error { _, err := capturer.MemoryContexts(t.Context(), target, memctx.Options{}); return err },
		"Plans":          func() error { _, err := capturer.Plans(t.Context(), target, false); return err },
		"ReadStackSpace": func() error { _, err := capture.ReadStackSpace(pid, 1); return err },
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	for name, read := range errs {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
		err := read()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		var wrong *cluster.WrongClusterError
		if err == nil || errors.Is(err, cluster.ErrNotMember) || errors.Is(err, cluster.ErrNotRunning) || errors.Is(err, cluster.ErrNotDataDir) ||
			errors.Is(err, process.ErrExited) || errors.As(err, &wrong) || !process.LacksResources(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
