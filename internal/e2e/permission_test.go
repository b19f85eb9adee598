package e2e

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
)

// callers are the roles of the permission table; all but ungranted have EXECUTE.
const callers = `
	CREATE ROLE boss LOGIN SUPERUSER;
	CREATE ROLE alice LOGIN REPLICATION;
	CREATE ROLE heir LOGIN;              GRANT alice TO heir;
	CREATE ROLE grandheir LOGIN;         GRANT heir TO grandheir;
	CREATE ROLE outsider LOGIN NOINHERIT;
	GRANT alice TO outsider;
	CREATE ROLE stranger LOGIN;
	CREATE ROLE monitor LOGIN;           GRANT pg_monitor, pg_read_all_data, pg_write_all_data TO monitor;
	CREATE ROLE signaler LOGIN;          GRANT pg_signal_backend, pg_read_server_files, pg_write_server_files,
	                                           pg_execute_server_program TO signaler;
	CREATE ROLE superheir LOGIN;         GRANT boss TO superheir;
	CREATE ROLE creator LOGIN CREATEROLE CREATEDB REPLICATION BYPASSRLS;
	CREATE ROLE ungranted LOGIN;
	GRANT EXECUTE ON FUNCTION pg_get_backtrace, pg_log_backtrace(int) TO alice, heir, grandheir, outsider, stranger,
		monitor, signaler, superheir, creator`

const callers16 = `
	CREATE ROLE heir16 LOGIN;            GRANT alice TO heir16 WITH INHERIT FALSE;
	CREATE ROLE heir16i LOGIN NOINHERIT; GRANT alice TO heir16i WITH INHERIT TRUE;
	GRANT EXECUTE ON FUNCTION pg_get_backtrace, pg_log_backtrace(int) TO heir16, heir16i`

// alices are the targets that run for alice. heirs are the roles that may see them, besides superusers.
var (
	alices = []string{"alice", "alice parallel", "alice walsender", "alice as stranger"}
	heirs  = []string{"alice", "heir", "grandheir", "heir16i"}
)

// target is a process of one of the kinds in the permission table.
type target struct {
	name string
	pid  int
	// refused lists the conditions that a caller without the right may get.
	refused []string
}

// permissions checks every caller of the table with every target of the table.
func permissions(t *testing.T, s *site) {
	boss := s.connect(t, s.User, "postgres")
	boss.run(t, callers)
	all := []string{
		"boss", "alice", "heir", "grandheir", "outsider", "stranger", "monitor", "signaler", "superheir", "creator",
		"ungranted",
	}
	if s.Major >= 16 {
		boss.run(t, callers16)
		all = append(all, "heir16", "heir16i")
	}
	targets := s.targets(t, boss)
	for _, caller := range all {
		t.Run(caller, func(t *testing.T) {
			c := s.connect(t, caller, "postgres")
			for _, x := range targets {
				s.judge(t, c, caller, x)
			}
			if caller != "ungranted" && caller != "boss" {
				own := s.idle(t, caller)
				stack(t, "its own role's", c.text(t, ask1(own)))
			}
			c.fails(t, map[bool]string{true: "denied function", false: "own backend"}[caller == "ungranted"], ask1(c.pid()))
			c.fails(t, map[bool]string{true: "denied function", false: "postmaster"}[caller == "ungranted"],
				ask1(s.PostmasterPID()))
		})
	}
	t.Run("catalog", func(t *testing.T) { catalog(t, s) })
	t.Run("log", func(t *testing.T) {
		log := func(x target) string { return fmt.Sprintf("SELECT pg_log_backtrace(%d)::text", x.pid) }
		if got := s.connect(t, "heir", "postgres").text(t, log(targets[0])); got != "true" {
			t.Errorf("the heir's request: %s", got)
		}
		s.connect(t, "heir", "postgres").fails(t, "superuser's process", log(targets[1]))
		s.connect(t, "stranger", "postgres").fails(t, "other role", log(targets[0]))
	})
	t.Run("queries", func(t *testing.T) { queries(t, s) })
	t.Run("no such process", func(t *testing.T) {
		c := s.connect(t, "stranger", "postgres")
		for _, pid := range []int{0, -1, -2147483648, 2147483647, 1, s.worker.Process.Pid} {
			c.warns(t, "no process", "NULL", ask1(pid))
			c.warns(t, "no process", "false", fmt.Sprintf("SELECT pg_log_backtrace(%d)::text", pid))
		}
		if got := c.text(t, "SELECT coalesce(pg_get_backtrace(NULL), 'null')"); got != "null" {
			t.Error(got)
		}
	})
	t.Run("PUBLIC", func(t *testing.T) {
		boss.run(t, "GRANT EXECUTE ON FUNCTION pg_get_backtrace TO PUBLIC")
		c, own := s.connect(t, "ungranted", "postgres"), s.idle(t, "ungranted")
		stack(t, "granted to PUBLIC", c.text(t, ask1(own)))
		c.fails(t, "other role", ask1(targets[0].pid))
		boss.run(t, "REVOKE EXECUTE ON FUNCTION pg_get_backtrace FROM PUBLIC")
		c.fails(t, "denied function", ask1(own))
	})
}

// judge makes one caller request one target.
func (s *site) judge(t *testing.T, c *session, caller string, x target) {
	t.Helper()
	got, e := c.try(t.Context(), ask1(x.pid))
	if x.name == "autovacuum worker" && e.level == "" && got == "NULL" {
		return // it has ended meanwhile
	}
	if name := s.name(e); x.name == "autovacuum worker" && (name == "no role's process" || name == "exited") {
		// It was about to end, and no longer listed.
		pgtest.Wait(t, "the end of the autovacuum worker", func() bool { return cmdline(x.pid) == "" })
		return
	}
	may := caller == "boss" || slices.Contains(alices, x.name) && slices.Contains(heirs, caller)
	want := x.refused
	if caller == "ungranted" {
		want = []string{"denied function"}
	}
	switch {
	case may && (e.level != "" || !frame.MatchString(got)):
		t.Errorf("%s: %v %s", x.name, e, got)
	case !may && (e.level == "" || !slices.Contains(want, s.name(e))):
		t.Errorf("%s: %v %s, want %s", x.name, e, got, want)
	}
	oneLine(t, e)
}

// targets makes or finds a process of each kind.
func (s *site) targets(t *testing.T, boss *session) []target {
	t.Helper()
	other, super := []string{"other role"}, []string{"superuser's process"}
	list := []target{{"alice", s.idle(t, "alice"), other}, {"boss", s.idle(t, "boss"), super}}
	setRole := func(user, command string) int {
		c := s.connect(t, user, "postgres")
		c.run(t, command)
		return c.pid()
	}
	boss.run(t, "GRANT stranger TO alice")
	list = append(list,
		target{"alice as stranger", setRole("alice", "SET ROLE stranger"), other},
		target{"boss as alice", setRole("boss", "SET ROLE alice"), super},
		target{"boss authorized alice", setRole("boss", "SET SESSION AUTHORIZATION alice"), super},
		target{"alice walsender", s.walsender(t), other},
		target{"alice parallel", s.parallel(t, boss), other},
		target{"unauthenticated", s.unauthenticated(t), []string{"no role's process", "unauthenticated"}})
	for _, kind := range []string{"checkpointer", "background writer", "walwriter"} {
		list = append(list, target{kind, s.process(t, boss, kind), []string{"auxiliary process"}})
	}
	boss.run(t, `CREATE TABLE filler AS SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g; DELETE FROM filler`)
	return append(list,
		target{"logical replication launcher", s.process(t, boss, "logical replication launcher"), super},
		target{"autovacuum launcher", s.process(t, boss, "autovacuum launcher"), []string{"autovacuum"}},
		target{"autovacuum worker", s.process(t, boss, "autovacuum worker"), []string{"autovacuum"}})
}

func (s *site) walsender(t *testing.T) int {
	t.Helper()
	config := s.connect(t, s.User, "postgres").Config().Copy()
	config.User = "alice"
	config.RuntimeParams["replication"] = "database"
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	return s.reconnect(t, config).pid()
}

// parallel makes a parallel worker of alice's that sleeps.
func (s *site) parallel(t *testing.T, boss *session) int {
	t.Helper()
	leader := s.connect(t, "alice", "postgres")
	leader.run(t, fill(s, "SET FORCE_PARALLEL = on; SET parallel_leader_participation = off", 0))
	done := leader.later("SELECT pg_sleep(600)::text")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), pgtest.Soon)
		defer cancel()
		_ = leader.PgConn().CancelRequest(ctx)
		<-done
	})
	var pid int
	pgtest.Wait(t, "a parallel worker", func() bool {
		const sql = "SELECT min(pid)::text FROM pg_stat_activity WHERE leader_pid = $1"
		_, err := fmt.Sscan(boss.text(t, sql, leader.pid()), &pid)
		return err == nil
	})
	return pid
}

// unauthenticated creates a backend that waits for the client's authentication.
func (s *site) unauthenticated(t *testing.T) int {
	t.Helper()
	before := children(s.PostmasterPID())
	dialer := net.Dialer{Timeout: pgtest.Patience}
	conn, err := dialer.DialContext(t.Context(), "unix", filepath.Join(s.SocketDir, ".s.PGSQL."+strconv.Itoa(s.Port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	var pid int
	// Another new process gets its title soon. On a busy machine, it may have to wait for a processor until then.
	asleep := make(map[int]int)
	pgtest.Wait(t, "a backend before authentication", func() bool {
		for _, child := range children(s.PostmasterPID()) {
			if title := cmdline(child); slices.Contains(before, child) || title == "" || strings.Contains(title, "autovacuum") {
				continue
			}
			if procState(child) != "S" {
				asleep[child] = 0
			} else if asleep[child]++; asleep[child] > 10 {
				pid = child
			}
		}
		return pid != 0
	})
	return pid
}

// identity checks that the caller is current_user at the time of the call.
func identity(t *testing.T, s *site) {
	boss := s.connect(t, s.User, "postgres")
	boss.run(t, wrappers)
	alice, stranger, super := s.idle(t, "alice"), s.idle(t, "stranger"), s.idle(t, "boss")
	const get = "pg_get_backtrace(%d)"
	for _, q := range []struct {
		name, user, before, call string
		pid                      int
		want                     string // "" for a stack
	}{
		{"own", "alice", "", get, alice, ""},
		{"a member", "heir", "", get, alice, ""},
		{"not of the member", "alice", "", get, s.idle(t, "heir"), "other role"},
		{"without INHERIT", "outsider", "", get, alice, "other role"},
		{"without INHERIT, SET ROLE", "outsider", "SET ROLE alice", get, alice, ""},
		{"SET ROLE loses its own", "outsider", "SET ROLE alice", get, s.idle(t, "outsider"), "other role"},
		{"superuser", "boss", "", get, super, ""},
		{"superuser SET ROLE", "boss", "SET ROLE stranger", get, alice, "other role"},
		{"superuser SET ROLE, own", "boss", "SET ROLE stranger", get, stranger, ""},
		{"superuser SET ROLE, superuser's", "boss", "SET ROLE alice", get, super, "superuser's process"},
		{"superuser SET ROLE ungranted", "boss", "SET ROLE ungranted", get, alice, "denied function"},
		{"SET LOCAL ROLE", "boss", "BEGIN; SET LOCAL ROLE stranger", get, alice, "other role"},
		{"SET ROLE NONE", "boss", "SET ROLE stranger; SET ROLE NONE", get, alice, ""},
		{"SET SESSION AUTHORIZATION", "boss", "SET SESSION AUTHORIZATION stranger", get, alice, "other role"},
		{"session authorization, then role", "boss", "SET SESSION AUTHORIZATION outsider; SET ROLE alice", get, alice, ""},
		{"RESET SESSION AUTHORIZATION", "boss", "SET SESSION AUTHORIZATION stranger; RESET SESSION AUTHORIZATION",
			get, alice, ""},
		{"a member of a superuser", "superheir", "", get, super, "superuser's process"},
		{"a member of a superuser, SET ROLE", "superheir", "SET ROLE boss", get, super, ""},
		{"alice's wrapper", "ungranted", "", "as_alice(%d)", alice, ""},
		{"alice's wrapper, another's backend", "stranger", "", "as_alice(%d)", s.idle(t, "signaler"), "other role"},
		{"alice's wrapper for a superuser", "boss", "", "as_alice(%d)", super, "superuser's process"},
		{"a superuser's wrapper", "ungranted", "", "as_boss(%d)", super, ""},
		{"alice's in a superuser's", "ungranted", "", "boss_alice(%d)", alice, ""},
		{"alice's in a superuser's, more", "ungranted", "", "boss_alice(%d)", super, "superuser's process"},
		{"a superuser's in alice's", "ungranted", "", "alice_boss(%d)", super, ""},
		{"invoker in a definer", "ungranted", "", "alice_invoker(%d)", alice, ""},
		{"a wrapper by one without EXECUTE", "boss", "", "as_ungranted(%d)", alice, "denied function"},
		{"a view of alice's", "stranger", "", "(SELECT f FROM alice_view)", 0, "denied function for the caller"},
	} {
		t.Run(q.name, func(t *testing.T) {
			c := s.connect(t, q.user, "postgres")
			c.run(t, q.before)
			sql := "SELECT " + q.call
			if strings.Contains(q.call, "%d") {
				sql = fmt.Sprintf(sql, q.pid)
			}
			got, e := c.try(t.Context(), sql)
			switch {
			case q.want == "" && e.level == "":
				stack(t, q.name, got)
			case q.want == "denied function for the caller":
				// A view's functions run as the role that reads the view.
				if e.level != "" && s.name(e) != "other role" && e.state != "42501" || e.level == "" {
					t.Errorf("%v %s", e, got)
				}
			case q.want == "" || s.name(e) != q.want:
				t.Errorf("%v %s, want %q", e, got, q.want)
			}
		})
	}
	t.Run("meanwhile", func(t *testing.T) { s.meanwhile(t, boss) })
}

const wrappers = `
	CREATE FUNCTION as_alice(int) RETURNS text LANGUAGE sql SECURITY DEFINER AS 'SELECT pg_get_backtrace($1)';
	ALTER FUNCTION as_alice OWNER TO alice;
	CREATE FUNCTION as_boss(int) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
		AS 'BEGIN RETURN pg_get_backtrace($1); END';
	ALTER FUNCTION as_boss OWNER TO boss;
	CREATE FUNCTION boss_alice(int) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN RETURN as_alice($1); END';
	ALTER FUNCTION boss_alice OWNER TO boss;
	CREATE FUNCTION alice_boss(int) RETURNS text LANGUAGE sql SECURITY DEFINER AS 'SELECT as_boss($1)';
	ALTER FUNCTION alice_boss OWNER TO alice;
	CREATE FUNCTION invoker(int) RETURNS text LANGUAGE sql AS 'SELECT pg_get_backtrace($1)';
	CREATE FUNCTION alice_invoker(int) RETURNS text LANGUAGE sql SECURITY DEFINER AS 'SELECT invoker($1)';
	ALTER FUNCTION alice_invoker OWNER TO alice;
	CREATE FUNCTION as_ungranted(int) RETURNS text LANGUAGE sql SECURITY DEFINER AS 'SELECT pg_get_backtrace($1)';
	ALTER FUNCTION as_ungranted OWNER TO ungranted;
	CREATE VIEW alice_view AS SELECT pg_get_backtrace(pid) AS f FROM pg_stat_activity WHERE usename = 'alice' LIMIT 1;
	ALTER VIEW alice_view OWNER TO alice; GRANT SELECT ON alice_view TO stranger`

// meanwhile changes the roles of callers and targets during requests.
func (s *site) meanwhile(t *testing.T, boss *session) {
	boss.run(t, `CREATE ROLE brief LOGIN; GRANT EXECUTE ON FUNCTION pg_get_backtrace TO brief;
		CREATE ROLE owner2 LOGIN; GRANT owner2 TO brief; CREATE ROLE former SUPERUSER LOGIN`)
	target := s.idle(t, "owner2")

	// An old snapshot does not preserve the rights of a member or a superuser. A new name of the role does no harm.
	c, super := s.connect(t, "brief", "postgres"), s.connect(t, "former", "postgres")
	for _, x := range []*session{c, super} {
		x.run(t, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_roles, pg_stat_activity")
	}
	// (A superuser that has asked before in the transaction may ask again. As everywhere in the server, it may
	// continue to use a right that it has used.)
	stack(t, "before", c.text(t, ask1(target)))
	boss.run(t, `ALTER ROLE brief RENAME TO "brief 2"; ALTER ROLE owner2 RENAME TO brief`)
	stack(t, "renamed", c.text(t, ask1(target)))
	boss.run(t, `ALTER ROLE former NOSUPERUSER; REVOKE brief FROM "brief 2";
		GRANT EXECUTE ON FUNCTION pg_get_backtrace TO former`)
	c.fails(t, "other role", ask1(target))
	super.fails(t, "other role", ask1(target))
	c.run(t, "ROLLBACK")
	super.run(t, "ROLLBACK")

	// The target's role is dropped: no role has its privileges any more.
	boss.run(t, `GRANT brief TO "brief 2"`)
	stack(t, "granted again", c.text(t, ask1(target)))
	boss.run(t, "DROP ROLE brief")
	c.fails(t, "other role", ask1(target))
	stack(t, "a dropped role's session, for a superuser", boss.text(t, ask1(target)))

	// The caller's role is dropped while it waits.
	other := s.idle(t, "alice")
	s.worker.signal(t, syscall.SIGSTOP)
	call := c.later(ask1(other))
	s.waits(t, c.pid(), "PgSleep")
	boss.run(t, `DROP OWNED BY "brief 2"; DROP ROLE "brief 2"`)
	s.worker.signal(t, syscall.SIGCONT)
	// If the call checks its caller again before the answer arrives, it ends with PostgreSQL's own error: such a role
	// has no current_user. A block that catches this error is not possible in a parallel plan.
	got := <-call
	own := got.state == "42704" && strings.HasPrefix(got.message, "invalid role OID: ")
	if !own && s.name(got.said) != "dropped role" {
		t.Errorf("dropped while it waited: %v %s", got.said, got.text)
	}
	if got, e := c.try(t.Context(), ask1(other)); e.level == "" {
		t.Errorf("a dropped role gets %s", got)
	}
	boss.run(t, "DROP OWNED BY former; DROP ROLE former")
}
