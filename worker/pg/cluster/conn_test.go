package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
)

// All goroutines of a Conn must have ended.
// Package ptrace keeps the goroutine that has captured for the next capture.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(lending{m}, goleak.IgnoreTopFunction("pg_stat_backtrace/ptrace.captureWorker"))
}

// lending stops the lent servers before the goroutines are counted.
type lending struct{ m *testing.M }

func (l lending) Run() int { return pgtest.Run(l.m) }

func connectTCP(t *testing.T, s *pgtest.Server) (*pgx.Conn, error) {
	conn, err := pgx.Connect(t.Context(), s.TCP("postgres", "postgres"))
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	return conn, err
}

// supervised is a Conn with a running Run, and the states that it has reported.
type supervised struct {
	*cluster.Conn

	states chan cluster.ConnState
}

// maxStates is how many states wait for the test.
const maxStates = 100

// supervise starts a Conn; it ends with the test.
func supervise(t *testing.T, o cluster.ConnOptions) *supervised {
	t.Helper()
	s := &supervised{states: make(chan cluster.ConnState, maxStates)}
	ctx, cancel := context.WithCancel(context.Background())
	o.OnChange = func(state cluster.ConnState) {
		select {
		case s.states <- state:
		case <-ctx.Done(): // the test has ended, perhaps because it failed, and takes no more
		}
	}
	if o.MaxBackoff == 0 {
		o.MinBackoff, o.MaxBackoff = time.Millisecond, 20*time.Millisecond
	}
	conn, err := cluster.NewConn(o)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	s.Conn = conn
	done := make(chan error, 1)
	go func() { done <- conn.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		if err := conn.Query(context.Background(), nil); !errors.Is(err, cluster.ErrNoServer) {
			t.Errorf("after the end: %v", err)
		}
	})
	return s
}

// await takes states until Connected of a state equals the parameter connected.
func (s *supervised) await(t *testing.T, connected bool) cluster.ConnState {
	t.Helper()
	deadline := time.After(pgtest.Patience)
	for {
		select {
		case state := <-s.states:
			if state.Connected == connected {
				return state
			}
		case <-deadline:
			t.Fatalf("waited in vain for connected=%v", connected)
		}
	}
}

func (s *supervised) query(ctx context.Context, sql string) (string, error) {
	var text string
	err := s.Query(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql).Scan(&text)
	})
	return text, err
}

func TestConnSettings(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		t.Parallel()
		server := pgtest.Lend(t, binDir, pgtest.Options{})
		if server.Major < 19 { // later versions refuse to turn it off
			server.Exec(t, "ALTER DATABASE postgres SET standard_conforming_strings = off")
		}
		// The last session of this test without the worker: 10 ms later the server ends idle ones.
		server.Exec(t, `CREATE ROLE worker LOGIN;
			ALTER ROLE worker SET search_path = evil;
			ALTER ROLE worker SET default_transaction_read_only = off;
			ALTER ROLE worker SET statement_timeout = 0;
			ALTER ROLE worker SET work_mem = '64kB';
			ALTER ROLE worker SET quote_all_identifiers = on;
			ALTER ROLE worker SET bytea_output = escape;
			ALTER DATABASE postgres SET idle_session_timeout = 10;
			ALTER DATABASE postgres SET application_name = mine`)
		dsn := server.DSN("worker", "postgres") + " options='-c search_path=worse'"
		s := supervise(t, cluster.ConnOptions{ConnString: dsn})
		if state := s.await(t, true); state.Version != server.Major {
			t.Errorf("version %d, want %d", state.Version, server.Major)
		}
		for name, want := range map[string]string{
			"search_path": "pg_catalog", "default_transaction_read_only": "on", "statement_timeout": "30s",
			"idle_session_timeout": "0", "application_name": "pg_stat_backtrace", "client_encoding": "UTF8",
			"standard_conforming_strings": "on", "work_mem": "64MB", "quote_all_identifiers": "off", "bytea_output": "hex",
		} {
			got, err := s.query(t.Context(), "SELECT current_setting('"+name+"')")
			if err != nil || got != want {
				t.Errorf("%s is %q (%v), want %q", name, got, err, want)
			}
		}
	})
}

// TestConnNewPassword replaces the password of a role and the password file. The next session must use the new one.
func TestConnNewPassword(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{
		HBA: []string{"local all worker scram-sha-256", "local all all trust"},
	})
	file := filepath.Join(t.TempDir(), "passwords")
	rotate := func(password string) {
		server.Exec(t, "ALTER ROLE worker PASSWORD '"+password+"'")
		if err := os.WriteFile(file, []byte("*:*:*:*:"+password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server.Exec(t, "SET password_encryption = 'scram-sha-256'; CREATE ROLE worker LOGIN")
	rotate("first")
	s := supervise(t, cluster.ConnOptions{ConnString: server.DSN("worker", "postgres") + " passfile=" + file})
	s.await(t, true)
	rotate("second")
	server.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'")
	s.await(t, false)
	for deadline := time.Now().Add(3 * time.Minute); ; {
		_, err := s.query(t.Context(), "SELECT 'yes'")
		if err == nil {
			break
		}
		if strings.Contains(err.Error(), "password") || time.Now().After(deadline) {
			t.Fatalf("after the password was replaced: %v", err)
		}
	}
}

func TestConnRestart(t *testing.T) {
	for _, mode := range []string{"fast", "immediate"} {
		t.Run(mode, func(t *testing.T) {
			server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
			s := supervise(t, cluster.ConnOptions{ConnString: server.DSN("postgres", "postgres")})
			s.await(t, true)
			server.Stop(mode)
			if state := s.await(t, false); state.Err == nil || state.Retry <= 0 {
				t.Errorf("%+v", state)
			}
			began := time.Now()
			if _, err := s.query(t.Context(), "SELECT ''"); !errors.Is(err, cluster.ErrNoServer) {
				t.Errorf("without a server: %v", err)
			}
			if took := time.Since(began); took > pgtest.Patience/2 {
				t.Errorf("being told so took %v", took)
			}
			if version, ok := s.Connected(); ok {
				t.Errorf("connected to %d", version)
			}
			server.Start()
			s.await(t, true)
			if got, err := s.query(t.Context(), "SELECT 'back'"); got != "back" {
				t.Errorf("after the restart: %q, %v", got, err)
			}
		})
	}
}

// TestConnAwaited checks callers before the first session and right after a session was ended. They get the next
// session.
func TestConnAwaited(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	s := supervise(t, cluster.ConnOptions{ConnString: server.DSN("postgres", "postgres")})
	other := server.Connect(t, "postgres", "postgres")
	sessions := map[string]bool{}
	for range 20 {
		began := time.Now()
		pid, err := s.query(t.Context(), "SELECT pg_backend_pid()::text")
		for errors.Is(err, cluster.ErrNoServer) && time.Since(began) > 2*time.Second && time.Since(began) < pgtest.Patience {
			pid, err = s.query(t.Context(), "SELECT pg_backend_pid()::text") // a busy machine: no caller waits longer than that
		}
		if err != nil || sessions[pid] {
			t.Fatalf("after %d sessions: session %s, %v", len(sessions), pid, err)
		}
		sessions[pid] = true
		// It waits until that session is ended.
		if _, err := other.Exec(t.Context(), "SELECT pg_terminate_backend($1::int, 60000)", pid); err != nil {
			t.Fatal(err)
		}
	}
}

// TestConnBreaks: if the session breaks during a query, Query repeats the query with the next session, but only once,
// because the query may be the cause.
func TestConnBreaks(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	s := supervise(t, cluster.ConnOptions{ConnString: server.DSN("postgres", "postgres")})
	for fatal, want := range map[int]error{1: nil, 2: cluster.ErrNoServer} {
		var calls int
		var err error
		pgtest.Wait(t, "the second session", func() bool { // on a busy machine, a caller may not wait for long enough
			calls = 0
			err = s.Query(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
				query := "SELECT 1"
				if calls++; calls <= fatal {
					query = "SELECT pg_terminate_backend(pg_backend_pid())"
				}
				_, err := conn.Exec(ctx, query)
				return err
			})
			return calls > 1 || err == nil
		})
		if !errors.Is(err, want) || calls != 2 {
			t.Errorf("%d sessions broke: called %d times, %v", fatal, calls, err)
		}
	}
}

// TestConnUnavailable checks that a caller waits only briefly for a session, and not at all after a failed attempt.
func TestConnUnavailable(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	p := newProxy(t, server)
	p.silence()
	s := supervise(t, cluster.ConnOptions{ConnString: p.dsn, ConnectTimeout: time.Hour})
	began := time.Now()
	if got, err := s.query(t.Context(), "SELECT ''"); !errors.Is(err, cluster.ErrNoServer) {
		t.Errorf("from a server that is silent: %q, %v", got, err)
	}
	if took := time.Since(began); took > pgtest.Patience/2 {
		t.Errorf("being told so took %v", took)
	}
	synctest.Test(t, func(t *testing.T) {
		dead := supervise(t, cluster.ConnOptions{
			ConnString: "host=/nonexistent user=nobody", MinBackoff: time.Hour, MaxBackoff: time.Hour,
		})
		dead.await(t, false)
		began := time.Now()
		if got, err := dead.query(t.Context(), "SELECT ''"); !errors.Is(err, cluster.ErrNoServer) {
			t.Errorf("after a failed attempt: %q, %v", got, err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the caller waited for %v", took)
		}
	})
}

func TestConnRetry(t *testing.T) {
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Stopped: true})
	s := supervise(t, cluster.ConnOptions{
		ConnString: server.DSN("postgres", "postgres"), MinBackoff: time.Hour, MaxBackoff: time.Hour,
	})
	if state := s.await(t, false); state.Retry < time.Hour/2 || state.Retry > time.Hour {
		t.Errorf("the pause is %v", state.Retry)
	}
	server.Start()
	s.Retry()
	s.await(t, true)
}

// TestConnUnreadStates checks that a test which has failed and reads no states still ends.
func TestConnUnreadStates(t *testing.T) {
	var s *supervised
	t.Run("fails", func(t *testing.T) {
		s = supervise(t, cluster.ConnOptions{ConnString: "host=/nonexistent", MinBackoff: 1, MaxBackoff: time.Millisecond})
		pgtest.Wait(t, "the states fill the channel", func() bool { return len(s.states) == maxStates })
	})
	if version, ok := s.Connected(); ok {
		t.Errorf("connected to %d", version)
	}
}

// TestConnKeywords checks that every keyword of libpq which psql accepts is accepted. hostaddr must replace the
// lookup.
func TestConnKeywords(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		t.Parallel()
		server := pgtest.Lend(t, binDir, pgtest.Options{TCP: true})
		for _, dsn := range []string{
			fmt.Sprintf("host=db.invalid hostaddr=127.0.0.1 port=%d user=postgres gssencmode=disable keepalives=1 "+
				"keepalives_idle=30 keepalives_interval=5 keepalives_count=3 tcp_user_timeout=10000 client_encoding=auto "+
				"fallback_application_name=x sslmode=disable sslcompression=0 load_balance_hosts=disable "+
				"target_session_attrs=any connect_timeout=20 options='-c geqo=off' require_auth=none", server.Port),
			fmt.Sprintf("postgresql://postgres@127.0.0.1:%d/postgres?gssencmode=prefer&keepalives_idle=30&sslmode=disable"+
				"&client_encoding=auto&options=-c%%20geqo%%3Doff", server.Port),
		} {
			s := supervise(t, cluster.ConnOptions{ConnString: dsn})
			if state := <-s.states; !state.Connected {
				t.Fatalf("%s: %v", dsn, state.Err)
			}
			if got, err := s.query(t.Context(), "SELECT current_setting('geqo')"); got != "off" {
				t.Errorf("%s: geqo is %q: %v", dsn, got, err)
			}
			if _, err := cluster.Find(t.Context(), cluster.Options{ConnString: dsn}); os.Geteuid() == 0 && err != nil {
				t.Errorf("%s: %v", dsn, err)
			}
		}
	})
}

func TestConnCheck(t *testing.T) {
	binDir := pgtest.BinDir(t)
	one := pgtest.Lend(t, binDir, pgtest.Options{})
	two := pgtest.Lend(t, binDir, pgtest.Options{})
	c := byDataDir(t, two)
	s := supervise(t, cluster.ConnOptions{ConnString: one.DSN("postgres", "postgres"), Check: c.Verify})
	wrong(t, s.await(t, false).Err, one.DataDir, two.DataDir)
	right := supervise(t, cluster.ConnOptions{ConnString: "user=postgres", Cluster: &c, Check: c.Verify})
	right.await(t, true)
}

// TestConnCancel checks that a cancelled call does not end the session for others.
func TestConnCancel(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	s := supervise(t, cluster.ConnOptions{
		ConnString: server.DSN("postgres", "postgres"), StatementTimeout: 30 * time.Second,
	})
	s.await(t, true)
	before, err := s.query(t.Context(), "SELECT pg_backend_pid()::text")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := s.query(ctx, "SELECT pg_sleep(60)::text")
		failed <- err
	}()
	watcher := server.Connect(t, "postgres", "postgres")
	pgtest.Wait(t, "the statement to run", func() bool {
		var n int
		err := watcher.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").Scan(&n)
		return err == nil && n == 1
	})
	impatient, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := s.query(impatient, "SELECT ''"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("who waits for the session: %v", err)
	}
	cancel()
	if err := <-failed; err == nil {
		t.Error("a canceled query succeeded")
	}
	after, err := s.query(t.Context(), "SELECT pg_backend_pid()::text")
	if err != nil || after != before {
		t.Errorf("the session was %s and is %s, %v", before, after, err)
	}
}

func TestConnStatementTimeout(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	s := supervise(t, cluster.ConnOptions{
		ConnString: server.DSN("postgres", "postgres"), StatementTimeout: 2 * time.Second,
	})
	s.await(t, true)
	if _, err := s.query(t.Context(), "SELECT pg_sleep(60)::text"); err == nil || errors.Is(err, cluster.ErrNoServer) {
		t.Errorf("a long statement: %v", err)
	}
	if got, err := s.query(t.Context(), "SELECT 'on'"); got != "on" {
		t.Errorf("after a timeout: %q, %v", got, err)
	}
}

// TestConnSilence checks that pings detect an open connection without responses. A query must detect a connection
// that breaks during it.
func TestConnSilence(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	p := newProxy(t, server)
	s := supervise(t, cluster.ConnOptions{
		ConnString: p.dsn, PingInterval: 20 * time.Millisecond, ConnectTimeout: time.Second,
		StatementTimeout: 200 * time.Millisecond,
	})
	s.await(t, true)
	p.silence()
	if state := s.await(t, false); state.Err == nil {
		t.Errorf("%+v", state)
	}
	p.resume()
	s.await(t, true)
}

// proxy connects clients to the server's socket. After a call of silence, it discards all data.
type proxy struct {
	dsn    string
	server string
	mu     sync.Mutex
	mute   bool
}

func newProxy(t *testing.T, server *pgtest.Server) *proxy {
	dir, err := os.MkdirTemp("", "proxy") // its name is too long for a socket's
	if err != nil {
		t.Fatal(err)
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{dsn: fmt.Sprintf("host=%s port=5432 user=postgres sslmode=disable", dir), server: socket(server)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.relay(client) })
		}
	})
	t.Cleanup(func() {
		p.resume()
		_ = listener.Close()
		wg.Wait()
		_ = os.RemoveAll(dir)
	})
	return p
}

func (p *proxy) silence() { p.set(true) }
func (p *proxy) resume()  { p.set(false) }

func (p *proxy) set(mute bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = mute
}

func (p *proxy) pass(to net.Conn, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mute {
		return nil
	}
	_, err := to.Write(data)
	return err
}

func (p *proxy) relay(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("unix", p.server)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	done := make(chan struct{}, 2)
	copyTo := func(to, from net.Conn) {
		defer func() { done <- struct{}{} }()
		buffer := make([]byte, 4096)
		for {
			n, err := from.Read(buffer)
			if writeErr := p.pass(to, buffer[:n]); err != nil || writeErr != nil {
				return
			}
		}
	}
	go copyTo(server, client)
	go copyTo(client, server)
	<-done
}

// TestBehindProxy: if a proxy owns the socket, the peer credentials name the proxy. ByConnection must find the server
// by the data directory that the server reports.
func TestBehindProxy(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	p := newProxy(t, server)
	conn, err := pgx.Connect(t.Context(), p.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	c, err := cluster.ByConnection(t.Context(), conn)
	if err != nil || c.DataDir != server.DataDir {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestServersOwnAddress connects to a server that listens in one place only, as its data directory describes it.
func TestServersOwnAddress(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{
		Stopped: true, HBA: []string{"local all all trust", "host all all 127.0.0.0/8 trust", "host all all ::1/128 trust"},
	})
	socket := server.SocketDir
	abstract := "@" + socket
	for _, test := range []struct{ name, sockets, listen, host string }{
		{"abstract socket", abstract + "," + socket, "", abstract},
		{"another IPv4 address", "", "127.0.0.2", "127.0.0.2"},
		{"IPv6 address", "", "::1", "::1"},
		{"several addresses", "", "127.0.0.3, 127.0.0.2", "127.0.0.2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if strings.Contains(test.host, ":") {
				l, err := net.Listen("tcp", "[::1]:0")
				if err != nil {
					t.Skip("no IPv6 here: ", err)
				}
				_ = l.Close()
			}
			appendLines(t, filepath.Join(server.DataDir, "postgresql.conf"), fmt.Sprintf(
				"unix_socket_directories = '%s'\nlisten_addresses = '%s'\n", test.sockets, test.listen))
			server.SocketDir = socket // where the test itself connects
			if test.listen != "" {
				server.SocketDir = test.host
			}
			server.Start()
			defer server.Stop("fast")
			c := byDataDir(t, server)
			for _, text := range []string{"", "host='" + test.host + "'"} {
				s := supervise(t, cluster.ConnOptions{
					ConnString: text + " user=postgres", Cluster: &c, Named: true, Check: c.Verify,
				})
				if state := <-s.states; !state.Connected {
					t.Errorf("with the connection string %q: %v", text, state.Err)
				}
			}
			if test.host != abstract {
				return
			}
			// Root may not search for a server by a name on which every user can listen.
			found, err := cluster.Find(t.Context(), cluster.Options{
				ConnString: fmt.Sprintf("host=%s port=%d", abstract, server.Port),
			})
			switch {
			case os.Geteuid() == 0 && !errors.Is(err, cluster.ErrUnsafeName):
				t.Errorf("root finds %v by an abstract socket: %v", found, err)
			case os.Geteuid() != 0 && (err != nil || !found.Same(c)):
				t.Errorf("found %v by an abstract socket: %v", found, err)
			}
		})
	}
}

func appendLines(t *testing.T, path, lines string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(lines)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}
