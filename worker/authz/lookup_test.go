package authz_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/pg/cluster"
)

const roles = `
CREATE ROLE root2 LOGIN SUPERUSER;
CREATE ROLE alice LOGIN REPLICATION;
CREATE ROLE bob LOGIN;
CREATE ROLE heir LOGIN;              GRANT alice TO heir;
CREATE ROLE grandheir LOGIN;         GRANT heir TO grandheir;
CREATE ROLE outsider LOGIN NOINHERIT;
GRANT alice TO outsider;
CREATE ROLE monitor LOGIN;           GRANT pg_monitor TO monitor;
CREATE ROLE signaler LOGIN;          GRANT pg_signal_backend TO signaler;
CREATE ROLE superheir LOGIN;         GRANT root2 TO superheir;
CREATE ROLE plain LOGIN;
CREATE ROLE gone LOGIN;`

// server has what the tests of one version share.
type server struct {
	*pgtest.Server

	admin   *pgx.Conn
	oids    map[string]uint32
	targets map[string]int // pids
}

// single is the worker's session, without supervision.
type single struct{ conn *pgx.Conn }

func (s single) Query(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return f(ctx, s.conn)
}

func TestLookup(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		t.Parallel()
		s := setUp(t, binDir)
		for _, role := range []string{"postgres", "monitor", "plain"} {
			t.Run("worker as "+role, func(t *testing.T) {
				look := &authz.Lookup{Server: single{s.Connect(t, role, "postgres")}}
				s.matrix(t, look, role != "plain")
			})
		}
	})
}

// May says which targets each caller may see; superusers see all.
var may = map[string][]string{
	"alice":     {"alice", "alice parallel", "alice walsender"},
	"bob":       {"bob"},
	"heir":      {"alice", "alice parallel", "alice walsender"},
	"grandheir": {"alice", "alice parallel", "alice walsender"},
	"outsider":  nil,
	"monitor":   nil,
	"signaler":  nil,
	"superheir": nil, // the superuser attribute is not inherited
	"gone":      nil,
}

func (s *server) matrix(t *testing.T, look *authz.Lookup, seesTypes bool) {
	callers := []string{"postgres", "root2"}
	for caller := range may {
		callers = append(callers, caller)
	}
	for _, caller := range callers {
		together, err := look.LookAll(t.Context(), slices.Collect(maps.Values(s.targets)), s.oids[caller])
		if err != nil {
			t.Fatalf("%s looks at all: %v", caller, err)
		}
		for name, pid := range s.targets {
			facts, err := look.Look(t.Context(), pid, s.oids[caller])
			if err != nil {
				t.Fatalf("%s looks at %s: %v", caller, name, err)
			}
			if together[pid] != facts {
				t.Errorf("%s looks at all: %s has %+v, and %+v alone", caller, name, together[pid], facts)
			}
			all := caller == "postgres" || caller == "root2"
			want := all || slices.Contains(may[caller], name)
			// The caller's superuser flag is not set, so the lookup must find it out.
			err = authz.Decide(authz.Caller{OID: s.oids[caller]}, pid, facts)
			if (err == nil) != want {
				t.Errorf("%s looks at %s: %v, facts %+v", caller, name, err, facts)
			}
			if facts.CallerExists != (caller != "gone") || facts.CallerSuperuser != all {
				t.Errorf("%s: facts %+v", caller, facts)
			}
			if seesTypes && facts.Found && facts.BackendType == "" {
				t.Errorf("%s: no backend type in %+v", name, facts)
			}
			s.wording(t, name, err, seesTypes)
		}
	}
}

// wording checks the kind of process that a refusal names, where the worker's role sees it.
func (s *server) wording(t *testing.T, target string, err error, seesTypes bool) {
	t.Helper()
	var d *authz.Denied
	if !errors.As(err, &d) || !seesTypes || strings.Contains(d.Detail, "no longer exists") {
		return
	}
	for prefix, text := range map[string]string{
		"checkpointer": "auxiliary processes", "autovacuum": "autovacuum processes",
		"logical replication launcher": "SUPERUSER attribute.", "root2": "roles with the SUPERUSER attribute.",
	} {
		if strings.HasPrefix(target, prefix) && !strings.Contains(d.Detail, text) {
			t.Errorf("%s: %s", target, d.Detail)
		}
	}
}

func setUp(t *testing.T, binDir string) *server {
	s := &server{
		Server: pgtest.Start(t, binDir, pgtest.Options{
			Conf: []string{
				"wal_level = logical", "autovacuum_naptime = 1s", "autovacuum_vacuum_threshold = 1",
				"autovacuum_vacuum_scale_factor = 0", "autovacuum_vacuum_cost_delay = 100ms",
				"autovacuum_vacuum_cost_limit = 1",
			},
			HBA: []string{"local all,replication all trust"},
		}),
		oids: make(map[string]uint32), targets: make(map[string]int),
	}
	s.admin = s.Connect(t, "postgres", "postgres")
	s.exec(t, s.admin, roles)
	if s.Major >= 16 {
		s.exec(t, s.admin, `CREATE ROLE heir16 LOGIN; GRANT alice TO heir16 WITH INHERIT FALSE;
			CREATE ROLE heir16i LOGIN NOINHERIT; GRANT alice TO heir16i WITH INHERIT TRUE`)
	}
	rows, err := s.admin.Query(t.Context(), "SELECT rolname::text, oid FROM pg_roles")
	if err != nil {
		t.Fatal(err)
	}
	var name string
	var oid uint32
	if _, err := pgx.ForEachRow(rows, []any{&name, &oid}, func() error { s.oids[name] = oid; return nil }); err != nil {
		t.Fatal(err)
	}
	s.exec(t, s.admin, "DROP ROLE gone")
	s.sessions(t)
	s.background(t)
	s.unauthenticated(t)
	return s
}

// sessions makes the targets that belong to a role.
func (s *server) sessions(t *testing.T) {
	for _, role := range []string{"alice", "bob", "root2"} {
		s.targets[role] = int(s.Connect(t, role, "postgres").PgConn().PID())
	}
	// SET ROLE and a definer's rights change nothing: the session belongs to the role that logged in.
	for role, command := range map[string]string{
		"root2 as alice": "SET ROLE alice", "root2 authorized alice": "SET SESSION AUTHORIZATION alice",
	} {
		conn := s.Connect(t, "root2", "postgres")
		s.exec(t, conn, command)
		s.targets[role] = int(conn.PgConn().PID())
	}
	config, err := pgx.ParseConfig(s.DSN("alice", "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["replication"] = "database"
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	sender, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sender.Close(context.Background()) })
	s.targets["alice walsender"] = int(sender.PgConn().PID())
	s.parallel(t)
}

// parallel makes a parallel worker of alice's that sleeps.
func (s *server) parallel(t *testing.T) {
	leader := s.Connect(t, "alice", "postgres")
	force := "force_parallel_mode"
	if s.Major >= 16 {
		force = "debug_parallel_query"
	}
	s.exec(t, leader, "SET "+force+" = on; SET parallel_leader_participation = off")
	pid := leader.PgConn().PID()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = leader.Exec(ctx, "SELECT pg_sleep(600)")
	}()
	t.Cleanup(func() { cancel(); <-done })
	pgtest.Wait(t, "a parallel worker", func() bool {
		return s.find(t, "alice parallel", "backend_type = 'parallel worker' AND leader_pid = "+itoa(pid))
	})
}

// background finds the server's own processes, and has autovacuum work.
func (s *server) background(t *testing.T) {
	for _, kind := range []string{
		"checkpointer", "background writer", "autovacuum launcher", "logical replication launcher",
	} {
		pgtest.Wait(t, "a "+kind, func() bool { return s.find(t, kind, "backend_type = '"+kind+"'") })
	}
	s.exec(t, s.admin, `CREATE TABLE filler AS SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g;
		DELETE FROM filler`)
	pgtest.Wait(t, "an autovacuum worker", func() bool {
		return s.find(t, "autovacuum worker", "query LIKE 'autovacuum:%filler%'")
	})
}

// unauthenticated makes a backend that waits for authentication.
func (s *server) unauthenticated(t *testing.T) {
	c, err := cluster.ByDataDir(s.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	before := pids(t, c)
	dialer := net.Dialer{Timeout: pgtest.Patience}
	conn, err := dialer.DialContext(t.Context(), "unix", filepath.Join(s.SocketDir, ".s.PGSQL."+strconv.Itoa(s.Port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	// An autovacuum worker, which starts each second here, is listed soon as such.
	looks := map[int]int{}
	pgtest.Wait(t, "a backend before authentication", func() bool {
		for _, pid := range pids(t, c) {
			var listed bool
			err := s.admin.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1
				AND (usesysid IS NOT NULL OR backend_type <> 'client backend'))`, pid).Scan(&listed)
			if err != nil || listed || slices.Contains(before, pid) {
				delete(looks, pid)
				continue
			}
			if looks[pid]++; looks[pid] > 10 {
				s.targets["unauthenticated"] = pid
				return true
			}
		}
		return false
	})
}

func pids(t *testing.T, c cluster.Cluster) []int {
	members, err := c.Members()
	if err != nil {
		t.Fatal(err)
	}
	list := make([]int, len(members))
	for i, m := range members {
		list[i] = m.PID
	}
	return list
}

func (s *server) find(t *testing.T, name, condition string) bool {
	t.Helper()
	var pid int
	err := s.admin.QueryRow(t.Context(), "SELECT pid FROM pg_stat_activity WHERE "+condition).Scan(&pid)
	if errors.Is(err, pgx.ErrNoRows) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	s.targets[name] = pid
	return true
}

func (s *server) exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func itoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// Since 16 each grant says whether it is inherited, whatever the member's attribute says.
func TestLookupGrantOptions(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		if pgtest.Major(t, binDir) < 16 {
			t.Skip("options of a single grant came with 16")
		}
		t.Parallel()
		s := setUp(t, binDir)
		look := &authz.Lookup{Server: single{s.admin}}
		for caller, want := range map[string]bool{"heir16": false, "heir16i": true} {
			facts, err := look.Look(t.Context(), s.targets["alice"], s.oids[caller])
			if err != nil || facts.HasPrivileges != want {
				t.Errorf("%s: %+v, %v", caller, facts, err)
			}
		}
	})
}

func TestLookupOnStandby(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		t.Parallel()
		s := pgtest.Start(t, binDir, pgtest.Options{Standby: true})
		conn := s.Connect(t, "postgres", "postgres")
		look := &authz.Lookup{Server: single{conn}}
		facts, err := look.Look(t.Context(), int(conn.PgConn().PID()), 10)
		if err != nil || !facts.Found || !facts.CallerSuperuser || facts.Role != 10 || !facts.HasPrivileges {
			t.Errorf("%+v, %v", facts, err)
		}
	})
}
