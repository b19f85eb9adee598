package cluster_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
)

// bouncer is a PgBouncer before a server.
type bouncer struct {
	port, pid int
	socketDir string
}

// startBouncer starts a PgBouncer as the server's user, and ends it at the end of the test. The parameter more has
// further lines for its configuration.
func startBouncer(t *testing.T, s *pgtest.Server, more string) bouncer {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip(err)
	}
	for range 20 {
		if b, ok := tryBouncer(t, program, s, more); ok {
			return b
		}
	}
	t.Fatal("PgBouncer finds each free port taken")
	return bouncer{}
}

// tryBouncer starts a PgBouncer on a free port. ok is false if another program has taken the port meanwhile: PgBouncer
// then serves only its Unix socket, and the other program would answer the test.
func tryBouncer(t *testing.T, program string, s *pgtest.Server, more string) (b bouncer, ok bool) {
	t.Helper()
	dir, err := os.MkdirTemp("", "bouncer") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	uid, gid := s.OSUser()
	config := fmt.Sprintf("[databases]\n* = host=%s port=%d user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"+
		"listen_port = %%d\nunix_socket_dir = %s\nauth_type = any\n%s\n", s.SocketDir, s.Port, dir, more)
	listen, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b = bouncer{port: listen.Addr().(*net.TCPAddr).Port, socketDir: dir}
	_ = listen.Close()
	file := filepath.Join(dir, "pgbouncer.ini")
	log, err := os.Create(filepath.Join(dir, "log"))
	err = errors.Join(err, os.WriteFile(file, fmt.Appendf(nil, config, b.port), 0o644), os.Chown(dir, uid, gid))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	text := func() string {
		data, _ := os.ReadFile(log.Name())
		return string(data)
	}
	command := s.AsServerUser(exec.Command(program, file))
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Log(text())
		}
	})
	b.pid = command.Process.Pid
	taken := false
	pgtest.Wait(t, "PgBouncer listens", func() bool {
		taken = strings.Contains(text(), "in use")
		return taken || strings.Contains(text(), "process up")
	})
	return b, !taken
}

// TestPoolerNamed: a connection string that leads to PgBouncer is recognised with every configuration of PgBouncer, and
// the message has the server's own address where it is known.
func TestPoolerNamed(t *testing.T) {
	const lenient = "ignore_startup_parameters = search_path,default_transaction_read_only," +
		"default_transaction_isolation,default_transaction_deferrable,idle_session_timeout," +
		"idle_in_transaction_session_timeout,lock_timeout,jit," +
		"statement_timeout,extra_float_digits,options"
	pgtest.Each(t, func(t *testing.T, binDir string) {
		t.Parallel()
		server := pgtest.Lend(t, binDir, pgtest.Options{})
		server.Exec(t, "CREATE ROLE plain LOGIN")
		c := byDataDir(t, server)
		direct := fmt.Sprintf("host=%s port=%d", server.SocketDir, server.Port)
		for _, conf := range []string{"", lenient, lenient + "\npool_mode = transaction"} {
			b := startBouncer(t, server, conf)
			tcp := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable", b.port)
			unix := fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", b.socketDir, b.port)
			for dsn, address := range map[string]string{tcp: direct, unix: "the server itself"} {
				_, err := cluster.Find(t.Context(), cluster.Options{ConnString: dsn})
				named(t, dsn, err, b, address)
			}
			for _, dsn := range []string{tcp, unix} {
				_, err := cluster.Find(t.Context(), cluster.Options{ConnString: dsn, Cluster: &c})
				named(t, dsn, err, b, "the server itself")
				s := supervise(t, cluster.ConnOptions{ConnString: dsn, Cluster: &c, Named: true, Check: c.Verify})
				named(t, dsn, s.await(t, false).Err, b, "the server itself")
			}
		}
	})
}

func named(t *testing.T, dsn string, err error, b bouncer, address string) {
	t.Helper()
	want := fmt.Sprintf("PgBouncer (process %d)", b.pid)
	if !errors.Is(err, cluster.ErrPooler) || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), address) {
		t.Errorf("%s: %v", dsn, err)
	}
}
