package cluster_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
)

func socket(s *pgtest.Server) string {
	return filepath.Join(s.SocketDir, ".s.PGSQL."+strconv.Itoa(s.Port))
}

func byDataDir(t *testing.T, s *pgtest.Server) cluster.Cluster {
	t.Helper()
	c, err := cluster.ByDataDir(s.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestFind(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		t.Parallel()
		s := pgtest.Lend(t, binDir, pgtest.Options{TCP: true})
		s.Exec(t, "CREATE ROLE plain LOGIN; CREATE ROLE reader LOGIN; GRANT pg_read_all_settings TO reader")
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(s.DataDir, link); err != nil {
			t.Fatal(err)
		}
		found := map[string]cluster.Options{
			"data directory":  {DataDir: s.DataDir},
			"symbolic link":   {DataDir: link},
			"socket, no user": {ConnString: s.DSN("nobody_at_all", "nowhere")},
			"TCP, superuser":  {ConnString: s.TCP("postgres", "postgres")},
			"TCP, reader":     {ConnString: s.TCP("reader", "postgres")},
			"second host":     {ConnString: fmt.Sprintf("host=%s,%s port=%d", t.TempDir(), s.SocketDir, s.Port)},
		}
		uid, gid := s.OSUser()
		for name, options := range found {
			c, err := cluster.Find(t.Context(), options)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if c.DataDir != s.DataDir || c.PostmasterPID != s.PostmasterPID() || c.Port != s.Port || c.Version != s.Major ||
				c.SocketDir != s.SocketDir || c.UID != uid || c.GID != gid || c.PostmasterStart == 0 {
				t.Errorf("%s: %+v", name, c)
			}
		}
		_, err := cluster.Find(t.Context(), cluster.Options{ConnString: s.TCP("plain", "postgres")})
		if err == nil || !strings.Contains(err.Error(), "pg_read_all_settings") {
			t.Errorf("TCP as a plain role: %v", err)
		}
		ownSessions(t, s)
	})
}

// TestDataDirInOtherEncoding finds a server over TCP by its data directory, whose name is no text in the encoding of the database.
func TestDataDirInOtherEncoding(t *testing.T) {
	for encoding, name := range map[string]string{"LATIN1": "größe", "SQL_ASCII": "gr\xf6\xdfe"} {
		t.Run(encoding, func(t *testing.T) {
			s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{
				TCP: true, Stopped: true, InitDB: []string{"--encoding=" + encoding}, Conf: []string{"bytea_output = escape"},
			})
			dir := filepath.Join(filepath.Dir(s.DataDir), name)
			if err := os.Rename(s.DataDir, dir); err != nil {
				t.Fatal(err)
			}
			s.DataDir = dir
			s.Start()
			c, err := cluster.Find(t.Context(), cluster.Options{ConnString: s.TCP("postgres", "postgres")})
			if err != nil || c.DataDir != dir || c.PostmasterPID != s.PostmasterPID() {
				t.Errorf("%+v, %v", c, err)
			}
		})
	}
}

// ownSessions checks ByConnection in sessions over either way in.
func ownSessions(t *testing.T, s *pgtest.Server) {
	c := byDataDir(t, s)
	conn := s.Connect(t, "plain", "postgres")
	found, err := cluster.ByConnection(t.Context(), conn)
	if err != nil || !found.Same(c) {
		t.Errorf("by a session: %+v, %v", found, err)
	}
	if err := c.Verify(t.Context(), conn); err != nil {
		t.Error(err)
	}
}

func TestRestart(t *testing.T) {
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	before := byDataDir(t, s)
	if !before.Alive() {
		t.Error("a running server is not alive")
	}
	s.Stop("fast")
	if before.Alive() {
		t.Error("a stopped server is alive")
	}
	if _, err := cluster.ByDataDir(s.DataDir); !errors.Is(err, cluster.ErrNotRunning) {
		t.Errorf("a stopped server is found: %v", err)
	}
	if _, err := before.Members(); !errors.Is(err, cluster.ErrNotRunning) {
		t.Errorf("the members of a stopped server: %v", err)
	}
	if _, err := cluster.BySocket(t.Context(), socket(s)); err == nil {
		t.Error("the socket of a stopped server answers")
	}
	s.Start()
	if after := byDataDir(t, s); before.Alive() || !after.Alive() || before.Same(after) {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// own changes the owner of a file to the owner of a directory, as if the server had made the file.
func own(t *testing.T, dir, file string) {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || os.Chown(file, int(st.Uid), int(st.Gid)) != nil {
		t.Fatal(file)
	}
}

func TestMoved(t *testing.T) {
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	moved := s.DataDir + ".moved"
	if err := os.Rename(s.DataDir, moved); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.BySocket(t.Context(), socket(s))
	if err != nil || c.DataDir != moved {
		t.Errorf("%+v, %v", c, err)
	}
	if err := os.Rename(moved, s.DataDir); err != nil {
		t.Fatal(err)
	}
}

// TestStalePIDFile checks a file left over by a crash whose process id now belongs to another process.
func TestStalePIDFile(t *testing.T) {
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	file := filepath.Join(s.DataDir, "postmaster.pid")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s.Stop("immediate")
	lines := strings.Split(string(content), "\n")
	shell := sleeper(t, s)
	gone := exec.Command("/bin/true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		pid   int
		lines int // how much of the file there is
		say   string
	}{
		"nobody":                         {gone.Process.Pid, 8, "does not run"},
		"somebody elsewhere":             {os.Getpid(), 8, "which"},
		"the owner's shell in it":        {shell, 8, "shared memory segment"},
		"the same, file written in part": {shell, 3, "was started at"},
		"a stand-alone backend":          {-shell, 3, fmt.Sprintf("process %d runs in single-user mode", shell)},
		"a stand-alone backend, ended":   {-gone.Process.Pid, 3, "which was in single-user mode, has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := slices.Clone(lines[:test.lines])
			changed[0] = strconv.Itoa(test.pid)
			changed[2] = "1000000000"
			if err := os.WriteFile(file, []byte(strings.Join(changed, "\n")+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			own(t, s.DataDir, file)
			_, err := cluster.ByDataDir(s.DataDir)
			if !errors.Is(err, cluster.ErrNotRunning) || !strings.Contains(err.Error(), test.say) {
				t.Errorf("%v", err)
			}
		})
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
}

// sleeper starts a program of the server's user in the data directory.
func sleeper(t *testing.T, s *pgtest.Server) (pid int) {
	command := s.AsServerUser(exec.Command("/bin/sleep", "600"))
	command.Dir = s.DataDir
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return command.Process.Pid
}

func TestNoDataDir(t *testing.T) {
	dir := t.TempDir()
	if _, err := cluster.ByDataDir(dir); !errors.Is(err, cluster.ErrNotDataDir) {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := cluster.ByDataDir(filepath.Join(dir, "nowhere")); !errors.Is(err, cluster.ErrNotDataDir) {
		t.Errorf("no directory: %v", err)
	}
	version := filepath.Join(dir, "PG_VERSION")
	for _, content := range []string{"", "9.6\n", "x", strings.Repeat("1", 100)} {
		if err := os.WriteFile(version, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := cluster.ByDataDir(dir); !errors.Is(err, cluster.ErrNotDataDir) {
			t.Errorf("PG_VERSION %q: %v", content, err)
		}
	}
	if err := os.Remove(version); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(version, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.ByDataDir(dir); !errors.Is(err, cluster.ErrNotDataDir) {
		t.Errorf("a pipe for PG_VERSION: %v", err)
	}
}

func TestWrongCluster(t *testing.T) {
	binDir := pgtest.BinDir(t)
	one := pgtest.Lend(t, binDir, pgtest.Options{TCP: true})
	two := pgtest.Lend(t, binDir, pgtest.Options{})
	c := byDataDir(t, two)
	overTCP, err := connectTCP(t, one)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Verify(t.Context(), overTCP)
	wrong(t, err, one.DataDir, two.DataDir)
	err = c.Verify(t.Context(), one.Connect(t, "postgres", "postgres"))
	wrong(t, err, one.DataDir, two.DataDir)
}

func wrong(t *testing.T, err error, names ...string) {
	t.Helper()
	if !errors.Is(err, cluster.ErrWrongCluster) {
		t.Fatalf("%v", err)
	}
	for _, name := range names {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q does not name %s", err, name)
		}
	}
}

func TestMembers(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		t.Parallel()
		s := pgtest.Lend(t, binDir, pgtest.Options{})
		c := byDataDir(t, s)
		conn := s.Connect(t, "postgres", "postgres")
		backend := int(conn.PgConn().PID())
		kinds := []string{"checkpointer", "background writer", "walwriter"}
		var members []cluster.Member
		pgtest.Wait(t, "all processes with their titles", func() (all bool) {
			var err error
			if members, err = c.Members(); err != nil {
				t.Fatal(err)
			}
			return !slices.ContainsFunc(kinds, func(kind string) bool {
				return !slices.ContainsFunc(members, func(m cluster.Member) bool { return strings.Contains(m.Title, kind) })
			})
		})
		titles := make(map[int]string)
		for _, m := range members {
			titles[m.PID] = m.Title
			target, err := c.Contains(m.PID)
			defer target.Held.Release()
			if err == nil && (target.PID != m.PID || target.StartTime != m.StartTime || target.PPID != c.PostmasterPID ||
				target.UID != c.UID) {
				t.Errorf("%+v is %+v", m, target)
			}
		}
		if !strings.HasPrefix(titles[backend], "postgres: "+s.User+" postgres [local]") {
			t.Errorf("the backend's title is %q", titles[backend])
		}
		strangers(t, s, c)
		_ = conn.Close(t.Context())
		pgtest.Wait(t, "the end of a closed session", func() bool {
			target, err := c.Contains(backend)
			target.Held.Release()
			return errors.Is(err, cluster.ErrNotMember)
		})
	})
}

// strangers checks that Contains refuses ids of processes that do not belong to the server.
func strangers(t *testing.T, s *pgtest.Server, c cluster.Cluster) {
	if _, err := c.Contains(c.PostmasterPID); !errors.Is(err, cluster.ErrPostmaster) {
		t.Errorf("the postmaster: %v", err)
	}
	for _, pid := range []int{-1 << 63, -1 << 31, -1, 0, 1, 1<<31 - 1, 1 << 32, os.Getpid(), thread(t), sleeper(t, s)} {
		if _, err := c.Contains(pid); !errors.Is(err, cluster.ErrNotMember) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}

// thread returns the id of a thread of this process that is not its main one.
func thread(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	tid, err := strconv.Atoi(entries[len(entries)-1].Name())
	if err != nil {
		t.Fatal(err)
	}
	return tid
}

func TestNoPostmaster(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, err = cluster.BySocket(t.Context(), path)
	if !errors.Is(err, cluster.ErrNotPostmaster) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("a socket of this process: %v", err)
	}
}
