package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// idle has the running servers that tests have given back, by their programs and options.
var idle struct {
	sync.Mutex

	servers map[string][]*Server
}

// Lend returns a server that only this test uses, like Start. If an earlier test has given back a server with the same
// programs and options, Lend returns that server, which takes a tenth of the time of a new server. Such a server has a
// new database postgres, and no other databases or roles. A server is not lent again if its test failed, restarted the
// server, changed template1, a setting or a configuration file of the server, or left a file in the data directory.
// With the options Standby, Stopped or Prepare, Lend does the same as Start. CloseIdle must run after the tests.
func Lend(t testing.TB, binDir string, o Options) *Server {
	t.Helper()
	if o.Standby || o.Stopped || o.Prepare != nil {
		return Start(t, binDir, o)
	}
	key := fmt.Sprintf("%q", []any{binDir, o.InitDB, o.Conf, o.HBA, o.Env, o.TCP})
	idle.Lock()
	var s *Server
	if n := len(idle.servers[key]); n > 0 {
		s = idle.servers[key][n-1]
		idle.servers[key] = idle.servers[key][:n-1]
	}
	idle.Unlock()
	if s == nil {
		s = newServer(t, binDir, o)
	} else {
		s.t = t
	}
	t.Cleanup(func() { s.giveBack(key) })
	if s.done == nil {
		s.initDB(o)
		s.Start()
		s.files = s.entries()
	}
	s.lent = s.PostmasterPID()
	return s
}

// Run is for TestMain of a package whose tests lend servers. It runs the tests, stops the servers and returns the exit
// status.
func Run(m interface{ Run() int }) int {
	defer CloseIdle()
	return m.Run()
}

// CloseIdle stops the servers that Lend keeps for other tests, and removes their files. Call it after m.Run.
func CloseIdle() {
	idle.Lock()
	defer idle.Unlock()
	for _, s := range slices.Concat(slices.Collect(maps.Values(idle.servers))...) {
		if err := s.remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	idle.servers = nil
}

// giveBack makes the server like a new one and keeps it for another test. If that is not possible, or if the test has
// failed or restarted the server, giveBack removes the server.
func (s *Server) giveBack(key string) {
	if s.t.Failed() || s.files == nil || s.PostmasterPID() != s.lent {
		s.end()
		return
	}
	err := s.renew()
	if err == nil && !slices.Equal(s.entries(), s.files) {
		err = errors.New("the data directory has other files")
	}
	if err != nil {
		s.t.Logf("this server is not used again: %v", err)
		s.end()
		return
	}
	idle.Lock()
	defer idle.Unlock()
	if idle.servers == nil {
		idle.servers = make(map[string][]*Server)
	}
	idle.servers[key] = append(idle.servers[key], s)
}

// entries returns the names in the data directory and in the directory of the socket, and the contents of configuration files.
func (s *Server) entries() (names []string) {
	list, _ := os.ReadDir(s.DataDir) // after an error, the empty list differs from the list of each server
	for _, e := range list {
		names = append(names, e.Name())
		if strings.HasSuffix(e.Name(), ".conf") {
			content, _ := os.ReadFile(filepath.Join(s.DataDir, e.Name()))
			names = append(names, string(content))
		}
	}
	sockets, _ := os.ReadDir(s.SocketDir) // tests put files for the server's user there
	for _, e := range sockets {
		names = append(names, e.Name())
	}
	return names
}

// renew removes the server's databases and roles, except those of a new server, and empties its log. It returns an
// error if the test has changed anything else.
func (s *Server) renew() error {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	conn, err := connect(ctx, s.DSN(s.User, "template1"))
	if err != nil {
		return err
	}
	defer func() {
		pid := int(conn.PgConn().PID())
		_ = conn.Close(ctx)
		// The next test must not see this session, which ends later than Close.
		for ctx.Err() == nil && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			time.Sleep(time.Millisecond)
		}
	}()
	var changed bool
	if err := conn.QueryRow(ctx, changedSQL).Scan(&changed); err != nil || changed {
		return errors.Join(err, fmt.Errorf("template1, the cluster or a setting was changed: %t", changed))
	}
	strategy := ""
	if s.Major >= 15 {
		strategy = " STRATEGY file_copy" // takes less processor time than the default
	}
	for _, list := range []string{databasesSQL, rolesSQL} {
		if err := each(ctx, conn, list); err != nil {
			return err
		}
	}
	for _, sql := range []string{
		"CREATE DATABASE postgres" + strategy, "ALTER ROLE ALL RESET ALL", "ALTER ROLE CURRENT_USER RESET ALL",
	} {
		if err := patiently(ctx, conn, sql); err != nil {
			return err
		}
	}
	return os.Truncate(s.LogFile, 0) // the server appends to it
}

const (
	// 16384 is the lowest OID of objects that initdb has not made.
	changedSQL = `SELECT EXISTS (SELECT FROM pg_class WHERE oid >= 16384) OR EXISTS (SELECT FROM pg_proc WHERE oid >= 16384)
		OR EXISTS (SELECT FROM pg_namespace WHERE oid >= 16384) OR EXISTS (SELECT FROM pg_extension WHERE oid >= 16384)
		OR EXISTS (SELECT FROM pg_tablespace WHERE oid >= 16384) OR EXISTS (SELECT FROM pg_prepared_xacts)
		OR EXISTS (SELECT FROM pg_replication_slots) OR EXISTS (SELECT FROM pg_default_acl)
		OR EXISTS (SELECT FROM pg_file_settings WHERE sourcefile LIKE '%/postgresql.auto.conf')`
	databasesSQL = `SELECT format('DROP DATABASE %I WITH (FORCE)', datname) FROM pg_database
		WHERE datname NOT IN ('template0', 'template1')`
	rolesSQL = "SELECT format('DROP ROLE %I', rolname) FROM pg_roles WHERE oid >= 16384"
)

// each runs the statements that a query returns.
func each(ctx context.Context, conn *pgx.Conn, query string) error {
	rows, err := conn.Query(ctx, query)
	if err != nil {
		return err
	}
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, sql := range statements {
		if err := patiently(ctx, conn, sql); err != nil {
			return err
		}
	}
	return nil
}

// patiently runs a statement. DROP and CREATE DATABASE wait only 5 s for the end of other sessions, so patiently repeats
// them until ctx ends.
func patiently(ctx context.Context, conn *pgx.Conn, sql string) error {
	for {
		_, err := conn.Exec(ctx, sql)
		var failed *pgconn.PgError
		if errors.As(err, &failed) && failed.Code == objectInUse && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
		return nil
	}
}

const objectInUse = "55006" // an SQLSTATE
