package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// TestSummaryText: a summary as text has each common caller once, PL/pgSQL lines, and all stacks of all samples.
func TestSummaryText(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, binDir string) {
		s := start(t, binDir, pgtest.Options{Conf: []string{"autovacuum = off"}}) // its workers may end before their capture
		s.work(t)
		boss := s.connect(t, s.User, "postgres")
		boss.run(t, `CREATE ROLE stranger LOGIN; CREATE ROLE owner LOGIN;
			CREATE FUNCTION nap() RETURNS void LANGUAGE plpgsql AS 'BEGIN
				PERFORM pg_sleep(600);
			END'; GRANT EXECUTE ON FUNCTION pg_backtrace_summary_text, pg_backtrace_summary TO owner`)
		sleepers, pids := make([]*session, 2), make([]string, 2)
		for i := range sleepers {
			sleepers[i] = s.connect(t, "owner", "postgres")
			pids[i] = strconv.Itoa(sleepers[i].pid())
			sleepers[i].later("SELECT nap()")
			s.waits(t, sleepers[i].pid(), "PgSleep")
		}
		owner := s.connect(t, "owner", "postgres")
		some := "ARRAY[" + strings.Join(pids, ", ") + "]"
		call := func(arguments string) string { return "SELECT pg_backtrace_summary_text(" + arguments + ")" }

		text := owner.text(t, call("5, '1 ms', "+some))
		tree := text[max(0, strings.Index(text, "CALLS")):]
		for _, want := range []string{
			`^10 stacks in 5 samples\n10 samples\n`, `\n +SELF +TOTAL +FUNCTION\n`, `\n +SELF +TOTAL +LINE\n +10 +100\.0 % +10 +100\.0 %  plpgsql:nap\(\) line 2\n`,
			`\n +TOTAL +CALLS\n +10 +100\.0 %  client backend\n`,
		} {
			if !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
		for _, once := range []string{"PostgresMain", "plpgsql_exec_function", "pg_sleep"} {
			if n := len(regexp.MustCompile(`(?m) `+once+`$`).FindAllString(tree, -1)); n != 1 {
				t.Errorf("%s stands %d times in the tree\n%s", once, n, tree)
			}
		}

		// Processes that the caller may not see, and processes that are none, are counted by reason.
		auxiliary := boss.text(t, "SELECT pid::text FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
		text = owner.text(t, call(fmt.Sprintf("2, '0', ARRAY[%s, %s, 1]", pids[0], auxiliary)))
		if !strings.HasPrefix(text, "2 stacks in 2 samples\n") || !strings.Contains(text, "\nnot taken 2 times: PID 1 is not a PostgreSQL server process\n") ||
			!regexp.MustCompile(`\nnot taken 2 times: permission denied .*\n`).MatchString(text) {
			t.Errorf("with processes that cannot be captured:\n%s", text)
		}
		// All processes; the caller's own is none of them.
		text = boss.text(t, call("2"))
		if strings.Contains(text, "not taken") || !regexp.MustCompile(`(?m)\d  checkpointer$|%  checkpointer$`).MatchString(text) {
			t.Errorf("all processes:\n%s", text)
		}
		if got := boss.text(t, "SELECT (pg_backtrace_summary_text(1, '0', '{}') IS NULL)::text"); got != "true" {
			t.Errorf("no processes: %s", got)
		}
		// The setting with the name of the call is the caller's again.
		if got := boss.text(t, "SELECT coalesce(current_setting('pg_stat_backtrace.trace', true), '')"); got != "" {
			t.Errorf("the setting is left as %q", got)
		}
		_, e := s.connect(t, "stranger", "postgres").try(t.Context(), call("1"))
		if e.state != "42501" {
			t.Errorf("a stranger: %+v", e)
		}
		for _, bad := range []string{"0", "NULL", "1, '2 hours'", "1, NULL", "1, '0', NULL, 0", "1, '0', NULL, 1001"} {
			if _, e := boss.try(t.Context(), call(bad)); e.state != "22023" {
				t.Errorf("%s: %+v", bad, e)
			}
		}
	})
}
