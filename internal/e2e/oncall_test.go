package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
)

// TestOnCall checks the grant for on-call staff: stacks of all processes, without the texts and names of superusers'
// backends and of processes without a role. It gives no right on other functions, and other functions do not give it.
func TestOnCall(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, binDir string) {
		s := start(t, binDir, pgtest.Options{})
		s.work(t)
		boss := s.connect(t, s.User, "postgres")
		boss.run(t, `CREATE ROLE oncall LOGIN; CREATE ROLE executor LOGIN; CREATE ROLE plain LOGIN; CREATE ROLE stranger LOGIN;
			GRANT EXECUTE ON FUNCTION pg_get_backtrace_on_call(int) TO oncall;
			GRANT EXECUTE ON FUNCTION pg_get_backtrace(int), pg_get_backtrace_frames(int), pg_backtrace_summary TO executor;
			GRANT SELECT ON pg_stat_backtrace TO executor;
			CREATE FUNCTION hunter2_function() RETURNS void LANGUAGE plpgsql AS
				$$BEGIN PERFORM /* hunter2_statement */ pg_advisory_xact_lock(4711); END$$;
			GRANT USAGE, CREATE ON SCHEMA public TO oncall`)
		holder := s.connect(t, s.User, "postgres")
		holder.run(t, "SELECT pg_advisory_lock(4711)")
		waiting := func(role string) int {
			c := s.Connect(t, role, "postgres")
			go func() { _, _ = c.Exec(t.Context(), "SELECT hunter2_function() /* hunter2_query */") }()
			pid := int(c.PgConn().PID())
			pgtest.Wait(t, "the lock", func() bool {
				return boss.text(t, fmt.Sprintf("SELECT coalesce(wait_event, '') FROM pg_stat_activity WHERE pid = %d", pid)) == "advisory"
			})
			return pid
		}
		superuser, plain := waiting(s.User), waiting("plain")
		var checkpointer int
		pgtest.Wait(t, "the checkpointer", func() bool {
			return boss.QueryRow(t.Context(), "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'").Scan(&checkpointer) == nil
		})
		fails := func(c *session, code, sql string) {
			t.Helper()
			_, err := c.Exec(t.Context(), sql)
			var failed *pgconn.PgError
			if !errors.As(err, &failed) || failed.Code != code {
				t.Errorf("%s: %v, want %s", sql, err, code)
			}
		}
		const hidden, shown = "true", "false"
		sees := func(c *session, function string, pid int, want string) {
			t.Helper()
			text := c.text(t, fmt.Sprintf("SELECT concat_ws(E'\\n', names_hidden::text, phrase, backtrace) FROM %s(%d)", function, pid))
			if got, _, _ := strings.Cut(text, "\n"); got != want {
				t.Errorf("process %d: names hidden: %s, want %s", pid, got, want)
			}
			if secret := strings.Contains(text, "hunter2"); secret != (want == shown) {
				t.Errorf("process %d: names: %v\n%s", pid, secret, text)
			}
			if !strings.Contains(text, "\n#0 ") {
				t.Errorf("process %d has no frames: %s", pid, text)
			}
		}
		const function = "pg_get_backtrace_on_call"
		oncall, executor := s.connect(t, "oncall", "postgres"), s.connect(t, "executor", "postgres")
		sees(oncall, function, superuser, hidden)
		sees(oncall, function, plain, shown)
		sees(oncall, function, checkpointer, hidden)
		sees(boss, function, superuser, shown)
		if phrase := oncall.text(t, fmt.Sprintf("SELECT phrase FROM %s(%d)", function, superuser)); phrase == "" {
			t.Error("the superuser's backend has no phrase")
		}
		oncall.run(t, "SET pg_stat_backtrace.format = brief")
		for pid, text := range map[int]string{
			superuser: oncall.text(t, fmt.Sprintf("SELECT backtrace FROM %s(%d)", function, superuser)),
			plain:     oncall.text(t, fmt.Sprintf("SELECT backtrace FROM %s(%d)", function, plain)),
		} {
			if strings.Contains(text, "0x") || !strings.Contains(text, "PostgresMain") || strings.Contains(text, "hunter2") != (pid == plain) {
				t.Errorf("the brief stack of process %d: %s", pid, text)
			}
		}
		oncall.run(t, "SET pg_stat_backtrace.format = xml")
		fails(oncall, "22023", fmt.Sprintf("SELECT %s(%d)", function, plain))
		oncall.run(t, "RESET pg_stat_backtrace.format")
		// The caller is the current user, also in a function of another role.
		oncall.run(t, `CREATE FUNCTION wrapper(int, OUT names_hidden boolean, OUT phrase text, OUT backtrace text) SECURITY DEFINER AS
			'SELECT names_hidden, phrase, backtrace FROM pg_get_backtrace_on_call($1)' LANGUAGE sql`)
		stranger := s.connect(t, "stranger", "postgres")
		sees(stranger, "wrapper", superuser, hidden)
		sees(boss, "wrapper", superuser, hidden)
		boss.run(t, "SET ROLE oncall")
		sees(boss, function, superuser, hidden)
		boss.run(t, "SET ROLE executor")
		fails(boss, "42501", fmt.Sprintf("SELECT * FROM %s(%d)", function, plain))
		boss.run(t, "RESET ROLE")
		fails(stranger, "42501", fmt.Sprintf("SELECT * FROM %s(%d)", function, plain))
		fails(executor, "42501", fmt.Sprintf("SELECT * FROM %s(%d)", function, plain))
		for _, pid := range []int{superuser, plain, checkpointer} {
			fails(executor, "42501", fmt.Sprintf("SELECT pg_get_backtrace(%d)", pid))
			fails(oncall, "42501", fmt.Sprintf("SELECT pg_get_backtrace(%d)", pid))
			fails(oncall, "42501", fmt.Sprintf("SELECT pg_get_backtrace_frames(%d)", pid))
		}
		for _, sql := range []string{"SELECT * FROM pg_stat_backtrace", "SELECT pg_backtrace_summary(1)", "SELECT pg_get_memory_contexts(1)"} {
			fails(oncall, "42501", sql)
		}
		fails(oncall, "55000", "SELECT "+function+"(pg_backend_pid())")
		fails(oncall, "42501", fmt.Sprintf("SELECT %s(%d)", function, s.PostmasterPID()))
		if n := oncall.text(t, "SELECT count(*)::text FROM "+function+"(0)"); n != "0" {
			t.Error("PID 0 has rows")
		}
		boss.run(t, "REVOKE EXECUTE ON FUNCTION pg_get_backtrace_on_call(int) FROM oncall")
		fails(oncall, "42501", fmt.Sprintf("SELECT %s(%d)", function, plain))
		fails(stranger, "42501", fmt.Sprintf("SELECT wrapper(%d)", plain))
		holder.run(t, "SELECT pg_advisory_unlock(4711)")
	})
}
