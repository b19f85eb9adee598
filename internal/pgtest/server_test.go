package pgtest_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

func TestServer(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		t.Parallel()
		s := pgtest.Start(t, binDir, pgtest.Options{TCP: true, Conf: []string{"application_name = 'x y'"}})
		conn := s.Connect(t, "postgres", "postgres")
		var major int
		var name string
		const query = "SELECT current_setting('server_version_num')::int / 10000, current_setting('application_name')"
		if err := conn.QueryRow(t.Context(), query).Scan(&major, &name); err != nil {
			t.Fatal(err)
		}
		if major != s.Major || name != "x y" {
			t.Errorf("major %d and name %q, want %d and x y", major, name, s.Major)
		}
		before := s.PostmasterPID()
		s.Restart("immediate")
		if after := s.PostmasterPID(); after == before || after == 0 {
			t.Errorf("postmaster %d before and %d after a restart", before, after)
		}
	})
}

func TestStandby(t *testing.T) {
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Standby: true})
	conn := s.Connect(t, "postgres", "postgres")
	var recovering bool
	if err := conn.QueryRow(t.Context(), "SELECT pg_is_in_recovery()").Scan(&recovering); err != nil {
		t.Fatal(err)
	}
	if !recovering {
		t.Error("a standby is not in recovery")
	}
}

func TestEndsWithTheTest(t *testing.T) {
	var pid int
	var dir string
	binDir := pgtest.BinDir(t)
	t.Run("inner", func(t *testing.T) {
		s := pgtest.Start(t, binDir, pgtest.Options{})
		pid, dir = s.PostmasterPID(), s.DataDir
		if pid == 0 || !strings.Contains(s.Log(), "ready to accept connections") {
			t.Errorf("postmaster %d, log %q", pid, s.Log())
		}
	})
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("process %d still runs", pid)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("stat of %s: %v", dir, err)
	}
}
