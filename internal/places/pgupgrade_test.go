package places

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
)

// attend starts a worker of a data directory, whether or not a server runs there; it ends with the test.
func attend(t *testing.T, s *pgtest.Server) *service {
	t.Helper()
	w := &service{
		Cmd: s.AsServerUser(exec.Command(program, "worker", "-D", s.DataDir, "user=postgres dbname=postgres")),
		log: filepath.Join(t.TempDir(), "log"),
	}
	log, err := os.Create(w.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	w.Stdout, w.Stderr = log, log
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.Process.Signal(syscall.SIGTERM)
		_ = w.Wait()
		if t.Failed() {
			t.Log(w.text())
		}
	})
	return w
}

// says waits until the worker's log has the text.
func (w *service) says(t *testing.T, text string) {
	t.Helper()
	pgtest.Wait(t, "the worker says "+text, func() bool { return strings.Contains(w.text(), text) })
}

// connectionsLogged are settings that make a server log the name of each client.
var connectionsLogged = []string{"log_connections = on", "log_line_prefix = '%m [%p] %a '"}

// forUpgrade starts and stops a server with the arguments of pg_upgrade.
func forUpgrade(t *testing.T, s *pgtest.Server, command string) {
	t.Helper()
	options := fmt.Sprintf("-p %d -b -c synchronous_commit=off -c fsync=off -c full_page_writes=off "+
		"-c listen_addresses='' -c unix_socket_permissions=0700 -c unix_socket_directories='%s'", s.Port, s.SocketDir)
	out, err := s.AsServerUser(exec.Command(filepath.Join(s.BinDir, "pg_ctl"), "-w", "-l", s.LogFile, "-D", s.DataDir,
		"-m", "fast", "-o", options, command)).CombinedOutput()
	if err != nil {
		t.Fatalf("pg_ctl %s: %v\n%s%s", command, err, out, s.Log())
	}
}

// alone checks that a server's log names this test's client and no worker's.
func alone(t *testing.T, what, log, client string) {
	t.Helper()
	if !strings.Contains(log, "application_name="+client) {
		t.Errorf("%s: the log names no client %s, so it proves nothing:\n%s", what, client, log)
	}
	if strings.Contains(log, "application_name=pg_stat_backtrace") {
		t.Errorf("%s: the worker connected:\n%s", what, log)
	}
}

// TestServersOfUpgrade checks that workers do not connect to the two servers of a pg_upgrade, for each pair of
// versions. They must serve them when they run for clients. The servers have pg_upgrade's arguments.
func TestServersOfUpgrade(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers; left out by -short")
	}
	var servers []*pgtest.Server
	var workers []*service
	for _, binDir := range pgtest.BinDirs(t) {
		s := pgtest.Start(t, binDir, pgtest.Options{Stopped: true, Conf: connectionsLogged})
		if len(servers) > 0 && servers[len(servers)-1].Major == s.Major {
			continue
		}
		if err := os.WriteFile(s.LogFile, nil, 0o666); err != nil {
			t.Fatal(err)
		}
		uid, gid := s.OSUser()
		if err := os.Chown(s.LogFile, uid, gid); err != nil {
			t.Fatal(err)
		}
		servers, workers = append(servers, s), append(workers, attend(t, s))
	}
	for i, old := range servers {
		for k := i + 1; k < len(servers); k++ {
			upgraded := servers[k]
			t.Run(fmt.Sprintf("%d to %d", old.Major, upgraded.Major), func(t *testing.T) {
				for n, s := range map[int]*pgtest.Server{i: old, k: upgraded} {
					forUpgrade(t, s, "start")
					defer forUpgrade(t, s, "stop")
					c, err := pgx.Connect(t.Context(), s.DSN(s.User, "postgres")+" application_name=upgrader")
					if err != nil {
						t.Fatal(err)
					}
					_ = c.Close(t.Context())
					workers[n].says(t, fmt.Sprintf("postmaster %d runs in binary-upgrade mode", s.PostmasterPID()))
				}
			})
		}
	}
	for i, s := range servers {
		if len(servers) > 1 {
			alone(t, s.BinDir, s.Log(), "upgrader")
		}
		s.Start()
		workers[i].says(t, `"ready"`)
		workers[i].says(t, `"connected"`)
	}
}

// TestPgUpgrade runs pg_upgrade beside workers of both clusters.
func TestPgUpgrade(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers; left out by -short")
	}
	found := false
	for _, binDir := range pgtest.BinDirs(t) {
		if _, err := os.Stat(filepath.Join(binDir, "pg_upgrade")); err != nil {
			continue
		}
		found = true
		t.Run(pgtest.Version(t, binDir), func(t *testing.T) { upgradeBeside(t, binDir) })
	}
	if !found {
		t.Skip("no server here has pg_upgrade")
	}
}

func upgradeBeside(t *testing.T, binDir string) {
	old := pgtest.Start(t, binDir, pgtest.Options{Conf: connectionsLogged})
	old.Exec(t, "CREATE EXTENSION pg_stat_backtrace; CREATE TABLE t AS SELECT 1")
	first := attend(t, old)
	first.says(t, "serving the queue")
	old.Stop("fast")
	upgraded := pgtest.Start(t, binDir, pgtest.Options{Stopped: true, Conf: connectionsLogged})
	second := attend(t, upgraded)
	second.says(t, "waiting for the server")
	upgrade := old.AsServerUser(exec.Command(filepath.Join(binDir, "pg_upgrade"), "-r", "-U", "postgres", "-b", binDir,
		"-B", binDir, "-d", old.DataDir, "-D", upgraded.DataDir, "-s", old.SocketDir))
	upgrade.Dir = old.SocketDir
	if out, err := upgrade.CombinedOutput(); err != nil {
		t.Fatalf("pg_upgrade: %v\n%s", err, out)
	}
	var log strings.Builder
	err := filepath.WalkDir(upgraded.DataDir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "pg_upgrade_server.log" {
			var data []byte
			data, err = os.ReadFile(path)
			log.Write(data)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	alone(t, "pg_upgrade", log.String(), "pg_dump")
	upgraded.Start()
	second.says(t, "serving the queue")
	boss := upgraded.Connect(t, upgraded.User, "postgres")
	if got := ask(t, boss, sleeper(t, upgraded)); !strings.Contains(got, " in PostgresMain+0x") {
		t.Error(got)
	}
}

// TestSingleUserMode checks that a worker waits while its server runs in single-user mode.
func TestSingleUserMode(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		s := pgtest.Start(t, binDir, pgtest.Options{Stopped: true})
		single := s.AsServerUser(exec.Command(filepath.Join(binDir, "postgres"), "--single", "-D", s.DataDir, "postgres"))
		in, err := single.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := single.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = in.Close() }()
		w := attend(t, s)
		w.says(t, "runs in single-user mode")
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		if err := single.Wait(); err != nil {
			t.Fatal(err)
		}
		s.Start()
		w.says(t, `"ready"`)
		w.says(t, `"connected"`)
	})
}

// TestOpeningServer checks a worker that reads postmaster.pid before the server has written its socket directory, which
// it does after it has opened its sockets.
func TestOpeningServer(t *testing.T) {
	each(t, func(t *testing.T, binDir string) {
		s := pgtest.Start(t, binDir, pgtest.Options{})
		path := filepath.Join(s.DataDir, "postmaster.pid")
		complete, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfterN(string(complete), "\n", 5)
		// The server only checks the first line. Writing keeps the owner of the file.
		if err := os.WriteFile(path, []byte(strings.Join(lines[:4], "")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		w := attend(t, s)
		w.says(t, `"ready"`)
		if err := os.WriteFile(path, complete, 0o600); err != nil {
			t.Fatal(err)
		}
		w.says(t, `"connected"`)
	})
}
